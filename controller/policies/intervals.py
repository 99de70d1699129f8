"""Ratios of sums over requests with their intervals: what one arm of a comparison got."""

from __future__ import annotations

import math
from dataclasses import dataclass

Z90 = 1.645
"""Two-sided 90 %."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A ratio with its relative standard error, None with fewer than two requests."""

    value: float
    error: float | None

    def over(self, other: Estimate) -> Estimate:
        """This one over another that is independent of it and above 0."""
        errors = (self.error, other.error)
        joint = None if None in errors else math.hypot(*(e for e in errors if e is not None))
        return Estimate(self.value / other.value, joint)

    def report(self) -> dict[str, float | None]:
        """JSON-able, with a 90 % interval."""
        low = high = None
        if self.error is not None:
            low = round(self.value * math.exp(-Z90 * self.error), 4)
            high = round(self.value * math.exp(Z90 * self.error), 4)
        return {"value": round(self.value, 4), "low": low, "high": high}


class Ratio:
    """Sum of y over sum of x, one pair a request. Steps of a request resemble each other, so the
    error is that between requests (linearised). Constant memory."""

    __slots__ = ("_x", "_xx", "_xy", "_y", "_yy", "count")

    def __init__(self) -> None:
        self.count = 0
        self._x = self._y = self._xx = self._xy = self._yy = 0.0

    def add(self, y: float, x: float) -> None:
        self.count += 1
        self._x += x
        self._y += y
        self._xx += x * x
        self._xy += x * y
        self._yy += y * y

    def estimate(self) -> Estimate | None:
        """None while the sum of x is 0."""
        if self._x <= 0.0:
            return None
        value = self._y / self._x
        if self.count < 2 or value <= 0.0:
            return Estimate(value, None)
        squares = max(self._yy - 2.0 * value * self._xy + value * value * self._xx, 0.0)
        error = math.sqrt(squares * self.count / (self.count - 1)) / self._y
        return Estimate(value, error)
