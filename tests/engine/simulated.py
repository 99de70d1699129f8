"""A target without tensors: its next token is a function of the whole text before it, and every
slot of its pool remembers the text it was computed from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from controller.contract import Wish
from engine.draw import Draw
from engine.pages import Pages
from engine.prefix import Scope
from engine.request import Request
from engine.scheduler import Scheduler, Work

PAGE = 4
VOCABULARY = 5
ROOT = 7


def mix(state: int, token: int) -> int:
    """State of a text one token longer."""
    return (state * 1_000_003 + token + 1) % (2**61 - 1)


def state_of(tokens: Sequence[int]) -> int:
    state = ROOT
    for token in tokens:
        state = mix(state, token)
    return state


def next_token(state: int) -> int:
    return state // 7 % VOCABULARY


def continuation(prompt: Sequence[int], length: int) -> list[int]:
    """The only right output of `length` tokens."""
    state, output = state_of(prompt), []
    for _ in range(length):
        output.append(next_token(state))
        state = mix(state, output[-1])
    return output


Drafts = Callable[[Request], tuple[int, int]]
"""request -> (draft length wished, how many of them are right)."""


class Simulation:
    """A scheduler over the simulated target. Every step checks that each row sees exactly the
    text before it, whatever pages it came through, and that all pages add up."""

    def __init__(
        self,
        pages: int,
        max_batch: int,
        chunk_rows: int,
        scope: Scope = "shared",
        in_place: bool = False,
    ) -> None:
        pool = Pages(pages, PAGE, in_place=in_place)
        self.scheduler = Scheduler(pool, max_batch, 10_000, chunk_rows, scope)
        self.slots: list[int | None] = [None] * (pages * PAGE)
        self.ended: list[Request] = []
        self._made = 0

    def add(
        self, prompt: Sequence[int], max_tokens: int, priority: int = 0, tenant: str = ""
    ) -> Request:
        self._made += 1
        no_output: Any = None
        request = Request(
            id=self._made,
            name=str(self._made),
            tokens=list(prompt),
            prompt_length=len(prompt),
            max_tokens=max_tokens,
            draw=Draw(),
            wish=Wish(),
            tenant=tenant,
            output=no_output,
            arrived=0.0,
            priority=priority,
        )
        self.scheduler.add(request)
        return request

    def step(self, drafts: Drafts = lambda request: (0, 0)) -> Work:
        work = self.scheduler.next(0.0)
        for request in work.decoding:
            self._verify(request, *drafts(request))
        for prefill in work.prefills:
            self._prefill(prefill.request, prefill.rows, prefill.last)
        for request in work.requests:
            if request.remaining:
                self.scheduler.committed(request)
            else:
                self.scheduler.remove(request)
                self.ended.append(request)
        self.scheduler.pages.check()
        return work

    def drain(self, drafts: Drafts = lambda request: (0, 0)) -> int:
        """Step until idle; the steps it took."""
        steps = 0
        while self.step(drafts):
            steps += 1
        return steps

    def _verify(self, request: Request, wished: int, right: int) -> None:
        rows = self.scheduler.grow(request, 1 + wished)
        assert 1 <= rows <= 1 + wished, "a decoding request has no page for its next row"
        assert rows <= request.remaining, "a row after the last token that may be emitted"
        right = min(right, rows - 1)
        truth = continuation(request.tokens, rows)
        draft = truth[:right] + [(token + 1) % VOCABULARY for token in truth[right : rows - 1]]
        self._compute(request, [request.tokens[-1], *draft])
        request.tokens += truth[: right + 1]
        request.computed += right + 1

    def _prefill(self, request: Request, rows: int, last: bool) -> None:
        start = request.computed
        self._compute(request, request.tokens[start : start + rows])
        request.computed += rows
        if last:
            assert request.computed == request.prompt_length == len(request.tokens)
            request.tokens.append(next_token(state_of(request.tokens)))

    def _compute(self, request: Request, ids: Sequence[int]) -> None:
        """Check what the rows see and write what they leave in the pages."""
        state = ROOT
        for place, token in enumerate(request.tokens[: request.computed]):
            state = mix(state, token)
            assert self.slots[self._slot(request, place)] == state, "a row sees foreign text"
        for place, token in enumerate(ids, start=request.computed):
            state = mix(state, token)
            self.slots[self._slot(request, place)] = state

    def _slot(self, request: Request, place: int) -> int:
        return request.pages[place // PAGE] * PAGE + place % PAGE
