"""Which drafter drafts for which request, how deep a shared model pass goes, and who continues it.

A model drafter runs once per depth for all its requests, so its requests and its depth are chosen
together: at the smoothed price of time, the depth is taken whose tokens beyond the other choices
are worth most more than the pass costs. All of it is decided before anything is drawn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from controller.acceptance import Acceptance
from controller.barring import Bars
from controller.choices import Barred, Chain, Choices, Lengths, Table
from controller.contract import Features
from controller.planner import surplus
from controller.pricing import Price

LONGEST_TAIL = 8
LEAST_GAIN = 0.005
"""Tokens for each of a model's requests that bars must bring to be worth having."""
LEAST_ROWS = 1e-9
TAIL = Features(match_length=3)
"""A tail's text is not known when it is planned: all tails of a drafter share one bucket."""


def tail_key(drafter: str) -> str:
    """Under which name the drafter's acceptance as a tail is learned."""
    return f"{drafter} (tail)"


def fill_key(drafter: str) -> str:
    """Under which name it is learned how much of the allotted tail the drafter fills."""
    return f"{drafter} (tail filled)"


def chain_name(head: str, tail: str) -> str:
    """What a chain is called in decisions."""
    return f"{head}+{tail}"


def head_of(name: str) -> str:
    """The drafter of a plan by that name, of a chain its head."""
    return name.partition("+")[0]


@dataclass(slots=True)
class Tail:
    """How a model-free drafter continues drafts. survival: [LONGEST_TAIL], the chance that tail
    position j is accepted, given that the head was and that the position is drafted. filled: the
    chance that it is drafted."""

    drafter: str
    survival: Table
    filled: Table


def read_tails(acceptance: Acceptance, drafters: Sequence[str]) -> list[Tail]:
    """The tails of these drafters as learned so far."""
    keys = [(tail_key(name), TAIL) for name in drafters]
    keys += [(fill_key(name), FULL) for name in drafters]
    drafts = [(key, (NOBODY,), (features,)) for key, features in keys]
    found, n = acceptance.survivals(drafts, LONGEST_TAIL), len(drafters)
    return [Tail(name, found[i], found[n + i]) for i, name in enumerate(drafters)]


NOBODY = -1
FULL = Features()


@dataclass(slots=True)
class Pass:
    """A model's pass that its requests share: how deep, who continues its drafts, and the bars at
    which these end, None for none."""

    model: str
    depth: int
    tail: Tail | None
    bars: Bars | None = None


@dataclass(slots=True)
class Mix:
    """picked: [n], the choice of each request of the batch, -1 where it has none. shared: the model
    pass that some of them take part in."""

    picked: Lengths
    shared: Pass | None


class Grid:
    """The choices by drafter and request: [drafters, n] of places in `choices`, -1 for none."""

    def __init__(self, choices: Choices, requests: int, usable: Lengths | None = None) -> None:
        """usable: the places that may be chosen, all by default."""
        self.choices = choices
        self.places = np.full((len(choices.names), requests), -1, np.intp)
        if usable is None:
            self.places[choices.who, choices.requests] = np.arange(len(choices))
        else:
            self.places[choices.who[usable], choices.requests[usable]] = usable

    def best(self, worth: Table) -> Lengths:
        """[n], of each request's choices the one of the largest worth, of equals the first
        drafter's. worth: [choices + 1], the last is -inf."""
        if len(self.places) == 1:
            return self.places[0]
        best = worth.take(self.places, mode="wrap").argmax(0)
        return self.places[best, np.arange(self.places.shape[1])]

    def without(self, names: Sequence[str]) -> Grid:
        """The grid without these drafters."""
        kept = [i for i, name in enumerate(self.choices.names) if name not in names]
        found = Grid.__new__(Grid)
        found.choices, found.places = self.choices, self.places[kept]
        return found


def worth_of(choices: Choices, price: Price) -> Table:
    """[choices + 1], the surplus of each, and -inf behind for `no choice`."""
    worth = np.full(len(choices) + 1, -np.inf)
    surplus(choices, price, worth[:-1])
    return worth


def mix(
    grid: Grid,
    caps: Lengths,
    models: Sequence[str],
    tails: Sequence[Tail],
    price: Price,
    bars: Mapping[str, Bars],
) -> Mix:
    """One choice for each request that has any. caps: by choice, how many tokens its request may
    draft with a tail, 0 where a tail is not allowed. bars: by model, where its margins tell."""
    worth = worth_of(grid.choices, price)
    picked = grid.best(worth)
    rivals = grid.without(models)
    best: tuple[float, Mix] | None = None
    for model in models:
        if model in grid.choices.names:
            ends = bars.get(model)
            found = _with_model(model, grid, rivals, picked, worth, caps, tails, price, ends)
            if found is not None and (best is None or found[0] > best[0]):
                best = found
    return best[1] if best is not None else Mix(picked, None)


