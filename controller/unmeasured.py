"""Where nothing was measured, the guidelines bound D: until steps of that many rows were."""

from __future__ import annotations

from controller.cost import MANY_ROWS, CostModel
from controller.guidelines import knee_length, measured_knee_rows, tile_end

GROWTH = 2
"""So many times the rows that were measured may be tried."""


def longest(cost: CostModel, requests: int) -> int | None:
    """The most tokens that a request drafts in a step of so many; None where no guideline binds: a
    calibration measured the machine, or nothing is known of it.

    The knee of the GEMMs (guideline 1) and the first tile of the attention (2 and 3) bound it, at 1
    or more, so that drafted rows are ever measured; what was measured goes before both."""
    roofline = cost.roofline
    if cost.points or roofline is None:
        return None
    one_ms = cost.verify_ms(1, 1, 0)
    row_ms = (cost.verify_ms(1, 1 + MANY_ROWS, 0) - one_ms) / MANY_ROWS
    bound = min(
        knee_length(measured_knee_rows(one_ms, row_ms), requests), tile_end(0, roofline.group)
    )
    return max(bound, 1, GROWTH * cost.known_rows // requests - 1)
