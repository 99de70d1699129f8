"""How steps differ from the calibrated table: a factor shared by all rows and one per bucket."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from controller.shift import Shift

DEAD_BAND = 0.02
INNOVATION, STALE_INNOVATION = 0.2, 0.6
SHARED_RATE = 0.04
OWN_RATE = 0.06
FRESH_STEPS = 256
SHARED_LIMIT = math.log(8.0)
OWN_LIMIT = math.log(4.0)
DRIFT_RATE = 1 / 64
DRIFT_ALARM = 0.05
FADE_STEPS = 64
FADE = 0.97
OWN_WEIGHT = 2.0
"""Steps of evidence for the shared factor alone, when all rows have jumped."""
CLEARLY = 2.0
"""One reason explains a run where the squares that it leaves are so many times fewer."""
KNOWN_STEPS = 8
"""Rows seen so often before are known: when their times change, the machine has."""


def row_bucket(rows: int) -> int:
    """Rows up to 16 each have their own correction, beyond that four buckets per doubling."""
    return rows if rows <= 16 else min(16 + int(4.0 * math.log2(rows / 16.0)), MOST_BUCKETS - 1)


MOST_BUCKETS = 64
BUCKETS = np.array([row_bucket(max(rows, 1)) for rows in range(4097)], np.intp)


class _Seen(NamedTuple):
    """A step. drafted: how many of its rows were; level: the log of its time over the table's; own:
    its bucket's correction before it; known: whether its rows were known."""

    bucket: int
    drafted: int
    ms: float
    level: float
    own: float
    known: bool