def _with_model(
    model: str,
    grid: Grid,
    rivals: Grid,
    picked: Lengths,
    worth: Table,
    caps: Lengths,
    tails: Sequence[Tail],
    price: Price,
    bars: Bars | None,
) -> tuple[float, Mix] | None:
    """What the model adds at its best depth, in tokens, and the mix with it."""
    choices = grid.choices
    code = choices.names.index(model)
    places = np.flatnonzero(grid.places[code] >= 0)
    if not len(places):
        return None
    mine = grid.places[code, places]
    rival = np.full(len(places), -1)
    if len(rivals.places):
        rival = rivals.best(worth)[places]
    other = np.maximum(worth.take(rival, mode="wrap"), 0.0)
    cost, survival = choices.price(code), choices.survival.T.take(mine, 1).T
    depths = np.arange(1, survival.shape[1] + 1)
    own = price.per_ms * cost.per_request
    if choices.charges is not None:
        own = own + price.per_ms * choices.charges[mine][:, None]
    passes_ms = cost.fixed + cost.per_depth * depths
    caps = caps.take(mine)

    def at_best(barred: Barred | None) -> tuple[float, int, Table, Tail | None]:
        """The most that any depth adds, the depth, what the requests gain there, the tail."""
        ends = survival
        if barred is None:
            gained = np.maximum(survival - price.per_row, 0.0)
        else:
            gained = barred.tokens - price.per_row * barred.rows
            ends = barred.tokens / np.maximum(barred.rows, LEAST_ROWS)
        values = np.add.accumulate(gained, axis=1)
        values -= own
        tail, bonus = _best_tail(ends, caps, depths, tails, price.per_row)
        values += bonus if barred is None else bonus * barred.rows
        gains = np.maximum(values - other[:, None], 0.0)
        total = np.add.reduce(gains, axis=0) - price.per_ms * passes_ms
        place = int(total.argmax())
        return total.item(place), place + 1, gains[:, place], tail

    added, depth, gains, tail = at_best(None)
    if bars is not None:
        with_bars = at_best(bars.of(survival, choices.requests[mine]))
        if with_bars[0] > max(added, 0.0) + LEAST_GAIN * len(mine):
            added, depth, gains, tail = with_bars
        else:
            bars = None
    joins = (rival < 0) | ((gains > 0.0) & (added > 0.0))
    chosen = picked.copy()
    chosen[places] = np.where(joins, mine, rival)
    return added, Mix(chosen, Pass(model, depth, tail, bars))


def _best_tail(
    survival: Table, room: Lengths, depths: Lengths, tails: Sequence[Tail], row_price: float
) -> tuple[Tail | None, Table]:
    """The tail that adds most, and what it adds after each depth: [n, K] tokens beyond the price
    of its rows. survival: of heads as far as they go; room: [n], how many tokens each may draft in
    all."""
    best, bonus = None, np.zeros_like(survival)
    most = 0.0
    ends = depths[:, None] + np.arange(1, LONGEST_TAIL + 1)
    fits = (ends <= room[:, None, None]) & (survival > 0.0)[:, :, None]
    for tail in tails:
        gain = survival[:, :, None] * tail.survival - row_price
        found: Table = np.add.reduce(np.maximum(gain, 0.0) * tail.filled * fits, axis=2)
        total = float(np.add.reduce(found, axis=None))
        if total > most:
            best, bonus, most = tail, found, total
    return best, bonus


def chained(choices: Choices, shared: Pass, caps: Lengths) -> Choices:
    """The choices as the shared pass bounds them: the model's end at its depth, and those that get
    there go on with the tail as far as their caps allow."""
    depth, tail, bars = shared.depth, shared.tail, shared.bars
    mine = choices.who == choices.names.index(shared.model)
    before = choices.longest
    longest = np.where(mine, np.minimum(before, depth), before)
    survival = choices.survival.copy(order="K")
    survival[mine, depth:] = 0.0
    chain = Chain(shared.model, depth)
    barred = None
    if bars is not None:
        chain.bars = bars.by_request
        barred = bars.of(survival * mine[:, None], choices.requests)
    found = replace(choices, survival=survival, longest=longest, chain=chain, barred=barred)
    return found if tail is None else _tailed(found, tail, caps, mine & (before >= depth))


def _tailed(choices: Choices, tail: Tail, caps: Lengths, goes_on: NDArray[np.bool_]) -> Choices:
    """The choices with a tail behind those heads that may go on."""
    chain = choices.chain
    assert chain is not None
    depth = chain.depth
    chain.tail, chain.filled = tail.drafter, tail.filled
    more = np.clip(caps - depth, 0, LONGEST_TAIL) * goes_on
    behind = slice(depth, depth + LONGEST_TAIL)
    there = np.arange(LONGEST_TAIL) < more[:, None]
    survival = _widened(choices.survival, depth + LONGEST_TAIL)
    survival[:, behind] += survival[:, depth - 1 : depth] * tail.survival * there
    barred = choices.barred
    if barred is not None:
        barred = Barred(*(_widened(table, depth + LONGEST_TAIL) for table in barred))
        drafted = tail.filled * there
        rows, tokens = (table[:, depth - 1 : depth] for table in barred)
        barred.rows[:, behind] += rows * drafted
        barred.tokens[:, behind] += tokens * tail.survival * drafted
    return replace(choices, survival=survival, longest=choices.longest + more, barred=barred)


def _widened(table: Table, width: int) -> Table:
    """[n, width] at least, zeros behind; in memory position by position."""
    padded = np.zeros((max(table.shape[1], width), len(table)))
    padded[: table.shape[1]] = table.T
    return padded.T
