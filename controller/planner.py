"""Draft lengths per request that maximise expected committed tokens per millisecond.

Positions of all requests are admitted in order of survival S = a_1 ... a_k, and the goodput is
evaluated along that order at the cost actually measured for each total. For a cost that depends
on the total only, the best prefix is the exact optimum (the price rule S >= lambda * dT is its
local form), also where the cost is a staircase or falls.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from controller.choices import Barred, Choices, Lengths, Table
from controller.pricing import Price

MIN_GAIN = 0.01
"""Drafting must be predicted to beat plain decoding by this much."""


@dataclass(slots=True)
class Allocation:
    """lengths[i] belongs to choice i. rows: that the step is likely to verify for them. tokens and
    ms: expected of the whole step. barred: the chain's drafts end at its bars."""

    lengths: Lengths
    rows: int
    tokens: float
    ms: float
    plain_ms: float
    plain_tokens: float
    barred: bool = False

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
    if choices.barred is not None:
        found = _with_bars(costs, tokens, choices, choices.barred, plain)
        if found is not None:
            return found
    best = _best_prefix(costs, tokens, choices, plain)
    if choices.chain is not None:
        # A pass that does not pay would hide, among the first positions, what pays without it.
        rest = _without_pass(costs, tokens, choices, plain)
        if rest is not None and rest.goodput > best.goodput:
            return rest
    return best


def _without_pass(
    costs: Table, tokens: float, choices: Choices, plain: Allocation
) -> Allocation | None:
    """The best lengths of the others than the chain's; None where there is nobody else."""
    chain = choices.chain
    assert chain is not None
    others = np.flatnonzero(choices.who != choices.names.index(chain.head))
    if not 0 < len(others) < len(choices):
        return None
    rest = choices.take(others)
    count = min(len(costs) - 1, int(np.add.reduce(rest.longest)))
    alone = replace(plain, lengths=np.zeros(len(others), np.intp))
    found = _best_prefix(costs[: count + 1], tokens, rest, alone)
    lengths = np.zeros(len(choices), np.intp)
    lengths[others] = found.lengths
    return replace(found, lengths=lengths)


def _with_bars(
    costs: Table, tokens: float, choices: Choices, barred: Barred, plain: Allocation
) -> Allocation | None:
    """All of the chain's drafts whole, up to their bars, with the best lengths of the others; or
    without the chain where that is better. None without room for whole drafts."""
    chain = choices.chain
    assert chain is not None
    mine = choices.who == choices.names.index(chain.head)
    whole = np.where(mine, choices.longest, 0)
    room = len(costs) - 1 - int(np.add.reduce(whole))
    if room < 0:
        return None
    rows = float(np.add.reduce(barred.rows, axis=None))
    base = tokens + float(np.add.reduce(barred.tokens, axis=None))
    others = np.flatnonzero(~mine)
    rest = choices.take(others)
    count = min(room, int(np.add.reduce(rest.longest)))
    ms = np.interp(np.arange(count + 1.0) + rows, np.arange(len(costs)), costs)
    ms += drafting_ms(choices, whole)
    found = Allocation(np.zeros(len(rest), np.intp), 0, base, ms.item(0), ms.item(0), base)
    if count:
        found = _best_prefix(ms, base, rest, found)
    best = plain
    if len(others):
        best = _without_pass(costs, tokens, choices, plain) or plain
    if found.goodput <= max(best.goodput, plain.goodput * (1.0 + MIN_GAIN)):
        return best
    lengths = whole
    lengths[others] = found.lengths
    rows = math.ceil(rows) + found.rows
    return Allocation(lengths, rows, found.tokens, found.ms, plain.ms, tokens, True)


def _best_prefix(costs: Table, tokens: float, choices: Choices, plain: Allocation) -> Allocation:
    """The best cut of the positions ordered by survival; the plain one when none pays."""
    if len(choices) == 1:
        return _best_length(costs, tokens, choices, plain)
    survival, count, plain_ms = choices.survival, len(costs) - 1, plain.ms
    rising = np.sort(survival.T, axis=None)  # in the order that it has in memory
    values = rising[: -count - 1 : -1]
    sums = np.add.accumulate(values)
    sums += tokens
    ms = costs[1:]
    if choices.chain is not None and choices.chain.filled is not None:
        unfilled = _unfilled(rising, count, choices, choices.chain.filled)
        sums -= unfilled.tokens
        ms = np.interp(np.arange(1.0, count + 1) - unfilled.rows, np.arange(count + 1), costs)
    if choices.costly:
        ms = ms + _drafting_ms(rising, count, choices)
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