class Factors:
    """Corrections of the table, from residuals clamped to +-20 % and ignored within +-2 %. Rows not
    seen for a while learn faster and with a wider clamp, so that a few probes set them right. A run
    of steps that are all far off is followed at once (`_jump`)."""

    def __init__(self) -> None:
        self._by_bucket = np.ones(MOST_BUCKETS)
        self._shared = 0.0
        self._own: dict[int, float] = {}
        self._visits: dict[int, tuple[float, int]] = {}
        self._observed = 0
        self._residual = 0.0
        self._shift: Shift[_Seen] = Shift()
        self._owed: dict[int, float] = {}
        self.known_rows = 0
        """The most rows of steps that were known."""

    def of(self, rows: int) -> float:
        """The factor on the table's time of a step with so many rows."""
        return math.exp(self._shared + self._own.get(row_bucket(rows), 0.0))

    def between(self, first: int, last: int) -> NDArray[np.float64]:
        """[last - first + 1], of each number of rows; the caller's to change."""
        if last < len(BUCKETS):
            buckets = BUCKETS[first : last + 1]
        else:
            buckets = np.array([row_bucket(rows) for rows in range(first, last + 1)], np.intp)
        found = self._by_bucket[buckets]
        found *= math.exp(self._shared)
        return found

    @property
    def shared(self) -> float:
        return math.exp(self._shared)

    @property
    def spread(self) -> float:
        """Mean absolute relative residual of recent steps."""
        return self._shift.spread

    @property
    def drifting(self) -> bool:
        """Whether recent steps differ from the predictions by more than noise explains, or have
        just made a jump."""
        return abs(self._residual) > DRIFT_ALARM

    def learn(self, requests: int, rows: int, table_ms: float, ms: float) -> float:
        """A step that took `ms` where the table says `table_ms`. Returns by how much the machine
        was found to have become slower: 1.0 but where it changed at once."""
        bucket = row_bucket(rows)
        before, level = self._own.get(bucket, 0.0), math.log(ms / table_ms)
        error = level - self._shared - before
        self._observed += 1
        weight, last = self._visits.get(bucket, (0.0, 0))
        weight *= (1.0 - 1.0 / FRESH_STEPS) ** (self._observed - last)
        self._visits[bucket] = (weight + 1.0, self._observed)
        known = weight >= KNOWN_STEPS
        if known and rows > self.known_rows:
            self.known_rows = rows
        usual = _within(error, INNOVATION)
        self._residual += DRIFT_RATE * (usual - self._residual)
        seen = _Seen(bucket, rows - requests, ms, level, before, known)
        run = self._shift.add(error, ms, seen)
        if run:
            return self._jump(run)
        if self._observed % FADE_STEPS == 0:
            self._settle()
        if abs(error) >= DEAD_BAND:
            self._shared = _within(self._shared + SHARED_RATE * usual, SHARED_LIMIT)
            rate = max(OWN_RATE, 1.0 / (2.0 + weight))
            own = _within(error, INNOVATION + STALE_INNOVATION / (1.0 + weight))
            self._set_own(bucket, self._own.get(bucket, 0.0) + rate * own)
        return 1.0

    def _jump(self, run: Sequence[_Seen]) -> float:
        """Follow the run. What its rows took for their own meanwhile is given back first.

        Rows that are new, while others were known, are wrong in the table and move alone. Else it
        is the machine, which moves all rows, or drafted rows have another price, which moves them
        alone; where the run cannot tell, the change is divided as a single step's is, and what its
        rows got for their own is owed to the machine, should the next run be one of it."""
        for seen in reversed(run):
            self._set_own(seen.bucket, seen.own)
        old, told = self._shared, [seen for seen in run if seen.known]
        if 2 * len(told) < len(run) and self.known_rows:
            told, share = [], 0.0
        else:
            share = _of_the_machine(told or run, self._errors(told or run))
        change = median(self._errors(told or run))
        self._residual = math.copysign(2.0 * DRIFT_ALARM, change)
        if share:
            self._shared = _within(old + share * change, SHARED_LIMIT)
        alone = share < 1.0 or abs(old + change) > SHARED_LIMIT
        buckets = {seen.bucket for seen in run}
        owed, self._owed = self._owed, {}
        if share == 1.0:
            for bucket in owed.keys() - buckets:
                paid = max(min(owed[bucket] / change, 1.0), 0.0) * change
                self._set_own(bucket, self._own[bucket] - paid)
        for bucket in buckets:
            mine = [seen.level for seen in run if seen.bucket == bucket]
            weight = 1.0 if alone else len(mine) / (len(mine) + OWN_WEIGHT)
            own = self._own[bucket]
            self._set_own(bucket, own + weight * (median(mine) - self._shared - own))
            if 0.0 < share < 1.0:
                self._owed[bucket] = self._own[bucket] - own
        return math.exp(self._shared - old) if told else 1.0

    def _errors(self, run: Sequence[_Seen]) -> list[float]:
        """By how much (log) each step took longer than is thought now."""
        return [seen.level - self._own[seen.bucket] - self._shared for seen in run]

    def _settle(self) -> None:
        """Give what the visited rows have in common to the shared factor (their times stay, the
        others follow), and fade the own corrections: rows no longer visited would stay shunned."""
        total = sum(self._visits[b][0] for b in self._own)
        if total:
            common = sum(v * self._visits[b][0] for b, v in self._own.items()) / total / 2.0
            self._shared = _within(self._shared + common, SHARED_LIMIT)
            for bucket, value in list(self._own.items()):
                self._set_own(bucket, FADE * (value - common))

    def _set_own(self, bucket: int, value: float) -> None:
        self._own[bucket] = value = _within(value, OWN_LIMIT)
        self._by_bucket[bucket] = math.exp(value)

    def report(self) -> dict[str, float]:
        """The own corrections, by bucket."""
        return {str(b): round(math.exp(v), 4) for b, v in sorted(self._own.items())}


def _of_the_machine(run: Sequence[_Seen], errors: Sequence[float]) -> float:
    """The share of the run's change that all rows have: 1 where one factor explains it, 0 where a
    price of drafted rows does so much better."""
    if not all(seen.drafted for seen in run):
        return 1.0
    thought = [seen.ms * math.exp(-error) for seen, error in zip(run, errors, strict=True)]
    factor = median(errors)
    price = median([(s.ms - ms) / s.drafted for s, ms in zip(run, thought, strict=True)])
    by_factor = by_price = len(run) * DEAD_BAND**2
    for seen, ms, error in zip(run, thought, errors, strict=True):
        priced_ms = max(ms + price * seen.drafted, 0.01 * seen.ms)
        by_factor += (error - factor) ** 2
        by_price += math.log(seen.ms / priced_ms) ** 2
    if CLEARLY * by_factor < by_price:
        return 1.0
    return 0.0 if CLEARLY * by_price < by_factor else SHARED_RATE / (SHARED_RATE + OWN_RATE)


def _within(value: float, limit: float) -> float:
    return min(max(value, -limit), limit)
