"""When to look for drafts at all: asking the drafters and scoring their shadows takes time too."""

from __future__ import annotations

import math

PATIENCE = 32
"""Looks without a gain before resting, and the most that gains are remembered for."""
SHARE = 0.002
"""Looking that finds nothing may take this share of the time."""
LONGEST_REST = 32
ASSUMED_SHARE = 0.01
"""Share of a plain step that a look is thought to take until it was measured."""
RATE = 0.05
STALL = 3.0
FIRST_MS = 1.0


class Attention:
    """Rests between looks where drafting has not paid for the looking lately.

    A look earns what its plan is predicted to save over plain decoding and costs what it was
    measured to take: the time beside the forward of plain steps with a look, less that of steps
    without. While the balance is above 0 every step looks; after that one in so many that looking
    takes 0.2 % of the time. Any gain above the price of a look brings the looks back."""

    def __init__(self) -> None:
        self._balance: float | None = None
        self._rest = 0
        self._beside: dict[tuple[int, bool], float] = {}

    @property
    def looks(self) -> bool:
        """Whether the next step looks."""
        return self._rest == 0

    def rested(self) -> None:
        """A step without a look was planned."""
        self._rest -= 1

    def looked(self, requests: int, gain_ms: float, plain_ms: float) -> None:
        """A step with a look was planned: its gain over a plain step of `plain_ms`."""
        price = self.look_ms(requests)
        if price is None:
            price = ASSUMED_SHARE * plain_ms
        most = PATIENCE * price
        if self._balance is None:
            self._balance = most
        self._balance = min(self._balance + gain_ms - price, most)
        if self._balance <= 0.0 and price > SHARE * plain_ms:
            self._balance = 0.0
            self._rest = min(math.ceil(price / (SHARE * plain_ms)), LONGEST_REST) - 1

    def measured(self, requests: int, looked: bool, beside_ms: float) -> None:
        """A plain step took so much time beside its forward."""
        key = (requests.bit_length(), looked)
        old, other = self._beside.get(key), self._beside.get((key[0], not looked))
        if old is not None:
            beside_ms = old + RATE * (min(beside_ms, STALL * old + 0.1) - old)
        elif other is not None:  # a first one may stall too
            beside_ms = min(beside_ms, STALL * other + FIRST_MS)
        self._beside[key] = beside_ms

    def look_ms(self, requests: int) -> float | None:
        """What a look takes at this batch size; None until both kinds of steps were measured."""
        size = requests.bit_length()
        with_look, without = self._beside.get((size, True)), self._beside.get((size, False))
        if with_look is None or without is None:
            return None
        return max(with_look - without, 0.0)

    def reset(self) -> None:
        """Something changed: look at every step for a while."""
        self._balance = None
        self._rest = 0

    def report(self) -> dict[str, object]:
        looks = {2 ** (n - 1): self.look_ms(2 ** (n - 1)) for n, _ in sorted(self._beside)}
        return {
            "looks": self.looks,
            "look_ms": {str(n): round(ms, 4) for n, ms in looks.items() if ms is not None},
        }
