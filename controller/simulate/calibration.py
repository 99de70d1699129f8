"""The start-up calibration of a simulated machine: all that a policy is told of its costs.

Measures the shapes that a serving engine measures, with noise, as medians of three."""

from __future__ import annotations

import numpy as np

from controller.contract import CostPoint
from controller.simulate.step_cost import StepCost

BATCHES = (1, 2, 4, 8, 16, 32, 64)
DRAFTS = (0, 1, 2, 3, 4, 6, 8, 12, 16)
FEW_DRAFTS = (0, 1, 3, 6, 12, 16)
MOST_ROWS = 128
CONTEXTS = (256, 1024)
REPEATS = 3


def calibrate(
    cost: StepCost, max_batch: int, noise: float, rng: np.random.Generator
) -> tuple[CostPoint, ...]:
    """noise: relative standard deviation of one measurement."""
    points: list[CostPoint] = []
    for context in CONTEXTS:
        for requests in BATCHES:
            if requests > max_batch:
                continue
            for drafted in DRAFTS if requests <= 2 else FEW_DRAFTS:
                rows = requests * (1 + drafted)
                deep = context == CONTEXTS[0] or (requests in (1, 8) and drafted in (0, 3, 16))
                if deep and (rows <= MOST_ROWS or not drafted):
                    true_ms = cost.step_ms(requests, 1 + drafted, context)
                    times = true_ms * (1.0 + noise * rng.standard_normal(REPEATS))
                    points.append(CostPoint(requests, rows, context, float(np.median(times))))
    return tuple(points)
