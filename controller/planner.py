"""Draft lengths per request that maximise expected committed tokens per millisecond.

Positions of all requests are admitted in order of survival S = a_1 ... a_k, and the goodput is
evaluated along that order at the cost actually measured for each total. For a cost that depends
on the total only, the best prefix is the exact optimum (the price rule S >= lambda * dT is its
local form), also where the cost is a staircase or falls.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from controller.draft_cost import DraftPrice

MIN_GAIN = 0.01
"""Drafting must be predicted to beat plain decoding by this much."""

Table = NDArray[np.float64]
Lengths = NDArray[np.intp]


@dataclass(slots=True)
class Chain:
    """Drafts of `head` have `depth` tokens of its own; what goes beyond comes from `tail`. filled:
    the chances that the tail's positions are drafted at all."""

    head: str
    depth: int
    tail: str | None = None
    filled: Table | None = None


@dataclass(slots=True)
class Choices:
    """Possible drafts, one a row. requests: places in the batch. survival: float64 [n, K], row i
    is S_1 .. S_K of choice i, falling, and 0 beyond its longest draft. longest: [n], 1..K.
    prices: what drafting costs, by drafter. chain: how one drafter's choices are made up, where
    it is a model's. catch_up: [n], rows of text that the drafter must compute first. charges: [n],
    the share of that in each step to come, in ms; both None where every drafter keeps up."""

    requests: Sequence[int]
    drafters: Sequence[str]
    survival: Table
    longest: Lengths
    prices: Mapping[str, DraftPrice]
    chain: Chain | None = None
    catch_up: Lengths | None = None
    charges: Table | None = None

    def __len__(self) -> int:
        return len(self.requests)

    def take(self, places: Sequence[int]) -> Choices:
        """The choices at these places, in this order."""
        return Choices(
            [self.requests[i] for i in places],
            [self.drafters[i] for i in places],
            self.survival.take(places, 0),
            self.longest.take(places),
            self.prices,
            self.chain,
            None if self.catch_up is None else self.catch_up.take(places),
            None if self.charges is None else self.charges.take(places),
        )

    def tail(self, place: int, length: int) -> int:
        """How many of the choice's `length` tokens come from a tail."""
        chain = self.chain
        if chain is None or self.drafters[place] != chain.head:
            return 0
        return max(length - chain.depth, 0)

    def depth(self, drafter: str, length: int) -> int:
        """How many of `length` tokens the drafter itself drafts."""
        chain = self.chain
        return length if chain is None or drafter != chain.head else min(length, chain.depth)

    def catch_up_ms(self, place: int) -> float:
        """What it takes to catch up before the choice's first draft, all at once."""
        if self.catch_up is None:
            return 0.0
        return self.prices[self.drafters[place]].per_row * self.catch_up.item(place)

    def places(self, drafter: str) -> list[int]:
        """The choices of a drafter."""
        return [i for i, name in enumerate(self.drafters) if name == drafter]


@dataclass(slots=True)
class Allocation:
    """lengths[i] belongs to choice i. tokens and ms: expected of the whole step."""

    lengths: Lengths
    rows: int
    tokens: float
    ms: float
    plain_ms: float
    plain_tokens: float

    @property
    def goodput(self) -> float:
        """Tokens per ms."""
        return self.tokens / self.ms


def allocate(costs: Table, tokens: float, choices: Choices) -> Allocation:
    """The best lengths for the choices, at most one per request.

    costs[m]: ms of the step with m drafted rows among the choices, for every m that the room and
    the choices allow; tokens: what the step commits without any of them."""
    plain_ms = costs.item(0)
    plain = Allocation(np.zeros(len(choices), np.intp), 0, tokens, plain_ms, plain_ms, tokens)
    if len(costs) < 2:
        return plain
    best = _best_prefix(costs, tokens, choices, plain)
    head = None if choices.chain is None else choices.chain.head
    if head is not None:
        # A pass that does not pay would hide, among the first positions, what pays without it.
        others = [i for i, name in enumerate(choices.drafters) if name != head]
        if 0 < len(others) < len(choices):
            rest = choices.take(others)
            count = min(len(costs) - 1, int(np.add.reduce(rest.longest)))
            found = _best_prefix(costs[: count + 1], tokens, rest, plain)
            if found.goodput > best.goodput:
                lengths = np.zeros(len(choices), np.intp)
                lengths[others] = found.lengths
                found.lengths = lengths
                return found
    return best


def _best_prefix(costs: Table, tokens: float, choices: Choices, plain: Allocation) -> Allocation:
    """The best cut of the positions ordered by survival; the plain one when none pays."""
    survival, count, plain_ms = choices.survival, len(costs) - 1, plain.ms
    rising = np.sort(survival, axis=None)
    values = rising[: -count - 1 : -1]
    sums = np.add.accumulate(values)
    sums += tokens
    ms = costs[1:]
    drafters = choices.drafters
    price = choices.prices[drafters[0]]
    if (
        drafters.count(drafters[0]) < len(drafters)
        or price.per_request
        or price.per_depth
        or choices.charges is not None
    ):
        ms = ms + _drafting_ms(rising, count, choices)
    elif price.fixed:
        ms = ms + price.fixed
    goodput = sums / ms
    best = int(goodput.argmax())
    if goodput.item(best) <= tokens / plain_ms * (1.0 + MIN_GAIN):
        return plain
    least = values.item(best)
    lengths = np.add.reduce(survival >= least, axis=1, dtype=np.intp)
    excess = int(np.add.reduce(lengths)) - best - 1
    if excess:
        # Of equal positions the first ones stay, and of those the first requests'.
        places, positions = np.nonzero(survival == least)
        for i in places[np.lexsort((places, positions))][-excess:]:
            lengths[i] -= 1
    return Allocation(lengths, best + 1, sums.item(best), ms.item(best), plain_ms, tokens)


