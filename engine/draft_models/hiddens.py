"""The target's hidden states of one request that a head has not used yet."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from torch import Tensor

from engine.draft_models.contents import Progress

HELD = 32
"""Rows that a request which the head does not draft for keeps before they are written."""
COPIED = 64
"""Rows of a step up to which its hidden states are kept as they are: those of a long prefill would
stay in memory for one row."""


class Piece(NamedTuple):
    """Rows first..first + length - 1 of features [T, k * d]."""

    features: Tensor
    first: int
    length: int

    def rows(self, count: int) -> Tensor:
        """Its first `count` rows."""
        return self.features[self.first : self.first + count]


@dataclass(slots=True, eq=False)
class Hiddens(Progress):
    """Progress of a head: its row at slot j takes h_{j-1}, so the first row kept is that of
    position covered - 1.

    pieces: the rows kept, `held` in all, at most `most`; nothing is copied until they are used.
    first: the first slot that has keys and values; the text before it is unknown to the head.
    whole: nothing of the text is, so that what is written is a function of the text alone. covered
    is 0 until a row was kept."""

    most: int = HELD
    pieces: deque[Piece] = field(default_factory=deque)
    held: int = 0
    first: int = 0
    whole: bool = False

    def begin(self, position: int) -> None:
        """Nothing is kept; the next row is that of this position, and what came before is lost."""
        self.covered = self.first = position + 1
        self.whole = position == 0
        self._clear()

    def lose(self) -> None:
        """Nothing that is kept or written can be relied on."""
        self.covered = self.first = 0
        self.whole = False
        self._clear()

    def place(self, start: int) -> int:
        """Where the row of position `start` belongs among those kept; negative when it was used
        already. A row that does not follow on those kept begins anew."""
        place = start - (self.covered - 1)
        if not self.covered or place > self.held:
            self.begin(start)
            return 0
        return place

    def keep(self, start: int, features: Tensor, first: int, count: int) -> None:
        """Keep rows first..first + count - 1 of features [T, k * d], those of positions from
        `start` on, in place of what was kept of these and of later ones."""
        place = self.place(start)
        if place < 0:
            first, count, place = first - place, count + place, 0
        if place + count > self.most:  # nobody has used any for long
            self.begin(start)
            place = 0
        if count > 0:
            self.shorten(place)
            self.add(features, first, count)

    def add(self, features: Tensor, first: int, count: int) -> None:
        """Keep these rows behind those that are kept."""
        if len(features) > COPIED:
            features, first = features[first : first + count].clone(), 0
        self.pieces.append(Piece(features, first, count))
        self.held += count

    def parts(self, count: int) -> Iterator[Tensor]:
        """The first `count` rows, in their order, in parts."""
        for piece in self.pieces:
            if count <= 0:
                return
            yield piece.rows(min(count, piece.length))
            count -= piece.length

    def row(self, index: int) -> Tensor:
        """A kept row, [k * d]."""
        for piece in self.pieces:
            if index < piece.length:
                return piece.features[piece.first + index]
            index -= piece.length
        raise IndexError(index)

    def use(self, count: int) -> None:
        """The first `count` rows were written to their slots."""
        self.covered += count
        self.held -= count
        while count:
            piece = self.pieces.popleft()
            if piece.length > count:
                rest = Piece(piece.features, piece.first + count, piece.length - count)
                self.pieces.appendleft(rest)
                return
            count -= piece.length

    def cut(self, length: int) -> int:
        """Drop the rows of drafts that were not kept, of a text of `length` tokens. Returns how
        many of its slots can be written now; all of them if the head is up to date."""
        self.shorten(max(0, length - self.covered))
        return self.held

    def shorten(self, held: int) -> None:
        """Keep no more than the first `held` rows."""
        while self.held > held:
            piece = self.pieces.pop()
            self.held -= piece.length
            if self.held < held:
                self.pieces.append(Piece(piece.features, piece.first, held - self.held))
                self.held = held

    def up_to_date(self, length: int) -> bool:
        """Whether every slot of the text is written or can be."""
        return 0 < self.covered < length and self.cut(length) == length - self.covered

    @property
    def nbytes(self) -> int:
        """Of the rows kept; the tensors they lie in are shared with other requests."""
        return sum(piece.length * piece.features[0].nbytes for piece in tuple(self.pieces))

    def _clear(self) -> None:
        self.pieces.clear()
        self.held = 0
