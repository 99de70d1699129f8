"""What a step takes beside verifying and drafting, by batch size and kind of step."""

from __future__ import annotations

import math
from statistics import median

from controller.shift import Shift

RATE = 0.05
FIRST_FACTOR, FIRST_MS = 4.0, 1.0
"""The first overhead of a kind of step counts at most so many times that of the nearest kind, and
so much more."""

Kind = tuple[int, bool]
"""Bits of the number of requests, and whether anybody drafts."""


class OverheadCost:
    """A slow mean per kind, in which one step counts at most twice what was expected, so that a
    stall does not move it far. A run of steps that are all far off is followed at once."""

    def __init__(self) -> None:
        self._ms: dict[Kind, float] = {}
        self._shifts: dict[Kind, Shift[float]] = {}

    def ms(self, requests: int, drafting: bool) -> float:
        """Falls back to the other kind of step, then to near sizes; 0 before any was seen."""
        size = requests.bit_length()
        for key in ((size, drafting), (size, not drafting)):
            if key in self._ms:
                return self._ms[key]
        if not self._ms:
            return 0.0
        return self._ms[min(self._ms, key=lambda k: abs(k[0] - size))]

    def learn(self, requests: int, drafting: bool, ms: float, step_ms: float) -> None:
        """One step of `step_ms` in all took `ms` beside its forwards."""
        key = (requests.bit_length(), drafting)
        old = self._ms.get(key)
        if old is None:
            first = FIRST_FACTOR * self.ms(requests, drafting) + FIRST_MS
            self._ms[key] = min(ms, first) if self._ms else ms  # a first one may stall too
            self._shifts[key] = Shift()
            return
        run: list[float] = []
        if old > 0.0 and ms > 0.0:
            run = self._shifts[key].add(math.log(ms) - math.log(old), step_ms, ms)
        self._ms[key] = median(run) if run else old + RATE * (min(ms, 2.0 * old + 0.1) - old)

    def report(self) -> dict[str, float]:
        return {
            f"{'draft' if drafting else 'plain'}, {2 ** (size - 1)} requests": round(ms, 4)
            for (size, drafting), ms in sorted(self._ms.items())
        }
