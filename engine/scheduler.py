"""Who runs in the next step: every decoding request, then prefill chunks in the row budget."""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass
from operator import attrgetter

from engine.pages import Pages
from engine.prefix import PrefixCache, Scope
from engine.request import Request

SPARE_PAGES = 2
"""Pages left free for every running request when another is admitted, so that it does not lose
its own pages again a few steps later."""

EXPECTED_OUTPUT = 512
"""Tokens for which a request finds room behind its pages, or max_tokens if that is less."""

_turn = attrgetter("turn")


@dataclass(frozen=True, slots=True)
class Prefill:
    """The next `rows` tokens of a request that are not in its pages yet; last: they end its
    prompt and the last row gives its first token."""

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
    """Plain integers only. One strict order, by priority and then by arrival, rules everything.

    Admission goes in that order and stops at the first request that does not fit: it takes the
    pages of its text, further pages come as it grows. When a decoding request finds no page for
    its next row, the last of the running ones in the order is preempted: its pages are taken, its
    tokens stay, and what is no longer cached is computed again when its turn comes. A waiting
    request preempts a running one only when slots or pages are short and only one of strictly
    worse priority. The first in the order is never preempted, so something always gets done.

    Every decoding request runs in every step. Prefills share a budget of `chunk_rows` rows of
    their own, so neither starves the other: half of it goes to the first in the order, the rest
    to the shortest of the best priority. So a long prompt delays a short one behind it little,
    and short ones cost it at most half of its speed.

    max_batch: requests that run together."""

    def __init__(
        self,
        pages: Pages,
        max_batch: int,
        max_waiting: int,
        chunk_rows: int,
        prefix_cache: Scope = "shared",
    ) -> None:
        self.pages = pages
        self.max_batch = max_batch
        self._max_waiting = max_waiting
        self._chunk_rows = chunk_rows
        self._prefix = PrefixCache(pages, prefix_cache)
        self.waiting: list[Request] = []  # in order
        self.running: list[Request] = []  # each holds pages
        self._live: dict[str, Request] = {}
        self.preemptions = 0
        self.prefix_queried_tokens = 0
        self.prefix_hit_tokens = 0

    @property
    def full(self) -> bool:
        """True when the queue takes no more requests."""
        return len(self._live) >= self.max_batch + self._max_waiting

    def add(self, request: Request) -> None:
        insort(self.waiting, request, key=_turn)
        self._live[request.name] = request

    def find(self, name: str) -> Request | None:
        """The live request with the client's name."""
        return self._live.get(name)

    def remove(self, request: Request, sound: bool = True) -> None:
        """End a live request, wherever it is. Its pages are free at once, or kept for their
        content; not when that is unsound."""
        del self._live[request.name]
        if not request.pages:
            del self.waiting[bisect_left(self.waiting, request.turn, key=_turn)]
            return
        self.running.remove(request)
        if sound:
            self._prefix.register(request)
        else:
            self._prefix.forget(request)
        self._release(request)

    # --- one step -----------------------------------------------------------------------------

    def next(self, now: float) -> Work:
        """Find a page for every decoding request, admit what fits and pick the step's rows."""
        before = self.preemptions
        self._grow_decoding()
        if self.preemptions == before:
            self._admit(now)
        decoding = [request for request in self.running if request.decoding]
        return Work(decoding, self._prefills() if len(decoding) < len(self.running) else [])

    def grow(self, request: Request, rows: int) -> int:
        """Find pages for up to `rows` rows of a decoding request; preempts nobody. Returns how
        many it can have: at least 1 after `next`, never more than the tokens it may still emit."""
        rows = min(rows, request.remaining)
        size, pages = self.pages.page_size, request.pages
        fitting = len(pages) * size - request.computed
        if rows > fitting:
            self.pages.grow(request.id, self.pages.needed(request.computed + rows) - len(pages))
            fitting = len(pages) * size - request.computed
        return min(rows, fitting)

    def committed(self, request: Request) -> None:
        """Take note that a step of a running request is over: the pages it filled are known now."""
        self._prefix.register(request)

    def forget_prefixes(self) -> None:
        """Make what was computed so far unknown, also the pages that running requests have yet to
        fill: whoever shares them with others from now on has computed them from the first on."""
        self.pages.unname_all()
        for request in self.running:
            request.registered = self.pages.total  # more than it can fill

    # --- pages for those that decode ----------------------------------------------------------

    def _grow_decoding(self) -> None:
        """A page for the next row of every decoding request, if need be from the last in order."""
        size = self.pages.page_size
        short = [
            request
            for request in self.running
            if request.computed >= len(request.pages) * size and request.decoding
        ]
        for request in sorted(short, key=_turn):
            while request.pages and not self.pages.grow(request.id, 1):
                if not self._trim():
                    assert len(self.running) > 1, "a request alone outgrew the pool"
                    self._preempt(max(self.running, key=_turn))

    def _trim(self) -> bool:
        """Take back pages that only drafts wanted; False when there were none."""
        free = self.pages.free
        for request in self.running:
            if request.decoding:
                self.pages.trim(request.id, self.pages.needed(request.computed + 1))
        return self.pages.free > free

    def _preempt(self, request: Request) -> None:
        self.running.remove(request)
        self._release(request)
        insort(self.waiting, request, key=_turn)
        request.preemptions += 1
        self.preemptions += 1

    def _release(self, request: Request) -> None:
        self.pages.release(request.id)
        request.pages = []
        request.computed = request.registered = request.reused = 0

    # --- admission ----------------------------------------------------------------------------

    def _admit(self, now: float) -> None:
        while self.waiting:
            request = self.waiting[0]
            if not self._place(request, now) and not self._give_way(request):
                return

    def _place(self, request: Request, now: float) -> bool:
        """Run a waiting request if there is a slot and there are pages for it."""
        if len(self.running) >= self.max_batch:
            return False
        shared = self._prefix.match(request)
        length = len(request.tokens)
        most = min(request.prompt_length + request.max_tokens, length + EXPECTED_OUTPUT)
        pages = self.pages.allocate(
            request.id,
            self.pages.needed(length) - len(shared),
            expected=self.pages.needed(most) - len(shared),
            shared=shared,
            spare=SPARE_PAGES * len(self.running),
        )
        if pages is None:
            return False
        request.pages = pages
        request.registered = request.reused = len(shared)
        request.computed = len(shared) * self.pages.page_size
        if request.admitted is None:
            request.admitted = now
            self._count(request)
        self.running.append(self.waiting.pop(0))
        return True

    def _count(self, request: Request) -> None:
        if self._prefix.asks(request):
            self.prefix_queried_tokens += request.prompt_length
            self.prefix_hit_tokens += request.computed
            request.cached_tokens = request.computed

    def _give_way(self, request: Request) -> bool:
        """Preempt the last running request for a waiting one of strictly better priority; False
        when there is none or when even all of them could not make room."""
        worse = [other for other in self.running if other.priority > request.priority]
        if not worse:
            return False
        shared = self._prefix.match(request)
        count = self.pages.needed(len(request.tokens)) - len(shared)
        count += SPARE_PAGES * (len(self.running) - len(worse))
        if count > self.pages.obtainable([other.id for other in worse], shared):
            return False
        self._preempt(max(worse, key=_turn))
        return True

    # --- prefill ------------------------------------------------------------------------------

    def _prefills(self) -> list[Prefill]:
        filling = sorted((one for one in self.running if not one.decoding), key=_turn)
        first, budget = filling[0], self._chunk_rows
        rows = dict.fromkeys(filling, 0)
        rows[first] = min(first.uncomputed, budget - budget // 2)
        budget -= rows[first]
        shortest = sorted(filling, key=lambda one: (one.priority, one.uncomputed, one.id))
        for request in shortest:
            if not budget:
                break
            more = min(request.uncomputed - rows[request], budget)
            rows[request] += more
            budget -= more
        return [
            Prefill(one, count, last=count == one.uncomputed and not one.produced)
            for one, count in rows.items()
            if count
        ]
