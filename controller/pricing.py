"""What a millisecond and a row are worth in tokens, before a step is planned.

Both follow from how much recent plans gained over plain decoding, so that a change of the batch is
priced in at once: the price of time per batch size would lag behind every change of load.
"""

from __future__ import annotations

from typing import NamedTuple

RATE = 0.1


class Price(NamedTuple):
    """per_ms: tokens that a millisecond of a step is worth; per_row: that a drafted row is."""

    per_ms: float
    per_row: float


class Pricing:
    """gain: goodput of recent plans over that of plain decoding; a plain mean at first, then
    over about ten steps. 1 before the first plan."""

    def __init__(self) -> None:
        self.gain = 1.0
        self._plans = 0

    def at(self, requests: int, plain_ms: float, row_ms: float) -> Price:
        """The price in a step that takes plain_ms without drafts and row_ms more for each row."""
        per_ms = self.gain * requests / plain_ms
        return Price(per_ms, per_ms * row_ms)

    def learn(self, gain: float) -> None:
        """A plan whose goodput is `gain` times plain decoding's."""
        self._plans += 1
        self.gain += max(RATE, 1.0 / self._plans) * (gain - self.gain)
