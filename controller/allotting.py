"""Lengths turned into allotments, one per request."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat

from controller.choices import Lengths
from controller.contract import NONE, Allotment, BatchView
from controller.lineup import Lineup
from controller.probing import Swap

MOST_KEPT = 2048


class Allotter:
    """Most allotments come again in the next steps, so they are kept a while and not made again."""

    def __init__(self) -> None:
        self._kept = _Kept()

    def plain(self, batch: BatchView) -> tuple[Allotment, ...]:
        """Plain decoding for everybody."""
        return tuple(self._plain(batch))

    def allot(
        self,
        batch: BatchView,
        lineup: Lineup,
        placed: Sequence[tuple[int, int]],
        lengths: Lengths,
        swaps: Sequence[Swap] = (),
        barred: bool = False,
    ) -> tuple[Allotment, ...]:
        """In the batch's order. placed: (place in lineup.all, length) of the given lengths;
        lengths: of lineup.free; swaps: what a probe puts in the place of some; barred: the chain's
        drafts end at its bars."""
        found, kept = self._plain(batch), self._kept
        for place, length in placed:
            i = lineup.all.requests.item(place)
            found[i] = kept[found[i].request, lineup.all.drafter(place), length]
        free, drafts = lineup.free, lengths.nonzero()[0]
        requests, who = free.requests[drafts].tolist(), free.who[drafts].tolist()
        names, chain = free.names, free.chain
        tail = (chain.tail if chain is not None else None) or ""
        for i, code, length in zip(requests, who, lengths[drafts].tolist(), strict=True):
            own = free.depth(code, length) if tail else length
            if own < length:
                found[i] = Allotment(found[i].request, names[code], own, tail, length - own)
            else:
                found[i] = kept[found[i].request, names[code], length]
        if barred and chain is not None and chain.bars is not None:
            for i in requests:
                if found[i].drafter == chain.head and (bar := chain.bars[i]) is not None:
                    found[i] = found[i]._replace(bar=bar)
        for swap in swaps:
            found[swap.place] = swap.allotment
        return tuple(found)

    def _plain(self, batch: BatchView) -> list[Allotment]:
        if len(self._kept) > MOST_KEPT:
            self._kept.clear()
        ids = [request.id for request in batch.requests]
        return list(map(self._kept.__getitem__, zip(ids, repeat(NONE), repeat(0))))


class _Kept(dict[tuple[int, str, int], Allotment]):
    """Allotments without a tail."""

    def __missing__(self, key: tuple[int, str, int]) -> Allotment:
        made = self[key] = Allotment(*key)
        return made
