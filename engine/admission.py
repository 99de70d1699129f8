"""Takes requests in: most at once, those with a grammar on threads of their own."""

from __future__ import annotations

import logging
import queue
import threading
from collections import deque
from collections.abc import Callable

from engine.errors import RequestError
from engine.intake import Intake
from engine.request import Request
from engine.wire import Cancel, Failed, Submit

log = logging.getLogger(__name__)

THREADS = 2
MOST_WAITING = 64
"""Requests whose grammars wait to be compiled; each holds its whole Submit."""


class Admission:
    """Turns a Submit into a Request for the loop or into a Failed for the client.

    A grammar may take seconds to compile, so those requests do not pass through the reader: other
    requests overtake them. Messages about one id keep their order all the same: what comes for an
    id that is waiting waits behind it. One thread calls `submit` and `cancel`."""

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
        self._ids: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._started = False

    def submit(self, message: Submit) -> None:
        with self._lock:
            behind = self._waiting.get(message.id)
            if behind is None and message.sampling.grammar is None:
                pass
            elif sum(len(messages) for messages in self._waiting.values()) >= MOST_WAITING:
                text = "too many grammars wait to be compiled; try again shortly."
                self._refuse(Failed(message.id, "queue_full", text))
                return
            elif behind is not None:
                behind.append(message)
                return
            else:
                self._waiting[message.id] = deque([message])
                self._start()
                self._ids.put(message.id)
                return
        self._take(message)

    def cancel(self, message: Cancel) -> None:
        with self._lock:
            behind = self._waiting.get(message.id)
            if behind is not None:
                if not isinstance(behind[-1], Cancel):
                    behind.append(message)
                return
        self._deliver(message)

    def _start(self) -> None:
        """Threads start with the first grammar."""
        if not self._started:
            self._started = True
            for number in range(THREADS):
                name = f"grammar-{number}"
                threading.Thread(target=self._work, name=name, daemon=True).start()

    def _work(self) -> None:
        while True:
            name = self._ids.get()
            with self._lock:
                message = self._waiting[name][0]  # stays in place until it is dealt with
            while message is not None:
                self._take(message)
                message = self._next(name)

    def _next(self, name: str) -> Submit | Cancel | None:
        """Drop the message about an id that was dealt with and give the one behind it. An id of
        which none is left is forgotten in the same breath: nothing can come in between."""
        with self._lock:
            behind = self._waiting[name]
            behind.popleft()
            if not behind:
                del self._waiting[name]
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
