"""The lengths of a step: what was asked for, then the best of what is left to the controller, and
both again within the operator's constraints where they went beyond these."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from controller.choices import Table
from controller.contract import BatchView, Setting
from controller.cost import CostModel
from controller.exploring import ROWS
from controller.limits import Beyond, Limited
from controller.lineup import Lineup
from controller.planner import Allocation, allocate
from controller.pricing import Price
from controller.target import Target, beside_ms, within


@dataclass(slots=True)
class Settled:
    """placed: (place in lineup.all, length) where the length was asked for, with `rows` in all.
    tokens: what the step commits without the free choices. room: rows left for these. reachable: ms
    with m rows of them, as far as probes may go; costs: as far as they can draft. best: their
    lengths."""

    lineup: Lineup
    placed: list[tuple[int, int]]
    rows: int
    tokens: float
    room: int
    reachable: Table
    costs: Table
    best: Allocation

    @property
    def drafted(self) -> int:
        """Drafted tokens of the step at most."""
        return self.rows + int(np.add.reduce(self.best.lengths))


class Settling:
    """Settles one step. alone_ms: of its plain step. price: of time and rows, at which `line_up`
    makes a lineup."""

    def __init__(
        self,
        batch: BatchView,
        setting: Setting,
        cost: CostModel,
        context_tokens: int,
        alone_ms: float,
        price: Price,
        line_up: Callable[[Price], Lineup],
    ) -> None:
        self._batch, self._setting, self._cost = batch, setting, cost
        self._size, self._context, self._alone_ms = len(batch.requests), context_tokens, alone_ms
        self._price, self._line_up = price, line_up

    def settle(self, lineup: Lineup, room: int, cap: int | None = None) -> Settled:
        """The best lengths in so much room. cap: the most tokens of lengths that were asked for."""
        n, cost, free = self._size, self._cost, lineup.free
        placed, gained, draft_ms = lineup.place(room, cap)
        rows = sum([length for _, length in placed])
        room -= rows
        extra = min(room, int(np.add.reduce(free.longest)))
        reach = rows + min(room, extra + ROWS * n)
        curve = cost.verify_curve(n, reach, self._context)
        reachable = curve[rows:] + (cost.overhead_ms(n, True) + draft_ms)
        if not rows:
            reachable[0] = self._alone_ms
        costs, tokens = reachable[: extra + 1], n + gained
        best = allocate(costs, tokens, free)
        return Settled(lineup, placed, rows, tokens, room, reachable, costs, best)

    def limited(self, settled: Settled, room: int) -> tuple[Settled, Limited]:
        """The same within the operator's constraints, and what these did. settled: the best in
        `room`, which is within the budget already."""
        setting, free_room = self._setting, max(self._batch.free_rows, 0)
        by_budget = by_target = tpot_ms = None
        if room < free_room and settled.drafted >= room:
            widest = self.settle(settled.lineup, free_room)
            if widest.drafted > settled.drafted:
                by_budget = Beyond(1000.0 * widest.best.goodput, widest.drafted)
                settled = self._repriced(settled, room)
        if setting.tpot_target_ms is not None:
            before, tpot_ms = settled, self._tpot_ms(settled)
            if tpot_ms > setting.tpot_target_ms:
                beyond = Beyond(1000.0 * before.best.goodput, tpot_ms)
                settled, tpot_ms = self._on_target(before, tpot_ms, room, setting.tpot_target_ms)
                by_target = None if settled is before else beyond
        found = Limited(setting.tpot_target_ms, setting.draft_budget, tpot_ms, by_target, by_budget)
        return settled, found

    # --- budget -------------------------------------------------------------------------------

    def _repriced(self, settled: Settled, room: int) -> Settled:
        """Where rows are scarce, one is worth as much as the best position that gets none, and at
        that price other drafters may have the best ones."""
        lineup, count = settled.lineup, len(settled.costs) - 1
        if lineup.offered.alone or not count:
            return settled
        rising = np.sort(lineup.free.survival, axis=None)
        left_out = rising.item(-count - 1) if count < len(rising) else 0.0
        price = self._price._replace(per_row=max(self._price.per_row, left_out))
        found = self.settle(self._line_up(price), room)
        return found if found.best.goodput > settled.best.goodput else settled

    # --- target -------------------------------------------------------------------------------

    def _on_target(
        self, settled: Settled, tpot_ms: float, room: int, target_ms: float
    ) -> tuple[Settled, float]:
        """The plan that meets the target with as much as may be of what was asked for, else the
        one of the shortest TPOT; and its TPOT. settled: one that misses the target."""
        best, shortest = self._within(settled, tpot_ms, target_ms)
        longest = max([length for _, length in settled.placed], default=0)
        for cap in range(longest - 1, -1, -1):
            if shortest <= target_ms:
                break
            found = self.settle(settled.lineup, room, cap)
            found, ms = self._within(found, self._tpot_ms(found), target_ms)
            if ms < shortest:
                best, shortest = found, ms
        return best, shortest

    def _within(self, settled: Settled, tpot_ms: float, target_ms: float) -> tuple[Settled, float]:
        """With free lengths that suit the target, where those of the best goodput do not."""
        free = settled.lineup.free
        if tpot_ms <= target_ms or len(settled.costs) < 2:
            return settled, tpot_ms
        target = self._target(settled, target_ms)
        best = within(settled.costs, settled.tokens, free, target)
        if np.array_equal(best.lengths, settled.best.lengths):
            return settled, tpot_ms
        return replace(settled, best=best), target.tpot_ms(free, best.lengths, best.ms)

    def _tpot_ms(self, settled: Settled) -> float:
        best = settled.best
        target = self._target(settled, 0.0)
        return target.tpot_ms(settled.lineup.free, best.lengths, best.ms, best.barred)

    def _target(self, settled: Settled, target_ms: float) -> Target:
        """The target with what the step holds beside the free choices."""
        lineup, placed = settled.lineup, settled.placed
        others = self._size - len(self._batch.elsewhere) - len(lineup.free) - len(placed)
        slowest = 1.0 if others > 0 else math.inf
        for i, length in placed:
            slowest = min(slowest, 1.0 + float(lineup.all.survival[i, :length].sum()))
        return Target(target_ms, self._beside_ms, slowest)

    @cached_property
    def _beside_ms(self) -> float:
        return beside_ms(self._batch, self._cost, self._context)
