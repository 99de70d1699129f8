"""How requests differ from what their drafts' buckets say: factors on the odds, in one table."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Mapping, Sequence

import numpy as np

from controller.correction import Correction
from controller.counts import Table

MAX_REQUESTS = 4096
REQUEST_MEMORY = 64
REQUEST_WEIGHT = 8.0

DEEPER = MAX_REQUESTS + 2
"""So far behind the factor of the first position lies that of the deeper ones."""


class Slots(dict[int, int]):
    """By request, where its odds for a drafter lie: 0, odds of 1, for those that taught nothing."""

    def __missing__(self, request: int) -> int:
        return 0


class _Pair:
    """How one request differs for one drafter: at the first position and at deeper ones."""

    __slots__ = ("deeper", "first", "slot")

    def __init__(self, slot: int) -> None:
        self.slot = slot
        self.first = Correction(REQUEST_MEMORY, REQUEST_WEIGHT)
        self.deeper = Correction(REQUEST_MEMORY, REQUEST_WEIGHT)


class RequestOdds:
    """The factors of all pairs of request and drafter, in one table, since planning reads many at
    once. At most MAX_REQUESTS pairs; the oldest is dropped for a new one.

    factors: at a pair's slot that of its first position, DEEPER behind it that of the others.
    table: the same memory, float64 [2, slots]."""

    def __init__(self) -> None:
        self._pairs: OrderedDict[tuple[int, str], _Pair] = OrderedDict()
        self._slots: dict[str, Slots] = {}
        self._free: list[int] = []
        self.factors = array("d", [1.0]) * (2 * DEEPER)
        self.table: Table = np.frombuffer(self.factors).reshape(2, -1)

    def __len__(self) -> int:
        return len(self._pairs)

    def slots(self, drafter: str) -> Mapping[int, int]:
        """The slot of every request for the drafter, the live mapping."""
        found = self._slots.get(drafter)
        if found is None:
            found = self._slots[drafter] = Slots()
        return found

    def learn(
        self,
        request: int,
        drafter: str,
        expected: Sequence[float],
        accepted: int,
        seen: int,
        chances: Sequence[float] = (),
    ) -> tuple[float, float]:
        """Positions 1..seen (>= 1) were verified, the first `accepted` of them accepted; expected:
        the rates a_1, a_2, ... of their bucket; chances: of the seen ones, where they are known.
        Returns the chances that this request had led to expect of position 1, and of position 2
        where it was reached, else 0."""
        pair = self._pairs.get((request, drafter)) or self._add(request, drafter)
        first, odds = expected[0], pair.first.odds
        mine = first * odds / (1.0 - first + first * odds)
        pair.first.learn(first, chances[0] if chances else accepted > 0)
        self.factors[pair.slot] = pair.first.odds
        if seen == 1:
            return mine, 0.0
        second, odds = expected[1], pair.deeper.odds
        second = second * odds / (1.0 - second + second * odds)
        if chances:
            for rate, chance in zip(expected[1:seen], chances[1:], strict=True):
                pair.deeper.learn(rate, chance)
        else:
            pair.deeper.learn_run(expected, accepted, seen)
        self.factors[DEEPER + pair.slot] = pair.deeper.odds
        return mine, second

    def _add(self, request: int, drafter: str) -> _Pair:
        if len(self._pairs) >= MAX_REQUESTS:
            self.drop(*next(iter(self._pairs)))
        slot = self._free.pop() if self._free else len(self._pairs) + 1
        pair = self._pairs[request, drafter] = _Pair(slot)
        self._slots.setdefault(drafter, Slots())[request] = slot
        return pair

    def drop(self, request: int, drafter: str) -> None:
        pair = self._pairs.pop((request, drafter), None)
        if pair is not None:
            del self._slots[drafter][request]
            self._free.append(pair.slot)
            self.factors[pair.slot] = self.factors[DEEPER + pair.slot] = 1.0

    def forget(self, request: int) -> None:
        for drafter in self._slots:
            self.drop(request, drafter)

    def forget_drafter(self, drafter: str) -> None:
        for request in list(self._slots.get(drafter, ())):
            self.drop(request, drafter)
