"""The texts that a drafter follows: their slots, which are taken in, and what steps commit."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Generic, TypeVar

from engine.drafters.base import Committed

if TYPE_CHECKING:
    from engine.request import Request

HEAD = 6
"""int64 words of a commit, before what its drafter adds and the tokens: slot, its place in the
results, how many tokens, drafted, accepted, flags."""
COUNT = 2
"""Word of the HEAD with the number of tokens."""
ENDED, UNSCORED = 1, 2
"""Flags of a commit."""
_FEWEST_SLOTS = 8


class Text:
    """One request: its slot, and how much of its text is taken in."""

    __slots__ = ("length", "request", "slot")

    def __init__(self, request: Request, slot: int) -> None:
        self.request = request
        self.slot = slot
        self.length = 0


Kept = TypeVar("Kept", bound=Text)


class Texts(ABC, Generic[Kept]):
    """known: every text by request id. pending: those that are not taken in completely, in the
    order in which they began to wait; each step takes in a part of them."""

    def __init__(self) -> None:
        self.known: dict[int, Kept] = {}
        self.pending: dict[int, Kept] = {}
        self._slots = 0
        self._free: list[int] = []

    def add(self, request: Request) -> None:
        """Follow a request, from as much of its text as this step's budget allows."""
        known = self.known.get(request.id)
        if known is not None:
            if known.request is request:
                return
            self.remove(request.id)
        text = self._make(request, self._slot())
        self.known[request.id] = self.pending[request.id] = text
        self._open(text)
        self._take_in(text)

    def remove(self, request: int) -> None:
        text = self.known.pop(request, None)
        if text is not None:
            self.pending.pop(request, None)
            self._free.append(text.slot)

    def ready(self, requests: Sequence[Request]) -> tuple[list[int], list[int]]:
        """Places and slots of the requests whose text is taken in."""
        known, pending = self.known, self.pending
        if not pending:
            try:
                return list(range(len(requests))), [known[one.id].slot for one in requests]
            except KeyError:
                pass  # some it does not know
        found = [
            (place, known[one.id].slot)
            for place, one in enumerate(requests)
            if one.id in known and one.id not in pending
        ]
        return [place for place, _ in found], [slot for _, slot in found]

    def committed(
        self, commits: Sequence[Committed]
    ) -> Iterator[tuple[Kept, Committed, tuple[int, ...]]]:
        """The commits to texts that are taken in, each with its HEAD words, and counted as taken
        in. A text that missed a commit is taken in again."""
        for place, one in enumerate(commits):
            request = one.request.id
            text = self.known.get(request)
            if text is None or request in self.pending:
                continue
            if text.length != one.start:
                self.restart(text)
                continue
            count = len(one.tokens)
            flags = ENDED * one.ended | UNSCORED * (one.prefilled or not one.scored)
            text.length += count
            yield text, one, (text.slot, place, count, one.drafted, one.accepted, flags)

    def restart(self, text: Kept) -> None:
        """Take a text in from its beginning."""
        self.pending[text.request.id] = text
        self._open(text)

    def restart_all(self, commits: Sequence[Committed]) -> None:
        """Take in again what a failed call may have taken in half."""
        for one in commits:
            if (text := self.known.get(one.request.id)) is not None:
                self.restart(text)

    def _slot(self) -> int:
        if not self._free:
            count = self._slots
            self._slots += max(count, _FEWEST_SLOTS)
            self._grow(self._slots)
            self._free.extend(range(self._slots - 1, count - 1, -1))
        return self._free.pop()

    @abstractmethod
    def take_in(self) -> None:
        """Take in what this step's budget allows of the pending texts."""

    @abstractmethod
    def _make(self, request: Request, slot: int) -> Kept: ...

    @abstractmethod
    def _grow(self, slots: int) -> None:
        """Have rows for so many slots."""

    @abstractmethod
    def _open(self, text: Kept) -> None:
        """Give it what an empty text has, instead of what it may have now."""

    @abstractmethod
    def _take_in(self, text: Kept) -> None:
        """Take in what the budget allows of a pending text."""


def missing(text: Text) -> int:
    """Tokens that are not taken in."""
    return len(text.request.tokens) - text.length
