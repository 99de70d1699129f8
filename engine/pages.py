"""Pages of the KV pool: free, held by requests, or kept for their content."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Sequence

from engine.runs import Runs


class Pages:
    """Allocator of page ids 0..total-1. Host integers only; storage lives elsewhere.

    A page is free, held (by one request, or by several that share its content), or kept: it has
    no holder, but its content is known under a key and may be wanted again. Kept pages give way,
    the longest unused first, when free pages run out.

    Every request gets consecutive pages where it can, with room to grow behind them. in_place: the
    attention then reads keys and values in place instead of gathering them, so that kept pages
    give way also when no run of free pages has the room that a new request is expected to want."""

    def __init__(self, total: int, page_size: int, *, in_place: bool = False) -> None:
        self.total = total
        self.page_size = page_size
        self._in_place = in_place
        self._runs = Runs(total)
        self._held: dict[int, list[int]] = {}
        self._holders = [0] * total
        self._wanted: dict[int, int] = {}  # page after a request's last -> pages it may still want
        self._kept: OrderedDict[int, None] = OrderedDict()  # the longest unused first
        self._key: dict[int, bytes] = {}
        self._page: dict[bytes, int] = {}

    @property
    def free(self) -> int:
        """Pages that a request can have: free or kept."""
        return self._runs.free + len(self._kept)

    @property
    def kept(self) -> int:
        """Pages without a holder whose content may be wanted again."""
        return len(self._kept)

    def needed(self, tokens: int) -> int:
        """Pages that hold `tokens` tokens."""
        return -(-tokens // self.page_size)

    def obtainable(self, owners: Sequence[int], shared: Sequence[int]) -> int:
        """Pages that a request could have beside the shared ones if `owners` released theirs."""
        held = Counter(page for owner in owners for page in self._held[owner])
        released = {page for page, count in held.items() if count == self._holders[page]}
        revived = sum(page in self._kept or page in released for page in shared)
        return self.free + len(released) - revived

    # --- requests -----------------------------------------------------------------------------

    def allocate(
        self,
        owner: int,
        count: int,
        expected: int = 0,
        shared: Sequence[int] = (),
        spare: int = 0,
    ) -> list[int] | None:
        """Give `owner` the shared pages and `count` >= 1 of its own after them; None, and no
        change, when fewer than `count + spare` are free beside the shared ones.

        expected: pages of its own that it may want in the end. The list grows with `grow`."""
        if owner in self._held:
            raise ValueError(f"request {owner} already holds pages")
        revived = sum(page in self._kept for page in shared)
        if count + spare > self.free - revived:
            return None
        for page in shared:
            self._holders[page] += 1
            self._kept.pop(page, None)
        expected = max(expected, count)
        if shared and self._runs.length(shared[-1] + 1) >= count:
            own = list(self._runs.take(shared[-1] + 1, 0, count))
        else:
            self._clear(expected if self._in_place else count)
            own = self._take(count, expected)
        self._hold(own, expected - count)
        self._held[owner] = pages = [*shared, *own]
        return pages

    def grow(self, owner: int, count: int) -> int:
        """Give `owner` up to `count` more pages, the next ones where they are free. Returns how
        many there were."""
        pages = self._held[owner]
        for added in range(count):
            if not self._runs.free and not self._evict():
                return added
            after = pages[-1] + 1
            wanted = max(0, self._wanted.pop(after, 0) - 1)
            if self._runs.length(after):
                own = list(self._runs.take(after, 0, 1))
            else:
                own = self._take(1, 1 + wanted)
            self._hold(own, wanted)
            pages += own
        return count

    def trim(self, owner: int, count: int) -> None:
        """Take back what `owner` holds beyond its first `count` >= 1 pages: never shared ones."""
        pages = self._held[owner]
        while len(pages) > count:
            page = pages.pop()
            self._wanted[pages[-1] + 1] = self._wanted.pop(page + 1, 0) + 1
            self._drop(page)

    def release(self, owner: int) -> None:
        """Take back every page of owner; unknown owners hold none."""
        pages = self._held.pop(owner, None)
        if not pages:
            return
        self._wanted.pop(pages[-1] + 1, None)
        for page in reversed(pages):  # the end of a text goes before its beginning
            self._drop(page)

    # --- content ------------------------------------------------------------------------------

    def find(self, key: bytes) -> int | None:
        """The page with this content."""
        return self._page.get(key)

    def name(self, page: int, key: bytes) -> None:
        """Make a held page known by its content, unless it or another with the same is known."""
        if key not in self._page and page not in self._key:
            self._page[key] = page
            self._key[page] = key

    def unname(self, page: int) -> None:
        """Forget the content of a page."""
        key = self._key.pop(page, None)
        if key is not None:
            del self._page[key]
            if page in self._kept:
                del self._kept[page]
                self._runs.add(page)

    def unname_all(self) -> None:
        """Forget the content of every page; those without a holder are free."""
        for page in list(self._key):
            self.unname(page)

    # --- inside -------------------------------------------------------------------------------

    def _hold(self, own: list[int], wanted: int) -> None:
        for page in own:
            self._holders[page] += 1
        if wanted:
            self._wanted[own[-1] + 1] = wanted

    def _drop(self, page: int) -> None:
        self._holders[page] -= 1
        if not self._holders[page]:
            if page in self._key:
                self._kept[page] = None
            else:
                self._runs.add(page)

    def _evict(self) -> tuple[int, int] | None:
        """Free the kept page that was unused for longest; the run it is now in."""
        if not self._kept:
            return None
        page, _ = self._kept.popitem(last=False)
        del self._page[self._key.pop(page)]
        return self._runs.add(page)

    def _clear(self, room: int) -> None:
        """Evict until so many pages are free, unless there are not so many at all; where pages
        are read in place, until a run has them, at most that many."""
        if not self._in_place:
            while self._runs.free < room and self._evict():
                pass
            return
        if self._runs.fitting(room, self._wanted) is not None:
            return
        for _ in range(room):
            run = self._evict()
            if run is None or run[1] - self._wanted.get(run[0], 0) >= room:
                return

    def _take(self, count: int, room: int) -> list[int]:
        """Take `count` free pages where `room` fits, else in the longest run, else scattered."""
        runs = self._runs
        place = runs.fitting(room, self._wanted) or runs.longest(count, self._wanted)
        if place is not None:
            return list(runs.take(*place, count))
        taken: list[int] = []
        for first, length in sorted(runs, key=lambda run: -run[1]):
            taken += runs.take(first, 0, min(length, count - len(taken)))
            if len(taken) == count:
                break
        return taken

    def check(self) -> None:
        """Raise AssertionError unless every page is free, kept or held, and in one way only, with
        as many holders as requests that list it."""
        holders = [0] * self.total
        for pages in self._held.values():
            for page in pages:
                holders[page] += 1
        assert holders == self._holders, "a page has more or fewer holders than counted"
        seen = [page for first, length in self._runs for page in range(first, first + length)]
        assert len(seen) == self._runs.free, f"{len(seen)} in runs, {self._runs.free} counted free"
        seen.extend(self._kept)
        seen.extend(page for page, count in enumerate(holders) if count)
        assert sorted(seen) == list(range(self.total)), "a page is lost or in two states"
        assert all(page in self._key for page in self._kept), "a kept page has no content"
        assert {page: key for key, page in self._page.items()} == self._key, "keys and pages differ"
        for first, length in self._runs:
            assert not any(page in self._key for page in range(first, first + length)), (
                "a free page has content"
            )
