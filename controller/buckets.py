"""The buckets of a drafter: match length x streak x source, each with a row of its own."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence

from controller.contract import Features

MATCH_EDGES = (2, 3, 4, 6, 9, 17)
STREAK_EDGES = (1, 2, 4)
MAX_SOURCES = 8

MATCHES = [0] + [1 + bisect_right(MATCH_EDGES, n) for n in range(1, MATCH_EDGES[-1] + 1)]
"""Bucket by match length: 0 without one; the last holds for everything longer."""
STREAKS = [bisect_right(STREAK_EDGES, n) for n in range(STREAK_EDGES[-1] + 1)]

MOST_KNOWN = 1024
"""So many features are remembered with their rows; they come again and again."""


class Buckets:
    """Rows by features, made as they are met; sources beyond the first eight share one.

    new(match bucket): a new row. rows: of the buckets met so far."""

    __slots__ = ("_held", "_known", "_new", "_rows", "_sources")

    def __init__(self, new: Callable[[int], int]) -> None:
        self._new = new
        self._rows: dict[tuple[int, int, str], int] = {}
        self._sources: set[str] = set()
        self._known: dict[int, int] = {}
        self._held: list[Features] = []

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def rows(self) -> list[int]:
        return list(self._rows.values())

    def find(self, features: Sequence[Features]) -> list[int]:
        """The row of each. The same few values come again and again, and an identity is fast to
        look up."""
        try:
            return list(map(self._known.__getitem__, map(id, features)))
        except KeyError:
            return self._find_new(features)

    def _find_new(self, features: Sequence[Features]) -> list[int]:
        if len(self._known) > MOST_KNOWN:
            self._known.clear()
            self._held.clear()
        for one in features:
            if id(one) not in self._known:
                self._known[id(one)] = self.row(one)
                self._held.append(one)  # an identity is one's own only as long as one lives
        return [self._known[id(one)] for one in features]

    def row(self, features: Features) -> int:
        match, streak, source = features.match_length, features.streak, features.source
        match = MATCHES[match] if match < len(MATCHES) else MATCHES[-1]
        streak = STREAKS[streak] if streak < len(STREAKS) else STREAKS[-1]
        row = self._rows.get((match, streak, source))
        return self._add(match, streak, source) if row is None else row

    def _add(self, match: int, streak: int, source: str) -> int:
        if source not in self._sources:
            if len(self._sources) < MAX_SOURCES:
                self._sources.add(source)
            else:
                source = "*"
        key = (match, streak, source)
        row = self._rows.get(key)
        if row is None:
            row = self._rows[key] = self._new(match)
        return row
