"""Which pages hold a drafter's half of their text, by the content keys of the prefix cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from engine.request import Request


@dataclass(slots=True, eq=False)
class Progress:
    """How far a drafter's keys and values of one request reach.

    pages: the request's, the list itself, so that it tells when they were given up. covered: the
    next slot to write. sealed: leading pages that the drafter has filled with what their content
    key stands for. noted: how many of these are known to Contents."""

    request: Request
    pages: list[int] = field(default_factory=list)
    covered: int = 0
    sealed: int = 0
    noted: int = 0


class Contents:
    """The content of a drafter's half of every page, where it is whole.

    A page's key covers the whole text up to its end, and what a drafter writes there is a function
    of that text; so a request whose page has the key finds there what it would write itself. An
    entry goes when the drafter writes to the page again.

    The keys of filled pages are computed at the end of a step, after the drafters have heard of
    it: `settle` notes those that are known by now. It must run once in every call of the drafter,
    before anything is written. keyed: False where no page ever gets a key."""

    def __init__(self, page_size: int, keyed: bool = True) -> None:
        self._size = page_size
        self._keyed = keyed
        self._keys: dict[int, bytes] = {}
        self._unsettled: dict[int, Progress] = {}

    def settle(self) -> None:
        """Note the pages that were sealed and whose keys are known. Of pages that were given up no
        more will be known: somebody else may write to them from now on."""
        for progress in list(self._unsettled.values()):
            self._note(progress)
            if progress.noted == progress.sealed or progress.pages is not progress.request.pages:
                del self._unsettled[progress.request.id]

    def seal(self, progress: Progress, pages: int) -> None:
        """The first `pages` pages of the request are whole."""
        if self._keyed and pages > progress.sealed:
            progress.sealed = pages
            self._unsettled[progress.request.id] = progress

    def overwrite(self, pages: Sequence[int], begin: int, end: int) -> None:
        """The slots begin..end - 1 of a request are written."""
        for index in range(begin // self._size, (end - 1) // self._size + 1):
            self._keys.pop(pages[index], None)

    def found(self, request: Request) -> int:
        """How many of the pages that the prefix cache found for it are whole here too, up to the
        first that is not."""
        for index in range(request.reused):
            if self._keys.get(request.pages[index]) != request.keys[index]:
                return index
        return request.reused

    def drop(self, request: int) -> None:
        """The request is over, or its pages were given up; what it sealed stays known."""
        progress = self._unsettled.pop(request, None)
        if progress is not None:
            self._note(progress)

    def _note(self, progress: Progress) -> None:
        keys = progress.request.keys
        known = min(progress.sealed, len(keys))
        for index in range(progress.noted, known):
            self._keys[progress.pages[index]] = keys[index]
        progress.noted = max(progress.noted, known)
