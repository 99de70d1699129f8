"""Drafted tokens that are still on the device: how many there are is known, not yet which."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar, overload

if TYPE_CHECKING:  # drafters that need no model run without torch
    from torch import Tensor

T = TypeVar("T")


class Late(Sequence[T]):
    """Values of which only the number is known. To look at one is to wait for all of them."""

    __slots__ = ()

    @abstractmethod
    def _look(self) -> Sequence[T]:
        """The values; waits for the device."""
        ...

    def __iter__(self) -> Iterator[T]:
        return iter(self._look())

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[T]: ...
    def __getitem__(self, index: int | slice) -> T | Sequence[T]:
        return self._look()[index]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self._look()) == list(other)


class Source(Protocol):
    """What a drafter's call has drawn."""

    @property
    def ids(self) -> Tensor:
        """Of all its drafts, int64 [N], on the device."""
        ...

    @property
    def seen(self) -> bool:
        """Whether the host has them: looking at them waits for nothing."""
        ...

    def tokens(self) -> Sequence[int]:
        """The same on the host; waits for the device."""
        ...

    def took(self) -> float:
        """Milliseconds from the begin of the call to its last draw by the device's clock, 0 where
        the host's has all of them. Only once the device has drawn them."""
        ...


class Unseen(Late[int]):
    """The tokens of one draft. places: theirs among the ids of the source."""

    __slots__ = ("places", "source")

    def __init__(self, source: Source, places: Sequence[int]) -> None:
        self.source = source
        self.places = places

    def __len__(self) -> int:
        return len(self.places)

    @property
    def ids(self) -> Tensor:
        return self.source.ids

    def first(self, count: int) -> Unseen:
        """The first `count` of them, without a look."""
        return self if count >= len(self) else Unseen(self.source, self.places[:count])

    def _look(self) -> Sequence[int]:
        tokens = self.source.tokens()
        return [tokens[place] for place in self.places]


def unseen_of(tokens: Sequence[int]) -> Unseen | None:
    """The tokens, if only the device has them."""
    return tokens if isinstance(tokens, Unseen) and not tokens.source.seen else None


def leading(tokens: Sequence[int], count: int) -> Sequence[int]:
    """The first `count` tokens; of unseen ones without a look."""
    return tokens.first(count) if isinstance(tokens, Unseen) else tokens[:count]
