"""Runs of consecutive free pages: merged on return, found by length for a request that grows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping


class Runs:
    """The free pages of 0..total-1 as maximal runs. Returning a page costs O(1)."""

    def __init__(self, total: int) -> None:
        self.free = total
        self._length = {0: total} if total else {}  # first page -> length
        self._first = {total: 0} if total else {}  # page after the run -> first page

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """(first page, length) of every run."""
        return iter(self._length.items())

    def length(self, first: int) -> int:
        """Length of the run that starts at a page; 0 when none does."""
        return self._length.get(first, 0)

    def add(self, page: int) -> tuple[int, int]:
        """Return a page; gives the run (first, length) that it is now in."""
        first, end = page, page + 1
        if page in self._first:
            first = self._first.pop(page)
        if end in self._length:
            end += self._length.pop(end)
        self._length[first] = end - first
        self._first[end] = first
        self.free += 1
        return first, end - first

    def take(self, first: int, offset: int, count: int) -> range:
        """Take `count` pages, from `offset` on, out of the run that starts at `first`."""
        length = self._length.pop(first)
        begin, end = first + offset, first + length
        del self._first[end]
        if offset:
            self._length[first] = offset
            self._first[begin] = first
        if begin + count < end:
            self._length[begin + count] = end - begin - count
            self._first[end] = begin + count
        self.free -= count
        return range(begin, begin + count)

    def fitting(self, room: int, wanted: Mapping[int, int]) -> tuple[int, int] | None:
        """(first page, offset) of the tightest place for `room` pages, or None.

        wanted: first page of a run -> pages at its start that the request before it may want."""
        best: tuple[int, int] | None = None
        tightest = 0
        for first, length in self._length.items():
            offset = wanted.get(first, 0)
            left = length - offset
            if left >= room and (best is None or left < tightest):
                best, tightest = (first, offset), left
        return best

    def longest(self, count: int, wanted: Mapping[int, int]) -> tuple[int, int] | None:
        """(first page, offset) of `count` pages in the longest run, or None when it is shorter.

        What is left of the run is shared with the request before it."""
        if not self._length:
            return None
        first, length = max(self._length.items(), key=lambda run: run[1])
        if length < count:
            return None
        return first, min(wanted.get(first, 0), (length - count) // 2)
