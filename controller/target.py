"""Plans under a target for the time per output token of the slowest request of a step.

A step lasts as long for every request in it, so a request waits ms / (tokens it gets) for each of
its tokens: a request without a draft the whole step. Long verify steps for the sake of others can
so take a request over a target, and drafts for everybody can bring all of them under one that plain
decoding misses. The mean over the requests would be no constraint: it is lowest where goodput is
highest.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from controller.choices import Choices, Lengths, Table
from controller.contract import BatchView
from controller.cost import CostModel
from controller.planner import MIN_GAIN, Allocation, gains


class Target(NamedTuple):
    """ms: the most that any request should wait for a token. beside_ms: what the step takes beside
    what is planned. slowest: expected tokens of the slowest request without a choice of its own
    here, infinite where there is none."""

    ms: float
    beside_ms: float
    slowest: float

    def tpot_ms(self, choices: Choices, lengths: Lengths, ms: float, barred: bool = False) -> float:
        """What the slowest request is predicted to wait for a token in a step of `ms` in which the
        choices draft these lengths; barred: the chain's up to its bars."""
        tokens = self.slowest
        if len(choices):
            tokens = min(tokens, 1.0 + float(np.minimum.reduce(gains(choices, lengths, barred))))
        return (ms + self.beside_ms) / tokens


def beside_ms(batch: BatchView, cost: CostModel, context_tokens: int) -> float:
    """What a step takes for the sake of others than those that are planned for: prefills, and what
    is drafted elsewhere."""
    n = len(batch.requests)
    found = cost.prefill_ms(n, batch.prefill_rows, context_tokens)
    if batch.elsewhere_rows:
        more = cost.verify_ms(n, n + batch.elsewhere_rows, context_tokens)
        found += max(more - cost.verify_ms(n, n, context_tokens), 0.0)
    return found


def within(costs: Table, tokens: float, choices: Choices, target: Target) -> Allocation:
    """The lengths of the best goodput that meet the target; those of the shortest wait where none
    do. costs and tokens as for `allocate`.

    Looked at are plain decoding, and every cut of two orders of the positions: by survival, which
    brings most tokens for each row, and slowest request first. So a tighter target never leads to
    a longer wait than a looser one."""
    families = [_Family(costs, tokens, choices, target, evenly) for evenly in (False, True)]
    chain = choices.chain
    if chain is not None:
        others = np.flatnonzero(choices.who != choices.names.index(chain.head))
        if 0 < len(others) < len(choices):  # what the shared pass takes may be what is too long
            rest, alone = choices.take(others), target._replace(slowest=1.0)
            families += [
                _Family(costs, tokens, rest, alone, evenly, others) for evenly in (False, True)
            ]
    goodput = np.concatenate([one.goodput for one in families])
    tpot_ms = np.concatenate([one.tpot_ms for one in families])
    place = _best(goodput, tpot_ms, target.ms)
    for family in families:
        if place < len(family.goodput):
            return family.allocation(place, len(choices))
        place -= len(family.goodput)
    raise AssertionError("the place is within the families")


def _best(goodput: Table, tpot_ms: Table, target_ms: float) -> int:
    """Which plan to take; the first is plain decoding, which drafts must clearly beat."""
    meets = tpot_ms <= target_ms
    if not meets.any():
        return int(tpot_ms.argmin())
    best = int(np.where(meets, goodput, -1.0).argmax())
    if meets.item(0) and goodput.item(best) <= goodput.item(0) * (1.0 + MIN_GAIN):
        return 0
    return best


class _Family:
    """Every cut of one order of the positions, the first cut before the first of them: by survival,
    or evenly, where each next token goes to the request that expects fewest. who: the places of the
    choices among more."""

    def __init__(
        self,
        costs: Table,
        tokens: float,
        choices: Choices,
        target: Target,
        evenly: bool,
        who: Lengths | None = None,
    ) -> None:
        self._choices, self._who, self._tokens = choices, who, tokens
        survival, filled = choices.survival, _filled(choices)
        expected = survival * filled
        before = np.add.accumulate(expected, axis=1) - expected
        depths, places = survival.T.nonzero()  # by depth, so that equal ones come in their order
        likely, least = survival[places, depths], before[places, depths]
        order = np.lexsort((-likely, least)) if evenly else (-likely).argsort(kind="stable")
        self._places, depths, least = places[order], depths[order], least[order]
        count = min(len(costs) - 1, len(order))
        gained = np.zeros(count + 1)
        np.add.accumulate(expected[self._places, depths][:count], out=gained[1:])
        rows = np.zeros(count + 1)
        np.add.accumulate(filled[self._places, depths][:count], out=rows[1:])
        self.tokens = tokens + gained
        self.ms: Table = np.interp(rows, np.arange(len(costs)), costs)
        ranks = np.full(survival.shape, len(order))
        ranks[self._places, depths] = np.arange(len(order))
        self.ms[1:] += np.add.accumulate(_due(choices, ranks, len(order)))[:count]
        self.goodput = self.tokens / self.ms
        # Of those that still may get more, the next position says how much they expect so far.
        fewest = np.append(least, np.inf)[::-1]
        fewest = np.minimum.accumulate(fewest)[::-1][: count + 1]
        whole = np.minimum.reduce(np.add.reduce(expected, axis=1))
        slowest = np.minimum(1.0 + np.minimum(fewest, whole), target.slowest)
        self.tpot_ms: Table = (self.ms + target.beside_ms) / slowest

    def allocation(self, place: int, choices: int) -> Allocation:
        """The plan of this cut, for so many choices."""
        places = self._places[:place]
        if self._who is not None:
            places = self._who[places]
        lengths = np.bincount(places, minlength=choices)
        tokens, ms, plain_ms = self.tokens.item(place), self.ms.item(place), self.ms.item(0)
        return Allocation(lengths, place, tokens, ms, plain_ms, self._tokens)


def _filled(choices: Choices) -> Table:
    """[n, K], the chance that a position is drafted where it is allotted: of tails below 1."""
    found = np.ones(choices.survival.shape)
    chain = choices.chain
    if chain is not None and chain.filled is not None:
        heads = choices.places(chain.head)
        found[heads, chain.depth : chain.depth + len(chain.filled)] = chain.filled
    return found


def _due(choices: Choices, ranks: Lengths, count: int) -> Table:
    """[count], the drafting ms that come with each position of the order. ranks: [n, K], where in
    it each position is, `count` for those that are not."""
    due = np.zeros(count + 1)
    if choices.own_ms is not None:
        np.add.at(due, ranks[:, 0], choices.own_ms)
    for code in choices.present():
        price, mine = choices.price(code), ranks[choices.who == code]
        firsts = np.minimum.reduce(mine, axis=0)
        due[firsts.item(0)] += price.fixed
        deepest = choices.depth(code, len(firsts))
        np.add.at(due, firsts[:deepest], price.per_depth)
    return due[:count]
