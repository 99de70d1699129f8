"""The calibrated cost of a verify step: measured points and what lies between and beyond them.

The points are kept as measured (medians), not forced monotone: real kernels are not (eight rows
in fp32 on a CPU can be cheaper than three), and the planner must see that to use it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from statistics import median

import numpy as np
from numpy.typing import NDArray

from controller.contract import CostPoint

PRIOR = (CostPoint(1, 1, 0, 10.0), CostPoint(1, 9, 0, 26.0))
"""Without a calibration: 10 ms and a fifth of that per further row. The shape is pessimistic for
drafting, so an uncalibrated engine starts careful; the online correction finds the scale."""


class CostTable:
    """Milliseconds by (requests, rows, context per request).

    Exact at the points (the median where one was measured twice); between them linear in
    context, rows and requests; beyond them with the last slope, never falling."""

    def __init__(self, points: Sequence[CostPoint]) -> None:
        used = [p for p in points if p.ms > 0 and p.rows >= p.requests >= 1] or list(PRIOR)
        self._cells = _arrange(used)
        self._requests = sorted(self._cells)
        slopes = [
            s
            for rows in self._cells.values()
            if (s := _end_slope([(float(r), c.ys[0]) for r, c in rows])) is not None
        ]
        self._row_slope = median(slopes) if slopes else 0.2 * used[0].ms

    def at(self, requests: int, rows: int, context: float) -> float:
        """The table's milliseconds, context is per request."""
        sizes = self._requests
        i = bisect_left(sizes, requests)
        if i == len(sizes) or sizes[i] == requests or i == 0:
            return self._row(sizes[min(i, len(sizes) - 1)], rows, context)
        below, above = sizes[i - 1], sizes[i]
        share = (requests - below) / (above - below)
        low = self._row(below, rows, context)
        if rows >= above:
            return low + share * (self._row(above, rows, context) - low)
        # `above` requests cannot have so few rows: carry over its ratio at its first one.
        ratio = self._row(above, above, context) / self._row(below, above, context)
        return low * (1.0 + share * (ratio - 1.0))

    def _row(self, requests: int, rows: int, context: float) -> float:
        cells = self._cells[requests]
        i = bisect_left(cells, rows, key=lambda c: c[0])
        if i < len(cells) and cells[i][0] == rows:
            return cells[i][1].at(context)
        if i == 0:
            return cells[0][1].at(context)
        if i == len(cells):
            points = [(float(r), line.at(context)) for r, line in cells]
            slope = _end_slope(points)
            slope = self._row_slope if slope is None else slope
            return points[-1][1] + slope * (rows - points[-1][0])
        (r0, low), (r1, high) = cells[i - 1], cells[i]
        start = low.at(context)
        return start + (rows - r0) / (r1 - r0) * (high.at(context) - start)

    def curve(self, requests: int, extra: int, context: float) -> NDArray[np.float64]:
        """`at` for rows = requests + m for m = 0..extra: evaluated at the knots of the two
        neighbouring sizes, linear in between."""
        i = bisect_left(self._requests, requests)
        sizes = self._requests[max(0, i - 1) : i + 1]
        last = requests + extra
        knots = {requests, last, *(s for s in sizes if requests < s < last)}
        for size in sizes:
            knots.update(r for r, _ in self._cells[size] if requests < r < last)
        ordered = sorted(knots)
        known = [self.at(requests, r, context) for r in ordered]
        return np.interp(np.arange(requests, last + 1), ordered, known)


def _arrange(points: Sequence[CostPoint]) -> dict[int, list[tuple[int, _Line]]]:
    """requests -> [(rows, ms as a line over the context)], rows ascending."""
    cells: dict[tuple[int, int], dict[int, list[float]]] = {}
    for p in points:
        cells.setdefault((p.requests, p.rows), {}).setdefault(p.context_len, []).append(p.ms)
    lines = {
        key: [(float(c), median(ms)) for c, ms in sorted(by_context.items())]
        for key, by_context in cells.items()
    }
    slopes = [(key, s) for key, line in lines.items() if (s := _end_slope(line)) is not None]
    # A cell measured at one context borrows the typical slope per token of all requests.
    shared = median(s / key[0] for key, s in slopes) if slopes else 0.0
    own = dict(slopes)
    table: dict[int, list[tuple[int, _Line]]] = {}
    for requests, rows in sorted(lines):
        key = (requests, rows)
        line = _Line(lines[key], own.get(key, shared * requests))
        table.setdefault(requests, []).append((rows, line))
    return table


class _Line:
    """A piecewise-linear function through measured points, its end slope kept, never falling."""

    __slots__ = ("slope", "xs", "ys")

    def __init__(self, points: Sequence[tuple[float, float]], slope: float) -> None:
        self.xs = [x for x, _ in points]
        self.ys = [y for _, y in points]
        self.slope = slope

    def at(self, x: float) -> float:
        xs, ys = self.xs, self.ys
        if x <= xs[0]:
            return ys[0]
        if x >= xs[-1]:
            return ys[-1] + self.slope * (x - xs[-1])
        i = bisect_right(xs, x)
        share = (x - xs[i - 1]) / (xs[i] - xs[i - 1])
        return ys[i - 1] + share * (ys[i] - ys[i - 1])


def _end_slope(points: Sequence[tuple[float, float]]) -> float | None:
    """Slope from the point nearest half the range to the last one; None with one point."""
    if len(points) < 2:
        return None
    x, y = points[-1]
    half = min(points[:-1], key=lambda p: abs(p[0] - x / 2))
    return max(0.0, (y - half[1]) / (x - half[0]))
