"""A request in a call of a model drafter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.batch import Chunk
from engine.request import Request


@dataclass(frozen=True, slots=True)
class Lane:
    """ids: tokens of the request's committed text from slot `begin` on; with length >= 1 up to its
    last. length: tokens to draft. first: see Chunk."""

    request: Request
    pages: Sequence[int]
    begin: int
    ids: Sequence[int]
    length: int
    first: int = 0

    @property
    def end(self) -> int:
        return self.begin + len(self.ids)

    def chunk(self, ids: Sequence[int], start: int) -> Chunk:
        """Rows of it, of which no target token is wanted."""
        request = self.request
        return Chunk(
            request.id, ids, start, self.pages, request.draw, wanted=False, first=self.first
        )

    def slot(self, place: int, page_size: int) -> int:
        return self.pages[place // page_size] * page_size + place % page_size
