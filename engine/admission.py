"""Takes requests in: most at once, those with a grammar on threads of their own."""

from __future__ import annotations

import logging
import threading
from collections import Counter, OrderedDict, deque
from collections.abc import Callable

from engine.errors import RequestError
from engine.intake import Intake
from engine.request import Request
from engine.wire import Cancel, Failed, Submit

log = logging.getLogger(__name__)

THREADS = 3
THREADS_PER_TENANT = 2
"""So that whatever one tenant sends, a thread is left to the others."""

MOST_PER_TENANT = 64
"""Requests of one tenant whose grammars wait to be compiled: those of one HTTP request fit."""

MOST_WAITING = 256
"""The same of all tenants; each holds its whole Submit."""


class Admission:
    """Turns a Submit into a Request for the loop or into a Failed for the client.

    A grammar may take seconds to compile, so those requests do not pass through the reader: other
    requests overtake them, also those whose grammar is known already. The tenants are served in
    turn. Messages about one id keep their order all the same: what comes for an id that is waiting
    waits behind it. One thread calls `submit` and `cancel`."""

    def __init__(
        self,
        intake: Intake,
        deliver: Callable[[Request | Cancel], None],
        refuse: Callable[[Failed], None],
    ) -> None:
        """deliver and refuse are called from several threads and may block."""
        self._intake = intake
        self._deliver = deliver
        self._refuse = refuse
        self._lock = threading.Lock()
        self._waiting: dict[str, deque[Submit | Cancel]] = {}
        self._turns: OrderedDict[str, deque[str]] = (
            OrderedDict()
        )  # tenant -> ids, next tenant first
        self._running: Counter[str] = Counter()
        # One for each time that a request may have become one to begin with.
        self._chances = threading.Semaphore(0)
        self._started = False

    def submit(self, message: Submit) -> None:
        full = None
        with self._lock:
            behind = self._waiting.get(message.id)
            waits = behind is not None or not self._intake.quick(message.sampling)
            if waits and (full := self._full(message.tenant)) is None:
                if behind is not None:
                    behind.append(message)
                    return
                self._waiting[message.id] = deque([message])
                self._turns.setdefault(message.tenant, deque()).append(message.id)
                self._start()
                self._chances.release()
                return
        if full is not None:
            self._refuse(Failed(message.id, "queue_full", full))
        else:
            self._take(message)

    def cancel(self, message: Cancel) -> None:
        with self._lock:
            behind = self._waiting.get(message.id)
            if behind is not None:
                if not isinstance(behind[-1], Cancel):
                    behind.append(message)
                return
        self._deliver(message)

    def _full(self, tenant: str) -> str | None:
        """Why no grammar more of this tenant may wait, or None when it may."""
        waiting = len(self._turns.get(tenant, ())) + self._running[tenant]
        if waiting >= MOST_PER_TENANT:
            return (
                f"{MOST_PER_TENANT} of your requests wait for their grammars to be compiled, "
                "which is the limit for one tenant; try again when some of them have begun."
            )
        if sum(len(messages) for messages in self._waiting.values()) >= MOST_WAITING:
            return "too many grammars of all tenants wait to be compiled; try again shortly."
        return None

    def _start(self) -> None:
        """Threads start with the first grammar."""
        if not self._started:
            self._started = True
            for number in range(THREADS):
                name = f"grammar-{number}"
                threading.Thread(target=self._work, name=name, daemon=True).start()

    def _work(self) -> None:
        while True:
            self._chances.acquire()
            with self._lock:
                turn = self._turn()
                # It stays in place until it is dealt with.
                message = None if turn is None else self._waiting[turn[1]][0]
            if turn is None:
                continue
            tenant, name = turn
            while message is not None:
                self._take(message)
                message = self._next(tenant, name)
            self._chances.release()  # the tenant may have waited for one of its own to end

    def _turn(self) -> tuple[str, str] | None:
        """The tenant whose turn it is and its oldest id; it then goes to the end of the row."""
        for tenant, ids in self._turns.items():
            if self._running[tenant] < THREADS_PER_TENANT:
                name = ids.popleft()
                self._running[tenant] += 1
                if ids:
                    self._turns.move_to_end(tenant)
                else:
                    del self._turns[tenant]
                return tenant, name
        return None

    def _next(self, tenant: str, name: str) -> Submit | Cancel | None:
        """Drop the message about an id that was dealt with and give the one behind it. An id of
        which none is left is forgotten in the same breath: nothing can come in between."""
        with self._lock:
            behind = self._waiting[name]
            behind.popleft()
            if not behind:
                del self._waiting[name]
                self._running[tenant] -= 1
                if not self._running[tenant]:
                    del self._running[tenant]
                return None
            return behind[0]

    def _take(self, message: Submit | Cancel) -> None:
        if isinstance(message, Cancel):
            self._deliver(message)
            return
        try:
            request = self._intake.request(message)
        except RequestError as error:
            self._refuse(Failed(message.id, error.code, error.message, error.param))
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException:  # a panic of a library in Rust is no Exception
            log.exception("request %s could not be read", message.id)
            self._refuse(Failed(message.id, "internal", "the request could not be read."))
        else:
            self._deliver(request)
