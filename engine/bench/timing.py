"""CPU time of drafters, measured around every call that the engine makes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Literal, TypeVar

from controller.contract import Offer, ShadowScore
from engine.drafters.base import Busy, Committed, Drafter, Tail
from engine.drafts import Draft
from engine.request import Request

T = TypeVar("T")


class Timed:
    """A drafter whose calls are timed. seconds: CPU time of the calling thread in them.

    Every call of the protocols is written out: from Python 3.12 on isinstance with one of them sees
    no others. A drafter that continues no drafts or has no work of its own answers so."""

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter
        self.name = drafter.name
        self.kind: Literal["model_free", "model"] = drafter.kind
        self.seconds = 0.0

    def admit(self, request: Request) -> None:
        self._time(lambda: self._drafter.admit(request))

    def offer(self, requests: Sequence[Request]) -> list[Offer | None]:
        return self._time(lambda: self._drafter.offer(requests))

    def propose(self, requests: Sequence[Request], lengths: Sequence[int]) -> list[Draft]:
        return self._time(lambda: self._drafter.propose(requests, lengths))

    def extend(
        self,
        requests: Sequence[Request],
        drafts: Sequence[Sequence[int]],
        lengths: Sequence[int],
    ) -> list[Sequence[int]]:
        drafter = self._drafter
        if not isinstance(drafter, Tail):
            return [()] * len(requests)
        return self._time(lambda: drafter.extend(requests, drafts, lengths))

    def commit(self, commits: Sequence[Committed]) -> list[tuple[ShadowScore, ...]]:
        return self._time(lambda: self._drafter.commit(commits))

    def forget(self, request: int) -> None:
        self._time(lambda: self._drafter.forget(request))

    def work(self) -> bool:
        drafter = self._drafter
        return isinstance(drafter, Busy) and self._time(drafter.work)

    def _time(self, call: Callable[[], T]) -> T:
        begin = time.thread_time()
        try:
            return call()
        finally:
            self.seconds += time.thread_time() - begin
