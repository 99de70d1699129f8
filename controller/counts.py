"""Discounted counts of accepted and reached draft positions, readable one by one and as a table.

Learning touches a few numbers, planning reads many rows at once: flat arrays of doubles serve the
first at the speed of a list, and numpy sees the same memory for the second.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

POSITIONS = 32
"""Positions kept apart; deeper ones read the last."""

Table = NDArray[np.float64]

FIRST_ROWS = 16


def decay(keep: float, trials: int) -> tuple[float, float]:
    """What is left of old counts after so many trials, and the weight of these together."""
    old = keep**trials
    return old, (1.0 - old) / (1.0 - keep)


class Counts:
    """Rows of POSITIONS counts each. `memory`: drafts after which an old one counts 1/e."""

    __slots__ = ("_powers", "_tables", "accepted", "keep", "reached", "rows")

    def __init__(self, memory: int) -> None:
        self.keep = 1.0 - 1.0 / memory
        self.rows = 0
        self._powers = [decay(self.keep, n) for n in range(65)]
        self.accepted = array("d")
        self.reached = array("d")
        self._tables: tuple[Table, Table] | None = None

    def add_row(self) -> int:
        """A new row without observations; its number."""
        if (self.rows + 1) * POSITIONS > len(self.reached):
            self._tables = None  # numpy holds the memory: let go before it moves
            more = bytes(8 * POSITIONS * max(self.rows, FIRST_ROWS))
            self.accepted.frombytes(more)
            self.reached.frombytes(more)
        self.rows += 1
        return self.rows - 1

    def clear(self, row: int) -> None:
        """A row without observations again."""
        for k in range(row * POSITIONS, (row + 1) * POSITIONS):
            self.accepted[k] = self.reached[k] = 0.0

    def cut(self, rows: Sequence[int], positions: slice, most: float) -> None:
        """Cut the memory of these positions to `most` reached; their rates stay."""
        hits, trials = self.tables()
        for row in rows:
            reached = trials[row, positions]
            kept = most / np.maximum(reached, most)
            reached *= kept
            hits[row, positions] *= kept

    def tables(self) -> tuple[Table, Table]:
        """(accepted, reached), float64 [rows or more, POSITIONS], the live memory."""
        if self._tables is None:
            self._tables = (
                np.frombuffer(self.accepted).reshape(-1, POSITIONS),
                np.frombuffer(self.reached).reshape(-1, POSITIONS),
            )
        return self._tables

    def learn(self, row: int, accepted: int, seen: int) -> None:
        """Positions 1..seen were reached and verified, the first `accepted` of them accepted;
        accepted <= seen <= POSITIONS."""
        keep, hits, trials = self.keep, self.accepted, self.reached
        at = row * POSITIONS
        for k in range(at, at + accepted):
            trials[k] = keep * trials[k] + 1.0
            hits[k] = keep * hits[k] + 1.0
        for k in range(at + accepted, at + seen):
            trials[k] = keep * trials[k] + 1.0
            hits[k] *= keep

    def learn_chances(self, row: int, chances: Sequence[float]) -> None:
        """As many positions as chances, at most POSITIONS, were reached and verified; each had this
        chance to be accepted."""
        keep, hits, trials = self.keep, self.accepted, self.reached
        for k, chance in enumerate(chances, row * POSITIONS):
            trials[k] = keep * trials[k] + 1.0
            hits[k] = keep * hits[k] + chance

    def learn_many(self, row: int, accepted: Sequence[int], seen: Sequence[int]) -> None:
        """The same for several drafts in no order, at the discount of their mean place."""
        keep, hits, trials, powers = self.keep, self.accepted, self.reached, self._powers
        at = row * POSITIONS
        right, reached = [0] * (POSITIONS + 1), [0] * (POSITIONS + 1)
        for n in accepted:
            right[n] += 1
        for n in seen:
            reached[n] += 1
        passed = tried = 0
        for k in range(max(seen), 0, -1):
            passed += right[k]
            tried += reached[k]
            old, new = powers[tried] if tried < len(powers) else decay(keep, tried)
            trials[at + k - 1] = old * trials[at + k - 1] + new
            hits[at + k - 1] = old * hits[at + k - 1] + new * passed / tried
