"""One request as the API sees it: a stream of events that survives a slow reader and a death."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable

from engine.wire import (
    Delta,
    Failed,
    Finished,
    PromptLogprobs,
    Speculation,
    Submit,
    Timing,
)

Event = Delta | PromptLogprobs | Finished | Failed

SLOW_EVENTS = 16
"""A reader so far behind gets several steps in one Delta."""

MERGED_PIECES = 64
"""Most pieces of a Delta that was put together."""


class Stream(AsyncIterator[Event]):
    """Events of one request; Finished or Failed is the last. Leaving early must `cancel`.

    A slow reader loses nothing. What waits for it is bounded by the request's max_tokens pieces,
    and in fewer events than steps: above SLOW_EVENTS, adjacent deltas of one drafter become one,
    which sums their counts and keeps every piece with its kind, and the last one's step."""

    def __init__(self, submit: Submit, cancel: Callable[[Stream], None]) -> None:
        self.request = submit
        self.cancelled = False
        self.deaths = 0
        """Engines that died while they may have been running this request."""
        self.retries = 0
        self._cancel = cancel
        self._events: deque[Event] = deque()
        self._there = asyncio.Event()
        self._started = False
        self._read = False
        self._ended = False
        self._begin = time.monotonic()

    @property
    def started(self) -> bool:
        """True once the engine has sent something of it."""
        return self._started

    @property
    def read(self) -> bool:
        """True once the reader has an event: from then on the request cannot begin anew."""
        return self._read

    @property
    def waiting(self) -> int:
        """Events that the reader has not taken."""
        return len(self._events)

    def put(self, event: Event) -> None:
        merged = self._merged(event) if len(self._events) >= SLOW_EVENTS else None
        if merged is not None:
            self._events[-1] = merged
        else:
            self._events.append(event)
        self._started = True
        self._there.set()

    def _merged(self, event: Event) -> Delta | None:
        """The last waiting event and this one as one, where that loses nothing."""
        last = self._events[-1]
        if not isinstance(last, Delta) or not isinstance(event, Delta):
            return None
        if last.drafter != event.drafter or len(last.pieces) + len(event.pieces) > MERGED_PIECES:
            return None
        return Delta(
            event.id,
            last.text + event.text,
            last.pieces + event.pieces,
            event.step,
            event.drafter,
            last.drafted + event.drafted,
            last.accepted + event.accepted,
        )

    def restart(self) -> None:
        """Forget what an engine that died has sent and nobody has read."""
        assert not self._read
        self.retries += 1
        self._started = False
        self._events.clear()
        self._there.clear()

    async def __anext__(self) -> Event:
        if self._ended:
            raise StopAsyncIteration
        while not self._events:
            self._there.clear()
            await self._there.wait()
        event = self._events.popleft()
        self._read = True
        self._ended = isinstance(event, Finished | Failed)
        return event

    def cancel(self) -> None:
        """Ask the engine to end the request; Finished("cancelled") follows. Idempotent."""
        if not self.cancelled:
            self.cancelled = True
            self._cancel(self)

    async def aclose(self) -> None:
        self.cancel()

    def cancelled_away(self) -> Finished:
        """The end of a request that was cancelled while no engine had it."""
        waited = 1e3 * (time.monotonic() - self._begin)
        return Finished(
            id=self.request.id,
            finish_reason="cancelled",
            stop=None,
            prompt_tokens=0,
            completion_tokens=0,
            speculation=Speculation(0, 0, 0, (0,), 0, {}),
            timing=Timing(waited, waited, waited, None),
        )
