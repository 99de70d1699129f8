"""How the odds of acceptance differ from what was expected, discounted and shrunk to 1."""

from __future__ import annotations

from collections.abc import Sequence

LEAST_ODDS, MOST_ODDS = 1 / 8, 8.0


def shift(rate: float, odds: float) -> float:
    """The rate whose odds are `odds` times those of `rate`."""
    return rate * odds / (1.0 - rate + rate * odds)


class Correction:
    """A factor on the odds, from trials and the rates that were expected of them.

    memory: trials after which an old one counts 1/e; weight: trials of evidence for 1."""

    __slots__ = ("_accepts", "_expected", "_keep", "_missed", "_rejects", "_weight", "odds")

    def __init__(self, memory: int, weight: float) -> None:
        self._keep = 1.0 - 1.0 / memory
        self._weight = weight
        self._accepts = self._rejects = self._expected = self._missed = 0.0
        self.odds = 1.0

    def learn(self, rate: float, hit: float) -> None:
        """One trial that was expected to succeed with probability `rate`; hit: whether it did, or
        the chance that it had. `odds` follows."""
        keep = self._keep
        self._accepts = accepts = keep * self._accepts + hit
        self._rejects = rejects = keep * self._rejects + (1.0 - hit)
        self._expected = expected = keep * self._expected + rate
        self._missed = missed = keep * self._missed + 1.0 - rate
        weight = self._weight
        odds = (accepts + weight) / (expected + weight) * ((missed + weight) / (rejects + weight))
        self.odds = LEAST_ODDS if odds < LEAST_ODDS else MOST_ODDS if odds > MOST_ODDS else odds

    def learn_run(self, rates: Sequence[float], hits: int, seen: int) -> None:
        """Trials 1..seen-1 of a run (0 is left out), of which those before `hits` succeeded."""
        keep, expected, missed = self._keep, self._expected, self._missed
        accepts, rejects = self._accepts, self._rejects
        for k in range(1, seen):
            rate, hit = rates[k], k < hits
            accepts = keep * accepts + hit
            rejects = keep * rejects + (not hit)
            expected = keep * expected + rate
            missed = keep * missed + 1.0 - rate
        self._accepts, self._rejects = accepts, rejects
        self._expected, self._missed = expected, missed
        self._update()

    def learn_many(self, rates: Sequence[float], hits: float) -> None:
        """As many trials as rates in no order, `hits` of which succeeded."""
        trials = len(rates)
        if not trials:
            return
        old = self._keep**trials
        new = (1.0 - old) / (1.0 - self._keep) / trials
        total = sum(rates)
        self._accepts = old * self._accepts + new * hits
        self._rejects = old * self._rejects + new * (trials - hits)
        self._expected = old * self._expected + new * total
        self._missed = old * self._missed + new * (trials - total)
        self._update()

    def _update(self) -> None:
        weight = self._weight
        odds = (self._accepts + weight) / (self._expected + weight)
        odds *= (self._missed + weight) / (self._rejects + weight)
        self.odds = LEAST_ODDS if odds < LEAST_ODDS else min(odds, MOST_ODDS)
