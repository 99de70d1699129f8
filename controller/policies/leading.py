"""The most used drafter and the mean D of a plan that differs from request to request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from controller.contract import NONE, Allotment

RATE = 1 / 64
STARTS_AT, STOPS_AT = 0.15, 0.03
TAKES_OVER_AT = 1.25
HALF, DOUBLE = 0.5, 2.0
FORGOTTEN = 1e-4
"""The share of a drafter that is of no account."""


class Leading:
    """Means over about 64 steps. `drafter` and `length` follow them only where they clearly became
    others: another drafter by a quarter more requests, D + 1 doubled or halved."""

    def __init__(self) -> None:
        self.drafter = NONE
        self.length = 0.0
        self._shares: dict[str, float] = {}
        self._depth = 0.0
        self._steps = 0

    def add(self, allotments: Sequence[Allotment]) -> None:
        """Take in a planned step: what the policy's own requests got of it."""
        if not allotments:
            return
        self._steps += 1
        rate = max(RATE, 1.0 / self._steps)
        counts = dict.fromkeys(self._shares, 0)
        for one in allotments:
            if one.length:
                counts[one.drafter] = counts.get(one.drafter, 0) + 1
        for name, count in counts.items():
            old = self._shares.get(name, 0.0)
            self._shares[name] = old + rate * (count / len(allotments) - old)
            if not count and self._shares[name] < FORGOTTEN:
                del self._shares[name]
        depth = sum(one.length for one in allotments) / len(allotments)
        self._depth += rate * (depth - self._depth)
        drafter = self._leader()
        ratio = (self._depth + 1.0) / (self.length + 1.0)
        if drafter != self.drafter or not HALF < ratio < DOUBLE:
            self.drafter = drafter
            self.length = round(self._depth, 1) if drafter != NONE else 0.0

    def _leader(self) -> str:
        total = sum(self._shares.values())
        if total < (STARTS_AT if self.drafter == NONE else STOPS_AT):
            return NONE
        leader = max(self._shares, key=self._shares.__getitem__)
        own = self._shares.get(self.drafter, 0.0)
        if self.drafter in (NONE, leader) or self._shares[leader] > TAKES_OVER_AT * own:
            return leader
        return self.drafter

    def forget(self, drafter: str) -> None:
        """The drafter is gone."""
        self._shares.pop(drafter, None)
        if self.drafter == drafter:
            self.drafter, self.length = NONE, 0.0

    def describe(self) -> Mapping[str, object]:
        """Shares of requests by drafter, and the mean D per request."""
        return {
            "shares": {name: round(share, 4) for name, share in self._shares.items()},
            "mean_draft_length": round(self._depth, 3),
        }
