"""What one D for everybody would give in a step: the alternatives that decisions show."""

from __future__ import annotations

import numpy as np

from controller.contract import BatchView
from controller.cost import CostModel
from controller.journal import GRID
from controller.planner import uniform
from controller.settling import Settled


def uniform_grid(
    settled: Settled, batch: BatchView, cost: CostModel, context_tokens: int, alone_ms: float
) -> dict[str, list[tuple[float, float]]]:
    """Expected tokens and ms of each D in GRID, by drafter: of the free choices beside what was
    asked for; where nothing is free, of all, as if nobody had asked. alone_ms: of a plain step."""
    shown, costs, tokens = settled.lineup.free, settled.costs, settled.tokens
    room = settled.room
    if not len(shown) and len(settled.lineup.all):
        shown, n = settled.lineup.all, len(batch.requests)
        room = max(batch.free_rows, 0)
        extra = min(room, int(np.add.reduce(shown.longest)))
        costs = cost.verify_curve(n, extra, context_tokens)
        costs += cost.overhead_ms(n, True)
        costs[0], tokens = alone_ms, float(n)
    return {
        shown.names[code]: uniform(costs, tokens, shown.of(code), GRID, room)
        for code in shown.present()
    }
