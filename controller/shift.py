"""Tells a lasting change of what something takes from noise and stalls.

A slow mean with clamped steps ignores stalls, and is late by minutes where steps are long and a
change is large. A change shows as a run: nearly all of the last few times lie far off on one side.
Runs of short steps are left to the slow mean, which takes many of them in the same time.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

LAST, RUN = 8, 6
"""A run: so many of the last ones are far off on the same side, ..."""
RUN_MS = 250.0
"""... and their steps took so long together."""
FAR, FAR_SPREADS = 0.3, 4.0
"""Far off: by this much (log), and by so many usual deviations."""
MOST = 0.2
"""A deviation counts as so much at most in the usual one."""
RATE = 1 / 64
FIRST_SPREAD = 0.05

T = TypeVar("T")


class Shift(Generic[T]):
    """The last times against what was expected of them. spread: their usual absolute deviation
    (log), over about 64 of them."""

    __slots__ = ("_last", "spread")

    def __init__(self) -> None:
        self._last: deque[tuple[float, float, T]] = deque(maxlen=LAST)
        self.spread = FIRST_SPREAD

    def add(self, error: float, step_ms: float, item: T) -> list[T]:
        """One more time: the log of measured over expected, in a step that took `step_ms`. The
        items of those that make a run, the oldest first, when there is one; it is forgotten."""
        self._last.append((error, step_ms, item))
        self.spread += RATE * (min(abs(error), MOST) - self.spread)
        far = max(FAR, FAR_SPREADS * self.spread)
        if abs(error) < far:
            return []
        sign = 1.0 if error > 0.0 else -1.0
        run = [one for one in self._last if sign * one[0] >= far]
        if len(run) < RUN or sum([ms for _, ms, _ in run]) < RUN_MS:
            return []
        self._last.clear()
        return [item for _, _, item in run]
