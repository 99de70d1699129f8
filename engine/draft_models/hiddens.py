"""The target's hidden states of one request that a head has not used yet."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from engine.draft_models.contents import Progress

HELD = 32
"""Rows that a request which the head does not draft for keeps before they are written."""


@dataclass(slots=True, eq=False)
class Hiddens(Progress):
    """Progress of a head: its row at slot j takes h_{j-1}, so the first row kept is that of
    position covered - 1.

    rows: [HELD + most rows of a step, k * d], the first `held` of them are kept. first: the first
    slot that has keys and values; the text before it is unknown to the head. whole: nothing of the
    text is, so that what is written is a function of the text alone. covered is 0 until a row was
    kept."""

    rows: Tensor | None = None
    held: int = 0
    first: int = 0
    whole: bool = False

    def begin(self, position: int) -> None:
        """Nothing is kept; the next row is that of this position, and what came before is lost."""
        self.covered = self.first = position + 1
        self.held = 0
        self.whole = position == 0

    def lose(self) -> None:
        """Nothing that is kept or written can be relied on."""
        self.covered = self.first = self.held = 0
        self.whole = False

    def place(self, start: int) -> int:
        """Where the row of position `start` belongs among those kept; negative when it was used
        already. A row that does not follow on those kept begins anew."""
        place = start - (self.covered - 1)
        if not self.covered or place > self.held:
            self.begin(start)
            return 0
        return place

    def keep(self, start: int, rows: Tensor) -> None:
        """Keep rows [n, k * d] of positions from `start` on, in place of what was kept of these
        and of later ones."""
        assert self.rows is not None
        place = self.place(start)
        if place < 0:
            rows, place = rows[-place:], 0
        if place + len(rows) > len(self.rows):  # nobody has used any for long
            self.begin(start)
            place = 0
        end = place + len(rows)
        if end > place:
            self.rows[place:end].copy_(rows)
            self.held = end

    def use(self, count: int) -> None:
        """The first `count` rows were written to their slots."""
        assert self.rows is not None
        rest = self.held - count
        if count and rest:
            self.rows[:rest].copy_(self.rows[count : self.held].clone())
        self.covered += count
        self.held = rest

    def cut(self, length: int) -> int:
        """Drop the rows of drafts that were not kept, of a text of `length` tokens. Returns how
        many of its slots can be written now; all of them if the head is up to date."""
        self.held = max(0, min(self.held, length - self.covered))
        return self.held

    def up_to_date(self, length: int) -> bool:
        """Whether every slot of the text is written or can be."""
        return 0 < self.covered < length and self.cut(length) == length - self.covered
