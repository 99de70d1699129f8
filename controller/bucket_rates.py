"""Acceptance by bucket: discounted counts, shrunk to what the drafter does for such a match."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from controller.counts import POSITIONS, Counts, Table

BUCKET_MEMORY = 400
BUCKET_WEIGHT = 8.0
CUT_WEIGHT = 8.0
"""Drafts that a bucket is left with when the content has changed."""
LOWEST, HIGHEST = 0.005, 0.995

FIRST_BY_MATCH = (0.12, 0.2, 0.3, 0.4, 0.55, 0.7, 0.8)
"""Prior of a_1 of model-free drafters by match bucket: .2 for a short match, rising."""
MODEL_RATE = 0.7
"""Flat prior of drafters that report no match length."""
PRIORS = (MODEL_RATE, *FIRST_BY_MATCH)
"""Prior of a_1 by bucket of the match length."""

FIRST_LENGTH = 16
"""Positions that are looked up at once while learning."""


class BucketRates:
    """The buckets of all drafters, a row each, with a table of their odds for plans of many drafts.

    priors: of a_1, by row. settled: the table is as new as the counts. planned: the last plan read
    the table; while it did, learning expects what stood there."""

    def __init__(self) -> None:
        self.counts = Counts(BUCKET_MEMORY)
        self.priors: list[float] = []
        self._kinds = np.zeros(0, np.intp)
        self._parents = np.zeros((0, POSITIONS))
        self._rates = np.zeros((0, POSITIONS))
        self._before: dict[int, list[float]] = {}
        self._curves: list[dict[int, list[float]]] = []
        """By drafter, the curves of rows that nothing was learned of since they were read."""
        self.odds: Table = np.zeros((POSITIONS, 0))
        self.settled = self.planned = False

    def add_drafter(self) -> int:
        """Its number. What its rows are shrunk to is 0 until it is given."""
        self._parents = np.vstack((self._parents, np.zeros((len(PRIORS), POSITIONS))))
        self._curves.append({})
        return len(self._parents) // len(PRIORS) - 1

    def add_row(self, drafter: int, match: int) -> int:
        """A new row for a match bucket of the drafter of this number."""
        self._kinds = np.append(self._kinds, np.intp(drafter * len(PRIORS) + match))
        self.priors.append(PRIORS[match])
        self.settled = False
        return self.counts.add_row()

    def parents(self, drafter: int) -> Table:
        """[match buckets, POSITIONS], what the rows of a drafter are shrunk to; to be written."""
        self.settled = False
        self._curves[drafter].clear()
        return self._parents[drafter * len(PRIORS) : (drafter + 1) * len(PRIORS)]

    def learn(self, row: int, accepted: int, seen: int, chances: Sequence[float]) -> None:
        """Count a draft whose positions 1..seen were verified, the first `accepted` of them
        accepted; chances: of the seen ones, where they are known, which then count instead."""
        if chances:
            self.counts.learn_chances(row, chances)
        else:
            self.counts.learn(row, accepted, seen)
        self._changed(row)

    def clear(self, row: int) -> None:
        """A row without observations again."""
        self.counts.clear(row)
        self._changed(row)

    def _changed(self, row: int) -> None:
        self._curves[self._kinds.item(row) // len(PRIORS)].pop(row, None)
        self.settled = False

    def expected(self, row: int, length: int) -> list[float]:
        """a_1 .. a_length or more of a row as planned with, before this step's news."""
        found = self._before.get(row)
        if found is None or len(found) < length:
            length = max(length, FIRST_LENGTH)
            if self.planned and row < len(self._rates):
                found = self._rates[row, :length].tolist()
            else:
                found = self.curve(row, length)
            self._before[row] = found
        return found

    def begin_plan(self) -> None:
        """What is learned from now on was expected by the counts as they are."""
        self._before.clear()

    def curve(self, row: int, length: int) -> list[float]:
        """a_1 .. a_length of a row."""
        kind = self._kinds.item(row)
        curves = self._curves[kind // len(PRIORS)]
        known = curves.get(row)
        if known is not None and len(known) >= length:
            return known[:length]
        at, found = row * POSITIONS, []
        hits, trials = self.counts.accepted, self.counts.reached
        parents = self._parents[kind, :length].tolist()
        for k, parent in enumerate(parents, at):
            rate = (parent * BUCKET_WEIGHT + hits[k]) / (trials[k] + BUCKET_WEIGHT)
            found.append(min(max(rate, LOWEST), HIGHEST))
        curves[row] = found
        return found[:]

    def cut(self, rows: Sequence[int], positions: slice) -> None:
        """The content has changed: the rows keep little of what they counted at these positions."""
        self.counts.cut(rows, positions, CUT_WEIGHT)
        for row in rows:
            self._changed(row)

    def settle(self) -> None:
        """Bring the table up to date."""
        if self.settled:
            return
        rows = self.counts.rows
        accepted, reached = self.counts.tables()
        rates = self._parents.take(self._kinds[:rows], 0)
        rates *= BUCKET_WEIGHT
        rates += accepted[:rows]
        rates /= reached[:rows] + BUCKET_WEIGHT
        np.maximum(rates, LOWEST, out=rates)
        np.minimum(rates, HIGHEST, out=rates)
        self._rates = rates
        self.odds = np.ascontiguousarray((rates / (1.0 - rates)).T)
        self.settled = True
