"""Pages of the KV pool: who holds which, with contiguous runs preferred."""

from __future__ import annotations

from bisect import bisect_left, insort


class Pages:
    """Allocator of page ids 0..total-1. Host integers only; storage lives elsewhere.

    Runs are given out contiguously when a free run is long enough, because attention then reads
    keys and values in place instead of gathering them."""

    def __init__(self, total: int, page_size: int) -> None:
        self.total = total
        self.page_size = page_size
        self._runs: list[tuple[int, int]] = [(0, total)] if total else []  # (first, length), sorted
        self._free = total
        self._held: dict[int, list[int]] = {}

    @property
    def free(self) -> int:
        return self._free

    def needed(self, tokens: int) -> int:
        """Pages that hold `tokens` tokens."""
        return -(-tokens // self.page_size)

    def allocate(self, owner: int, count: int) -> list[int] | None:
        """Give `count` pages to owner, best-fitting run first; None when too few are free."""
        if count > self._free:
            return None
        if owner in self._held:
            raise ValueError(f"request {owner} already holds pages")
        fitting = [run for run in self._runs if run[1] >= count]
        taken: list[int] = []
        if fitting:
            self._take(min(fitting, key=lambda run: run[1]), count, taken)
        else:
            for run in sorted(self._runs, key=lambda run: -run[1]):
                self._take(run, min(run[1], count - len(taken)), taken)
                if len(taken) == count:
                    break
        self._free -= count
        self._held[owner] = taken
        return taken

    def _take(self, run: tuple[int, int], count: int, taken: list[int]) -> None:
        first, length = run
        index = bisect_left(self._runs, run)
        if length == count:
            del self._runs[index]
        else:
            self._runs[index] = (first + count, length - count)
        taken.extend(range(first, first + count))

    def release(self, owner: int) -> None:
        """Take back every page of owner; unknown owners hold none."""
        pages = self._held.pop(owner, None)
        if not pages:
            return
        self._free += len(pages)
        for page in pages:
            insort(self._runs, (page, 1))
        merged: list[tuple[int, int]] = []
        for first, length in self._runs:
            if merged and merged[-1][0] + merged[-1][1] == first:
                merged[-1] = (merged[-1][0], merged[-1][1] + length)
            else:
                merged.append((first, length))
        self._runs = merged

    def check(self) -> None:
        """Raise AssertionError unless every page is free or held exactly once."""
        seen = [page for first, length in self._runs for page in range(first, first + length)]
        assert len(seen) == self._free, f"{len(seen)} pages in runs, {self._free} counted free"
        for pages in self._held.values():
            seen.extend(pages)
        assert sorted(seen) == list(range(self.total)), "a page is lost or held twice"
