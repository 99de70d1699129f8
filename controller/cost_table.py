"""The calibrated cost of a verify step: measured points and what lies between and beyond them.

Beyond them a prior says how it goes on, where there is one. The points are kept as measured
(medians), not forced monotone: real kernels are not (eight rows in fp32 on a CPU can be cheaper
than three), and the planner must see that to use it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from statistics import median

import numpy as np
from numpy.typing import NDArray

from controller.contract import CostPoint
from controller.prior import Prior
from controller.simulate.step_cost import StepCost

CAREFUL = (CostPoint(1, 1, 0, 10.0), CostPoint(1, 9, 0, 26.0))
"""Without a calibration and a prior: 10 ms and a fifth of that per further row. The shape is
pessimistic for drafting, so an uncalibrated engine starts careful; the online correction finds the
scale."""


class CostTable:
    """Milliseconds by (requests, rows, context per request).

    Exact at the points (the median where one was measured twice); between them linear in
    context, rows and requests; beyond them by the prior fitted to them, or without one with the
    last slope, never falling. Without points the prior itself."""

    def __init__(self, points: Sequence[CostPoint], roofline: StepCost | None = None) -> None:
        used = [p for p in points if p.ms > 0 and p.rows >= p.requests >= 1]
        self._prior = Prior(roofline, used) if roofline is not None else None
        self._cells = _arrange(used, self._prior) if used or self._prior else _arrange(CAREFUL)
        self._requests = sorted(self._cells)
        slopes = [
            s
            for rows in self._cells.values()
            if (s := _end_slope([(float(r), c.ys[0]) for r, c in rows])) is not None
        ]
        self._row_slope = median(slopes) if slopes else 0.2 * used[0].ms if used else 0.0

    def at(self, requests: int, rows: int, context: float) -> float:
        """The table's milliseconds, context is per request."""
        sizes, prior = self._requests, self._prior
        if prior is not None and (not sizes or requests > sizes[-1]):
            if not sizes:
                return prior.ms(requests, rows, context)
            last = min(rows, self._cells[sizes[-1]][-1][0])
            more = prior.ms(requests, rows, context) - prior.ms(sizes[-1], last, context)
            return self._row(sizes[-1], last, context) + max(more, 0.0)
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
        """At a size that was measured."""
        cells = self._cells[requests]
        i = bisect_left(cells, rows, key=lambda c: c[0])
        if i < len(cells) and cells[i][0] == rows:
            return cells[i][1].at(context)
        if i == 0:
            return cells[0][1].at(context)
        if i == len(cells):
            last, line = cells[-1]
            return line.at(context) + self._further(requests, last, rows, context)
        (r0, low), (r1, high) = cells[i - 1], cells[i]
        start = low.at(context)
        return start + (rows - r0) / (r1 - r0) * (high.at(context) - start)

    def _further(self, requests: int, last: int, rows: int, context: float) -> float:
        """What rows beyond the last measured ones add."""
        if self._prior is not None:
            more = self._prior.ms(requests, rows, context)
            return max(more - self._prior.ms(requests, last, context), 0.0)
        return self._slope(requests, context) * (rows - last)

    def _slope(self, requests: int, context: float) -> float:
        found = _end_slope([(float(r), line.at(context)) for r, line in self._cells[requests]])
        return self._row_slope if found is None else found

    def curve(self, requests: int, extra: int, context: float) -> NDArray[np.float64]:
        """`at` for rows = requests + m for m = 0..extra."""
        rows = range(requests, requests + extra + 1)
        sizes, prior = self._requests, self._prior
        if prior is not None and (not sizes or requests > sizes[-1]):
            more = prior.curve(requests, rows, context)
            if not sizes:
                return more
            largest = sizes[-1]
            last = self._cells[largest][-1][0]
            more -= prior.curve(largest, rows, context, last)
            return self._rows(largest, rows, context, further=False) + np.maximum(more, 0.0)
        i = bisect_left(sizes, requests)
        if i == len(sizes) or sizes[i] == requests or i == 0:
            return self._rows(sizes[min(i, len(sizes) - 1)], rows, context)
        below, above = sizes[i - 1], sizes[i]
        share = (requests - below) / (above - below)
        low = self._rows(below, rows, context)
        found = low + share * (self._rows(above, rows, context) - low)
        few = max(0, min(above - requests, len(rows)))
        ratio = self._row(above, above, context) / self._row(below, above, context)
        found[:few] = low[:few] * (1.0 + share * (ratio - 1.0))
        return found

    def _rows(
        self, requests: int, rows: range, context: float, further: bool = True
    ) -> NDArray[np.float64]:
        """`_row` side by side; without what rows beyond the last measured ones add if not
        `further`."""
        cells = self._cells[requests]
        known = [line.at(context) for _, line in cells]
        found = np.interp(np.arange(rows.start, rows.stop), [r for r, _ in cells], known)
        last = cells[-1][0]
        first = max(last + 1, rows.start)
        if further and first < rows.stop:
            beyond, at = range(first, rows.stop), first - rows.start
            if self._prior is not None:
                more = self._prior.curve(requests, beyond, context)
                more -= self._prior.ms(requests, last, context)
                found[at:] += np.maximum(more, 0.0)
            else:
                found[at:] += self._slope(requests, context) * (np.array(beyond) - last)
        return found


def _arrange(
    points: Sequence[CostPoint], prior: Prior | None = None
) -> dict[int, list[tuple[int, _Line]]]:
    """requests -> [(rows, ms as a line over the context)], rows ascending. prior: says how the
    lines go on."""
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
        slope = own.get(key, shared * requests) if prior is None else prior.context_ms(*key)
        line = _Line(lines[key], slope)
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
