"""Possible drafts of a step, one a row of arrays: whose, by whom, how likely, at what price."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from controller.contract import Bar
from controller.draft_cost import DraftPrice

Table = NDArray[np.float64]
Lengths = NDArray[np.intp]


@dataclass(slots=True)
class Chain:
    """Drafts of `head` have `depth` tokens of its own; what goes beyond comes from `tail`. filled:
    the chances that the tail's positions are drafted at all. bars: by request of the batch, what
    the head's drafts may be asked to promise; None where nothing is."""

    head: str
    depth: int
    tail: str | None = None
    filled: Table | None = None
    bars: Sequence[Bar | None] | None = None


class Barred(NamedTuple):
    """[n, K], what whole drafts that end at a bar are expected to bring at each position: rows that
    are verified, and tokens that are accepted."""

    rows: Table
    tokens: Table


@dataclass(slots=True)
class Choices:
    """Possible drafts, one a row. requests: [n], places in the batch. names: the drafters that
    there are; who: [n], which of them drafts. survival: float64 [n, K], row i is S_1 .. S_K of
    choice i, falling, and 0 beyond its longest draft. longest: [n], 1..K. prices: what drafting
    costs, by drafter as in names. own_ms: [n], what each choice costs by itself beside its rows,
    None for nothing. chain: how one drafter's choices are made up, where it is a model's. catch_up:
    [n], rows of text that the drafter must compute first. charges: [n], the share of that in each
    step to come, in ms, part of own_ms; both None where every drafter keeps up. barred: where the
    chain has bars, what its drafts bring with them; 0 for the choices of others.

    survival lies in memory position by position, which makes sums over a draft fast."""

    requests: Lengths
    names: tuple[str, ...]
    who: Lengths
    survival: Table
    longest: Lengths
    prices: Sequence[DraftPrice]
    own_ms: Table | None = None
    chain: Chain | None = None
    catch_up: Lengths | None = None
    charges: Table | None = None
    barred: Barred | None = None

    def __len__(self) -> int:
        return len(self.requests)

    def take(self, places: Sequence[int] | Lengths) -> Choices:
        """The choices at these places, in this order."""
        return Choices(
            self.requests.take(places),
            self.names,
            self.who.take(places),
            self.survival.T.take(places, 1).T,
            self.longest.take(places),
            self.prices,
            None if self.own_ms is None else self.own_ms.take(places),
            self.chain,
            None if self.catch_up is None else self.catch_up.take(places),
            None if self.charges is None else self.charges.take(places),
            None if self.barred is None else Barred(*(t.take(places, 0) for t in self.barred)),
        )

    def drafter(self, place: int) -> str:
        """Who drafts the choice."""
        return self.names[self.who.item(place)]

    def price(self, code: int) -> DraftPrice:
        """What the drafter at this place of `names` costs."""
        return self.prices[code]

    def present(self) -> list[int]:
        """Which of `names` have a choice here, by their place in it."""
        if len(self.names) == 1:
            return [0] if len(self) else []
        return sorted(set(self.who.tolist()))

    def places(self, drafter: str) -> Lengths:
        """The choices of a drafter."""
        if drafter not in self.names:
            return np.zeros(0, np.intp)
        return np.flatnonzero(self.who == self.names.index(drafter))

    def counts(self) -> dict[str, int]:
        """How many choices each drafter has; without those that have none."""
        if len(self.names) == 1:
            return {self.names[0]: len(self)}
        counts = np.bincount(self.who).tolist()
        return {name: n for name, n in zip(self.names, counts, strict=False) if n}

    def of(self, code: int) -> Choices:
        """The choices of the drafter at this place of `names`."""
        return self if self.alone else self.take(np.flatnonzero(self.who == code))

    @property
    def alone(self) -> bool:
        """Whether there is one drafter."""
        return len(self.names) == 1

    @property
    def costly(self) -> bool:
        """Whether drafting costs anything beside the rows."""
        if self.own_ms is not None:
            return True
        return any([price.fixed or price.per_depth for price in self.prices])

    def depth(self, code: int, length: int) -> int:
        """How many of `length` tokens the drafter at this place of `names` drafts itself."""
        chain = self.chain
        if chain is None or self.names[code] != chain.head:
            return length
        return min(length, chain.depth)


def own_ms(prices: Sequence[DraftPrice], who: Lengths, charges: Table | None) -> Table | None:
    """What choices cost by themselves: a request's part of the drafting, and what it is charged."""
    if not any([price.per_request for price in prices]):
        return charges
    own = np.array([price.per_request for price in prices]).take(who)
    return own if charges is None else own + charges


def nothing() -> Choices:
    """No choices."""
    empty = np.zeros(0, np.intp)
    return Choices(empty, (), empty, np.zeros((0, 1)), empty, ())
