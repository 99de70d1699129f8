"""How requests and tenants differ from what drafts' buckets say: factors on the odds."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from controller.contract import RequestView
from controller.correction import Correction, shift
from controller.counts import Table

MAX_REQUESTS = 4096
REQUEST_MEMORY = 64
REQUEST_WEIGHT = 8.0

MAX_TENANTS = 1024
"""Pairs of tenant and drafter; the one that was not heard of for longest is dropped."""
TENANT_MEMORY = 500
TENANT_WEIGHT = 12.0

DEEPER = MAX_REQUESTS + MAX_TENANTS + 3
"""So far behind the factor of the first position lies that of the deeper ones."""


class Slots(dict[int, int]):
    """By request, where its odds for a drafter lie: where its tenant's do for those that taught
    nothing, 0, odds of 1, where that one did not either."""

    def __init__(self, tenant_of: Mapping[int, str]) -> None:
        super().__init__()
        self.tenants: dict[str | None, int] = {}
        self._tenant_of = tenant_of

    def __missing__(self, request: int) -> int:
        return self.tenants.get(self._tenant_of.get(request), 0)


class _Pair:
    """How a request or a tenant differs for one drafter: at the first position and deeper."""

    __slots__ = ("deeper", "first", "slot")

    def __init__(self, slot: int, memory: int, weight: float) -> None:
        self.slot = slot
        self.first = Correction(memory, weight)
        self.deeper = Correction(memory, weight)

    def learn(
        self, expected: Sequence[float], accepted: int, seen: int, chances: Sequence[float]
    ) -> tuple[float, float]:
        """See RequestOdds.learn."""
        correction = self.first
        first, odds = expected[0], correction.odds
        mine = first * odds / (1.0 - first + first * odds)
        correction.learn(first, chances[0] if chances else accepted > 0)
        if seen == 1:
            return mine, 0.0
        correction = self.deeper
        second, odds = expected[1], correction.odds
        second = second * odds / (1.0 - second + second * odds)
        if chances:
            for rate, chance in zip(expected[1:seen], chances[1:], strict=True):
                correction.learn(rate, chance)
        else:
            correction.learn_run(expected, accepted, seen)
        return mine, second


class RequestOdds:
    """The factors of all pairs of request or tenant and drafter, in one table, since planning reads
    many at once. At most MAX_REQUESTS pairs of requests; the oldest is dropped for a new one.

    A request's factor is its tenant's times what it differs from that by, so a new one starts as
    its tenant's others did. With one tenant alone there is no such level: the drafters' own rates
    are that tenant's.

    factors: at a pair's slot that of its first position, DEEPER behind it that of the others.
    table: the same memory, float64 [2, slots]."""

    def __init__(self) -> None:
        self._pairs: OrderedDict[tuple[int, str], _Pair] = OrderedDict()
        self._tenants: OrderedDict[tuple[str, str], _Pair] = OrderedDict()
        self._tenant_of: dict[int, str] = {}
        self._one: str | None = None  # the tenant, as long as there was but one
        self._many = False
        self._slots: dict[str, Slots] = {}
        self._free = list(range(MAX_REQUESTS + MAX_TENANTS + 2, 0, -1))
        self.factors = array("d", [1.0]) * (2 * DEEPER)
        self.table: Table = np.frombuffer(self.factors).reshape(2, -1)

    def __len__(self) -> int:
        return len(self._pairs)

    def meet(self, requests: Iterable[RequestView]) -> None:
        """Whose these requests are."""
        known = self._tenant_of
        for one in requests:
            if one.id not in known:
                if len(known) >= MAX_REQUESTS:
                    del known[next(iter(known))]
                known[one.id] = one.tenant
                if self._one is None:
                    self._one = one.tenant
                self._many = self._many or one.tenant != self._one

    def slots(self, drafter: str) -> Slots:
        """The slot of every request for the drafter, the live mapping."""
        found = self._slots.get(drafter)
        if found is None:
            found = self._slots[drafter] = Slots(self._tenant_of)
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
        if self._many:
            return self._learn_of_tenant(request, drafter, pair, expected, accepted, seen, chances)
        found = pair.learn(expected, accepted, seen, chances)
        self.factors[pair.slot] = pair.first.odds
        if seen > 1:
            self.factors[DEEPER + pair.slot] = pair.deeper.odds
        return found

    def _learn_of_tenant(
        self,
        request: int,
        drafter: str,
        pair: _Pair,
        expected: Sequence[float],
        accepted: int,
        seen: int,
        chances: Sequence[float],
    ) -> tuple[float, float]:
        """The same where there are several tenants: what the request differs by is counted against
        what its tenant led to expect."""
        first = deeper = 1.0
        if (tenant := self._tenant(request, drafter)) is not None:
            first, deeper = tenant.first.odds, tenant.deeper.odds
            tenant.learn(expected, accepted, seen, chances)
            self._write(tenant, tenant.first.odds, tenant.deeper.odds)
            others = [shift(rate, deeper) for rate in expected[1:seen]]
            expected = [shift(expected[0], first), *others]
        found = pair.learn(expected, accepted, seen, chances)
        self._write(pair, first * pair.first.odds, deeper * pair.deeper.odds)
        return found

    def _write(self, pair: _Pair, first: float, deeper: float) -> None:
        self.factors[pair.slot], self.factors[DEEPER + pair.slot] = first, deeper

    def _add(self, request: int, drafter: str) -> _Pair:
        if len(self._pairs) >= MAX_REQUESTS:
            self.drop(*next(iter(self._pairs)))
        pair = _Pair(self._free.pop(), REQUEST_MEMORY, REQUEST_WEIGHT)
        self._pairs[request, drafter] = pair
        self.slots(drafter)[request] = pair.slot
        return pair

    def _tenant(self, request: int, drafter: str) -> _Pair | None:
        """The pair of the request's tenant; None when nobody said whose the request is."""
        tenant = self._tenant_of.get(request)
        if tenant is None:
            return None
        key = tenant, drafter
        pair = self._tenants.get(key)
        if pair is None:
            if len(self._tenants) >= MAX_TENANTS:
                self._drop_tenant(next(iter(self._tenants)))
            pair = self._tenants[key] = _Pair(self._free.pop(), TENANT_MEMORY, TENANT_WEIGHT)
            self.slots(drafter).tenants[tenant] = pair.slot
        else:
            self._tenants.move_to_end(key)
        return pair

    def _drop_tenant(self, key: tuple[str, str]) -> None:
        tenant, drafter = key
        self._release(self._tenants.pop(key))
        del self._slots[drafter].tenants[tenant]

    def drop(self, request: int, drafter: str) -> None:
        pair = self._pairs.pop((request, drafter), None)
        if pair is not None:
            del self._slots[drafter][request]
            self._release(pair)

    def _release(self, pair: _Pair) -> None:
        self._free.append(pair.slot)
        self._write(pair, 1.0, 1.0)

    def forget(self, request: int) -> None:
        self._tenant_of.pop(request, None)
        for drafter in self._slots:
            self.drop(request, drafter)

    def forget_drafter(self, drafter: str) -> None:
        for request in list(self._slots.get(drafter, ())):
            self.drop(request, drafter)
        for key in [key for key in self._tenants if key[1] == drafter]:
            self._drop_tenant(key)