def _best_length(costs: Table, tokens: float, choices: Choices, plain: Allocation) -> Allocation:
    """The best cut of one draft: its positions are in order already."""
    count = len(costs) - 1
    values = choices.survival[0, :count]
    code = choices.who.item(0)
    price, own = choices.price(code), choices.own_ms
    ms = costs[1 : len(values) + 1]
    chain = choices.chain
    if chain is not None and chain.filled is not None and choices.names[code] == chain.head:
        shares = np.ones(len(values))
        ends = shares[chain.depth : chain.depth + len(chain.filled)]
        ends *= chain.filled[: len(ends)]
        values = values * shares
        ms = np.interp(np.add.accumulate(shares), np.arange(len(costs)), costs)
    sums = np.add.accumulate(values)
    sums += tokens
    ms = ms + (price.fixed + (own.item(0) if own is not None else 0.0))
    if price.per_depth:
        passes = np.arange(1, len(ms) + 1)
        ms += price.per_depth * np.minimum(passes, choices.depth(code, len(ms)))
    goodput = sums / ms
    best = int(goodput.argmax())
    if goodput.item(best) <= tokens / plain.ms * (1.0 + MIN_GAIN):
        return plain
    lengths = np.array([best + 1], np.intp)
    return Allocation(lengths, best + 1, sums.item(best), ms.item(best), plain.ms, tokens)


class _Unfilled(NamedTuple):
    """[count], of the best 1, 2, ... positions: tokens and rows that do not come because a tail has
    nothing to add."""

    tokens: Table
    rows: Table


def _unfilled(rising: Table, count: int, choices: Choices, filled: Table) -> _Unfilled:
    """What the positions of tails lack of drafted ones. rising: all survivals, sorted. Positions
    that are as good as each other are taken together."""
    chain = choices.chain
    assert chain is not None
    ends = choices.survival.T[chain.depth : chain.depth + len(filled)]
    ends = ends[:, choices.who == choices.names.index(chain.head)]
    places, _ = np.nonzero(ends)
    values = ends[ends > 0.0]
    missing = 1.0 - filled[places]
    ranks = len(rising) - rising.searchsorted(values, "right")
    kept = ranks < count
    ranks, missing = ranks[kept], missing[kept]
    tokens = np.bincount(ranks, values[kept] * missing, count)
    rows = np.bincount(ranks, missing, count)
    return _Unfilled(np.add.accumulate(tokens), np.add.accumulate(rows))


def _drafting_ms(rising: Table, count: int, choices: Choices) -> Table:
    """[count], drafting ms of the best 1, 2, ... positions. A drafter's fixed part is due with its
    first position, its depth with the first position that deep, a request's part and what it is
    charged with its own first one. rising: all survivals, sorted."""
    survival, total = choices.survival, len(rising)
    firsts = survival[:, 0]
    due = np.zeros(total)
    own = choices.own_ms
    if own is not None:
        order = (-firsts).argsort(kind="stable")
        ordered = firsts[order]
        # How many positions are better than each first one, and how many equal ones go before.
        ranks = np.arange(total, total + len(order))
        ranks -= rising.searchsorted(ordered, "right")
        ranks -= (-ordered).searchsorted(-ordered)
        due[ranks] = own[order]
    for code in choices.present():
        price = choices.price(code)
        if price.fixed:
            mine = firsts if choices.alone else firsts[choices.who == code]
            due[total - rising.searchsorted(np.maximum.reduce(mine), "right")] += price.fixed
        if price.per_depth:
            mine = survival if choices.alone else survival[choices.who == code]
            mine = mine[:, : choices.depth(code, mine.shape[1])]
            deepest = np.maximum.reduce(mine, axis=0)
            ranks = total - rising.searchsorted(deepest[deepest > 0.0], "right")
            np.add.at(due, ranks, price.per_depth)
    return np.add.accumulate(due[:count])


