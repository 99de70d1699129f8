"""Who runs in the next step: every decoding request, then prefill chunks in the row budget."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from engine.pages import Pages
from engine.request import Request


@dataclass(frozen=True, slots=True)
class Prefill:
    """The next `rows` prompt tokens of a request; last: they end its prompt."""

    request: Request
    rows: int
    last: bool


@dataclass(frozen=True, slots=True)
class Work:
    decoding: list[Request]
    prefills: list[Prefill]

    def __bool__(self) -> bool:
        return bool(self.decoding or self.prefills)

    @property
    def requests(self) -> list[Request]:
        """Every request that has rows in the step."""
        return [*self.decoding, *(prefill.request for prefill in self.prefills)]


class Scheduler:
    """First come, first served. A request is admitted when its pages, prompt and every token it
    may emit, are free, so that a running request never has to give way. Plain integers only."""

    def __init__(self, pages: Pages, max_batch: int, max_waiting: int, chunk_rows: int) -> None:
        self.pages = pages
        self._max_batch = max_batch
        self._max_waiting = max_waiting
        self._chunk_rows = chunk_rows
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self._live: dict[str, Request] = {}
        self.preemptions = 0
        self.prefix_queried_tokens = 0
        self.prefix_hit_tokens = 0

    @property
    def full(self) -> bool:
        """True when the queue takes no more requests."""
        return len(self._live) >= self._max_batch + self._max_waiting

    def add(self, request: Request) -> None:
        self.waiting.append(request)
        self._live[request.name] = request

    def find(self, name: str) -> Request | None:
        """The live request with the client's name."""
        return self._live.get(name)

    def remove(self, request: Request) -> None:
        """End a live request, wherever it is; its pages are free at once."""
        del self._live[request.name]
        (self.waiting if request.admitted is None else self.running).remove(request)
        self.pages.release(request.id)

    def next(self, now: float) -> Work:
        """Admit what fits and pick the rows of the next step."""
        self._admit(now)
        decoding = [request for request in self.running if request.decoding]
        prefills: list[Prefill] = []
        budget = self._chunk_rows
        for request in self.running:
            if budget <= 0:
                break
            if not request.decoding:
                left = request.prompt_length - request.computed
                rows = min(budget, left)
                prefills.append(Prefill(request, rows, last=rows == left))
                budget -= rows
        return Work(decoding, prefills)

    def _admit(self, now: float) -> None:
        while self.waiting and len(self.running) < self._max_batch:
            request = self.waiting[0]
            pages = self.pages.allocate(request.id, self.pages.needed(request.reserved_tokens))
            if pages is None:
                return
            request.pages = pages
            request.admitted = now
            self.running.append(self.waiting.popleft())
