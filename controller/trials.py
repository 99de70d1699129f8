"""On how many requests a drafter is tried at once, and what that costs.

A pass of a model costs the same for one request as for all, so that one alone would pay all of it
for one observation. Tried are as many requests as make an observation the cheapest, those that lose
least tokens and time first; where they share nothing, one."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from controller.choices import Choices, Lengths, Table
from controller.planner import Allocation


class Trial(NamedTuple):
    """picked: which of the candidates are tried. rows: in place of or beyond the plan's. ms: beside
    the rows. gain: expected tokens beyond the plan's. cost: ms that the step is worth less, at the
    plan's goodput; never below 0."""

    picked: Lengths
    rows: int
    ms: float
    gain: float
    cost: float


def trial(
    rows: Lengths,
    gain: Table,
    own_ms: Table,
    pass_ms: float,
    costs: Table,
    best: Allocation,
    most: int | None = None,
) -> Trial | None:
    """The cheapest trial per observation, None without room for any. rows, gain, own_ms: [n], what
    each candidate changes by itself; pass_ms: what all of them share. costs[m]: ms with m drafted
    rows. most: so many candidates at most."""
    room = len(costs) - 1 - best.rows
    if len(costs) < 2 or not len(rows):
        return None
    row_ms = (costs.item(-1) - costs.item(0)) / (len(costs) - 1)
    net = own_ms - gain / best.goodput
    order = net.argsort(kind="stable")[: most if pass_ms else 1]
    net += rows * row_ms
    fits = np.add.accumulate(rows[order]) <= room
    order = order[: None if fits.all() else int(fits.argmin())]
    if not len(order):
        return None
    each = (pass_ms + np.add.accumulate(net[order])) / np.arange(1, len(order) + 1)
    picked = order[: int(each.argmin()) + 1]
    more = int(np.add.reduce(rows[picked]))
    ms = pass_ms + float(np.add.reduce(own_ms[picked]))
    gained = float(np.add.reduce(gain[picked]))
    rows_ms = costs.item(best.rows + more) - costs.item(best.rows)
    return Trial(picked, more, ms, gained, max(0.0, ms + rows_ms - gained / best.goodput))


def catch_up_ms(candidates: Choices) -> Table:
    """[n], what each must compute before its first draft."""
    if candidates.catch_up is None:
        return np.zeros(len(candidates))
    per_row = np.array([price.per_row for price in candidates.prices])
    return candidates.catch_up.astype(np.float64) * per_row[candidates.who]
