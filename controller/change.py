"""Notices that far more or fewer drafts are accepted than was expected: the content has changed.

Two cumulative sums of log likelihood ratios (Page, "Continuous inspection schemes", 1954): that the
odds of acceptance are CHANGE times those expected, and that they are 1 / CHANGE of them. A sum
begins anew at 0, so that what it has counted since is the time of the change. While expectations
are right, false alarms of each sum come exp(LEVEL) trials apart on average, or rarer (Lorden 1971).
"""

from __future__ import annotations

import math
from typing import NamedTuple

CHANGE = 4.0
"""Smaller changes are left to discounting, which follows them without forgetting the rest."""
LEVEL = 14.0
"""Alarms at odds of e^14, about 1.2 million, to 1."""
REST = 64.0
"""Trials before the first alarm, and between alarms: expectations are being learned."""


class Changed(NamedTuple):
    """What was seen since the change: trials, and hits among them."""

    trials: float
    hits: float


class _Sum:
    """One cumulative sum, and what it counted since it was 0."""

    __slots__ = ("_factor", "_log", "hits", "score", "trials")

    def __init__(self, factor: float) -> None:
        self._factor = factor - 1.0
        self._log = math.log(factor)
        self.clear()

    def clear(self) -> None:
        self.score = self.trials = self.hits = 0.0

    def add(self, trials: float, hits: float, expected: float) -> None:
        """By the mean of the expected rates: the logarithm is concave, so this raises fewer
        alarms, not more."""
        ratio = hits * self._log - trials * math.log1p(self._factor * expected / trials)
        if self.score + ratio <= 0.0:
            self.clear()
            return
        self.score += ratio
        self.trials += trials
        self.hits += hits


class ChangeTest:
    """Both sums over one kind of trial. alarms: so far."""

    __slots__ = ("_rest", "_sums", "alarms")

    def __init__(self) -> None:
        self._sums = (_Sum(CHANGE), _Sum(1.0 / CHANGE))
        self._rest = REST
        self.alarms = 0

    def add(self, trials: float, hits: float, expected: float) -> Changed | None:
        """Trials (> 0) of which `expected` were expected to succeed, the sum of their rates, and
        `hits` did. What was seen since the change, when there was one."""
        if self._rest > 0.0:
            self._rest -= trials
            return None
        for one in self._sums:
            one.add(trials, hits, expected)
            if one.score > LEVEL:
                found = Changed(one.trials, one.hits)
                self._restart()
                self.alarms += 1
                return found
        return None

    def _restart(self) -> None:
        self._rest = REST
        for one in self._sums:
            one.clear()