def _drafting_ms(rising: Table, count: int, choices: Choices) -> Table:
    """[count], drafting ms of the best 1, 2, ... positions. A drafter's fixed part is due with its
    first position, its depth with the first position that deep, a request's part and what it is
    charged with its own first one. rising: all survivals, sorted."""
    survival, prices = choices.survival, choices.prices
    firsts = survival[:, 0]
    order = np.argsort(-firsts, kind="stable")
    ordered = firsts[order]
    # How many positions are better than each first one, and how many equal first ones go before.
    ranks = len(rising) - np.searchsorted(rising, ordered, "right")
    ranks += np.arange(len(order)) - np.searchsorted(-ordered, -ordered)
    due = np.zeros(len(rising))
    own = np.array([prices[name].per_request for name in choices.drafters])
    if choices.charges is not None:
        own += choices.charges
    due[ranks] = own[order]
    names = dict.fromkeys(choices.drafters)
    for name in names:
        price = prices[name]
        mine = survival if len(names) == 1 else survival[choices.places(name)]
        deepest = np.maximum.reduce(mine[:, : choices.depth(name, mine.shape[1])], axis=0)
        ranks = len(rising) - np.searchsorted(rising, deepest[deepest > 0.0], "right")
        np.add.at(due, ranks, price.per_depth)
        due[ranks[0]] += price.fixed
    return np.add.accumulate(due[:count])


def surplus(choices: Choices, price: float, row_price: float) -> Table:
    """[n], the expected tokens of each choice beyond what its rows and its own part of the
    drafting are worth.

    price: tokens per ms that the time is worth; row_price: tokens that a row is worth. Of several
    drafters for a request the one with the largest surplus is the best at that price."""
    gain = choices.survival - row_price
    gains: Table = np.add.reduce(np.maximum(gain, 0.0, out=gain), axis=1)
    for place, name in enumerate(choices.drafters):
        gains[place] -= price * choices.prices[name].per_request
    if choices.charges is not None:
        gains -= price * choices.charges
    return gains


def uniform(
    costs: Table, tokens: float, choices: Choices, lengths: Sequence[int], room: int
) -> list[tuple[float, float]]:
    """Expected tokens and ms of steps in which every choice drafts as many tokens, for each of
    the lengths, as far as it goes; too little room is shared evenly."""
    gained = np.add.accumulate(np.add.reduce(choices.survival, axis=0)).tolist()
    longest = choices.longest.tolist()
    counts = [(name, choices.drafters.count(name)) for name in dict.fromkeys(choices.drafters)]
    charged = 0.0 if choices.charges is None else float(np.add.reduce(choices.charges))
    found: list[tuple[float, float]] = []
    for length in lengths:
        rows = sum([min(n, length) for n in longest])
        gain = gained[min(length, len(gained)) - 1]
        if rows > room:
            gain, rows = gain * room / rows, room
        drafting = [choices.prices[name].ms(n, choices.depth(name, length)) for name, n in counts]
        found.append((tokens + gain, costs.item(rows) + sum(drafting) + charged))
    return found


def expected(
    costs: Table, tokens: float, choices: Choices, lengths: Lengths
) -> tuple[float, float]:
    """Expected tokens and ms of a step with the given lengths, tails filled as usual."""
    survival = choices.survival
    kept = survival * (np.arange(survival.shape[1]) < lengths[:, None])
    rows = float(np.add.reduce(lengths))
    chain = choices.chain
    if chain is not None and chain.filled is not None:
        tails = kept[choices.places(chain.head), chain.depth : chain.depth + len(chain.filled)]
        missing = 1.0 - chain.filled[: tails.shape[1]]
        tokens -= float(np.add.reduce(tails * missing, axis=None))
        rows -= float(np.add.reduce((tails > 0.0) * missing, axis=None))
    gained = float(np.add.reduce(kept, axis=None))
    return tokens + gained, costs.item(round(rows)) + drafting_ms(choices, lengths.tolist())


def drafting_ms(choices: Choices, lengths: Sequence[int]) -> float:
    """What drafting the lengths costs, with what each choice is charged."""
    charged = 0.0
    if choices.charges is not None:
        charged = float(choices.charges[np.array(lengths, np.intp) > 0].sum())
    drafted: dict[str, list[int]] = {}
    for name, length in zip(choices.drafters, lengths, strict=True):
        if length:
            drafted.setdefault(name, []).append(choices.depth(name, length))
    passes = [choices.prices[name].ms(len(found), max(found)) for name, found in drafted.items()]
    return charged + sum(passes)
