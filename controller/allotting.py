"""Lengths turned into allotments, one per request."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from controller.contract import NONE, Allotment, BatchView
from controller.lineup import Lineup

MAX_REQUESTS = 4096


class Allotter:
    """Plain decoding is the commonest allotment and never changes, so it is made once for each
    running request."""

    def __init__(self) -> None:
        self._plains: OrderedDict[int, Allotment] = OrderedDict()

    def plain(self, batch: BatchView) -> tuple[Allotment, ...]:
        """Plain decoding for everybody."""
        return tuple([self._plain(request.id) for request in batch.requests])

    def allot(
        self,
        batch: BatchView,
        lineup: Lineup,
        placed: Sequence[tuple[int, int]],
        lengths: Sequence[int],
    ) -> tuple[Allotment, ...]:
        """In the batch's order. placed: (place in lineup.all, length) of the given lengths;
        lengths: of lineup.free."""
        found: list[Allotment | None] = [None] * len(batch.requests)
        for place, length in placed:
            i, name = lineup.all.requests[place], lineup.all.drafters[place]
            found[i] = Allotment(batch.requests[i].id, name, length)
        free = lineup.free
        tail = (free.chain.tail if free.chain is not None else None) or ""
        for place, length in enumerate(lengths):
            if length:
                i, more = free.requests[place], free.tail(place, length)
                request, name = batch.requests[i].id, free.drafters[place]
                if more:
                    found[i] = Allotment(request, name, length - more, tail, more)
                else:
                    found[i] = Allotment(request, name, length)
        pairs = zip(found, batch.requests, strict=True)
        return tuple([one or self._plain(request.id) for one, request in pairs])

    def forget(self, request: int) -> None:
        self._plains.pop(request, None)

    def _plain(self, request: int) -> Allotment:
        found = self._plains.get(request)
        if found is None:
            found = self._plains[request] = Allotment(request, NONE, 0)
            if len(self._plains) > MAX_REQUESTS:
                self._plains.popitem(last=False)
        return found
