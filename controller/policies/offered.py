"""For how many of a policy's requests each drafter has a draft, lately."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from controller.contract import Offer

RATE = 1 / 64
"""How fast the shares follow."""


class OfferedShares:
    """Shares of requests by drafter, 0..1; all of them for a drafter that was never asked."""

    def __init__(self) -> None:
        self._shares: dict[str, float] = {}

    def add(self, drafters: Iterable[str], requests: int, offers: Sequence[Offer]) -> None:
        """Take in a step in which the drafters were asked for so many requests (>= 1)."""
        counts = dict.fromkeys(drafters, 0)
        for offer in offers:
            if offer.drafter in counts:
                counts[offer.drafter] += 1
        for name, count in counts.items():
            share = min(count / requests, 1.0)
            old = self._shares.get(name, share)
            self._shares[name] = old + RATE * (share - old)

    def of(self, drafter: str) -> float:
        return self._shares.get(drafter, 1.0)

    def forget(self, drafter: str) -> None:
        """The drafter is gone."""
        self._shares.pop(drafter, None)
