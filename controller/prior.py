"""What steps should take by arithmetic, before they were measured and beyond where they were.

The roofline of the target on its machine (simulate/step_cost.py) with a factor on each kind of
work: 1 without measurements, else fitted to them, so that what is extrapolated has the size that
was measured and the shape that arithmetic says: linear in context, in steps at tile edges,
saturating in experts.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

import numpy as np

from controller.contract import CostPoint
from controller.simulate.step_cost import Parts, StepCost, Times

CERTAIN = 0.002
"""How much evidence a factor needs to leave the common one, in squared shares of measured steps."""
MAX_CURVES = 64
MANY = 4
"""Fewer rows are left out where there are others: they have kernels of their own, and say nothing
of what more rows cost."""
MOST = 16.0
"""A factor differs from the common one by so many times at most: what hardly shows in the measured
steps may be most of a larger one."""


class Prior:
    """Milliseconds of a step by (requests, rows, context per request), each request with as many
    rows."""

    def __init__(self, cost: StepCost, points: Sequence[CostPoint] = ()) -> None:
        self._cost = cost
        self._factors = _fitted(cost, points) if points else (1.0,) * len(Parts._fields)
        self._curves: dict[tuple[int, range, int | None], tuple[Times, Any]] = {}

    def ms(self, requests: int, rows: int, context: float) -> float:
        return self._sum(self._cost.parts(requests, float(rows)), context)

    def curve(self, requests: int, rows: range, context: float, most: int | None = None) -> Times:
        """`ms` of each of the numbers of rows, those above `most` taken for as many. What does not
        depend on the context is kept: it moves on while requests and rows come again."""
        key = requests, rows, most
        found = self._curves.get(key)
        if found is None:
            counts = np.arange(rows.start, rows.stop, dtype=np.float64)
            if most is not None:
                np.minimum(counts, most, out=counts)
            parts = self._cost.parts(requests, counts)
            if len(self._curves) >= MAX_CURVES:
                self._curves.clear()
            found = self._curves[key] = self._sum(parts, 0.0), self._factors[3] * parts.attention
        base, per_token = found
        return base + context * per_token

    def context_ms(self, requests: int, rows: int) -> float:
        """What each further token of context per request adds."""
        return self._factors[3] * self._cost.parts(requests, float(rows)).attention

    def _sum(self, parts: Parts, context: float) -> Any:
        fixed, rows, experts, attention = self._factors
        return (
            fixed * parts.fixed
            + rows * parts.rows
            + experts * parts.experts
            + attention * context * parts.attention
        )


def _fitted(cost: StepCost, points: Sequence[CostPoint]) -> tuple[float, ...]:
    """Ridge regression towards the common factor. Large steps count for more: what lies beyond is
    larger still."""
    many = [point for point in points if point.rows >= MANY] or points
    columns = [
        (parts.fixed, parts.rows, parts.experts, point.context_len * parts.attention)
        for point in many
        for parts in (cost.parts(point.requests, float(point.rows)),)
    ]
    work, measured = np.array(columns), np.array([point.ms for point in many])
    common = median((measured / work.sum(axis=1)).tolist())
    shares = work * common / measured.mean()
    square = shares.T @ shares + CERTAIN * np.eye(shares.shape[1])
    found = np.linalg.solve(square, shares.T @ measured / measured.mean() + CERTAIN)
    return tuple((common * np.clip(found, 1.0 / MOST, MOST)).tolist())