def surplus(choices: Choices, price: Price, out: Table | None = None) -> Table:
    """[n], the expected tokens of each choice beyond what its rows and its own part of the
    drafting are worth. Of several drafters for a request the one with the largest surplus is the
    best at that price."""
    gain = choices.survival - price.per_row
    gains: Table = np.add.reduce(np.maximum(gain, 0.0, out=gain), axis=1, out=out)
    if choices.own_ms is not None:
        gains -= price.per_ms * choices.own_ms
    return gains


def uniform(
    costs: Table, tokens: float, choices: Choices, lengths: Sequence[int], room: int
) -> list[tuple[float, float]]:
    """Expected tokens and ms of steps in which every choice drafts as many tokens, for each of
    the lengths, as far as it goes; too little room is shared evenly."""
    gained = np.add.accumulate(np.add.reduce(choices.survival, axis=0)).tolist()
    counts = np.bincount(choices.who).tolist()
    prices = [(code, n, choices.price(code)) for code, n in enumerate(counts) if n]
    charged = 0.0 if choices.charges is None else float(np.add.reduce(choices.charges))
    found: list[tuple[float, float]] = []
    for length in lengths:
        rows = int(np.add.reduce(np.minimum(choices.longest, length)))
        gain = gained[min(length, len(gained)) - 1]
        if rows > room:
            gain, rows = gain * room / rows, room
        drafting = [price.ms(n, choices.depth(code, length)) for code, n, price in prices]
        found.append((tokens + gain, costs.item(rows) + sum(drafting) + charged))
    return found


def expected(
    costs: Table, tokens: float, choices: Choices, lengths: Lengths, barred: bool = False
) -> tuple[float, float]:
    """Expected tokens and ms of a step with the given lengths, tails filled as usual; barred: the
    chain's drafts end at its bars."""
    kept = gains(choices, lengths, barred)
    rows = drafted_rows(choices, lengths, barred)
    ms = float(np.interp(rows, np.arange(len(costs)), costs))
    return tokens + float(np.add.reduce(kept)), ms + drafting_ms(choices, lengths)


def drafted_rows(choices: Choices, lengths: Lengths, barred: bool = False) -> float:
    """How many rows the drafts are expected to have."""
    chain, rows = choices.chain, float(np.add.reduce(lengths))
    if chain is None:
        return rows
    if barred and choices.barred is not None:
        heads = choices.places(chain.head)
        missing = _up_to(1.0 - choices.barred.rows, lengths)[heads]
        return rows - float(np.add.reduce(missing, axis=None))
    if chain.filled is not None:
        beyond = np.arange(1, len(chain.filled) + 1) + chain.depth
        drafted = lengths[choices.places(chain.head)][:, None] >= beyond
        rows -= float(np.add.reduce(drafted * (1.0 - chain.filled), axis=None))
    return rows


def gains(choices: Choices, lengths: Lengths, barred: bool = False) -> Table:
    """[n], the expected accepted tokens of each choice at its length, tails filled as usual;
    barred: the chain's drafts end at its bars."""
    kept, chain = _up_to(choices.survival, lengths), choices.chain
    if chain is None:
        return np.add.reduce(kept, axis=1)
    heads = choices.places(chain.head)
    if barred and choices.barred is not None:
        kept[heads] = _up_to(choices.barred.tokens, lengths)[heads]
    elif chain.filled is not None:
        kept[heads, chain.depth : chain.depth + len(chain.filled)] *= chain.filled
    return np.add.reduce(kept, axis=1)


def _up_to(table: Table, lengths: Lengths) -> Table:
    """[n, K], the table as far as the lengths go, 0 beyond."""
    return table * (np.arange(table.shape[1]) < lengths[:, None])


def drafting_ms(choices: Choices, lengths: Lengths) -> float:
    """What drafting the lengths costs, with what each choice is charged."""
    drafts = lengths > 0
    total = 0.0
    if choices.charges is not None:
        total = float(np.add.reduce(choices.charges[drafts]))
    for code in choices.present():
        mine = lengths[drafts & (choices.who == code)]
        if len(mine):
            depth = choices.depth(code, int(np.maximum.reduce(mine)))
            total += choices.price(code).ms(len(mine), depth)
    return total
