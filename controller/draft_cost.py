"""What drafting costs in a step: a fixed part, a part per request and a part per draft depth.

Drafters draft for all their requests at once, so a price per request would be wrong by the batch
size: a call costs something by itself, and a serial drafter runs once per depth for everybody.
"""

from __future__ import annotations

from typing import NamedTuple

KEEP = 1.0 - 1.0 / 128
USUAL = 0.05
SOLVE_EVERY = 8
"""The regression is solved after each of the first steps, then after every eighth."""
RIDGE = (0.02, 2.0, 2.0)
"""How much evidence the parts need, in steps: what one step cannot tell apart counts as fixed."""
LEAST_MS = 0.001
"""Parts below a microsecond count as nothing."""
DOUBT = 2.0
"""A time above twice the expectation counts as twice, so that one stall does not move it far."""


class DraftPrice(NamedTuple):
    """Milliseconds of a step's drafting: fixed + per_request * requests + per_depth * longest
    draft."""

    fixed: float
    per_request: float
    per_depth: float

    def ms(self, requests: float, depth: float) -> float:
        """For so many requests, the longest draft of which has `depth` tokens; 0 for none."""
        if not requests:
            return 0.0
        return self.fixed + self.per_request * requests + self.per_depth * depth


FREE = DraftPrice(0.0, 0.0, 0.0)


class DraftCost:
    """One drafter's price, by discounted ridge regression over the steps it drafted in."""

    __slots__ = ("_depth", "_learned", "_requests", "_sums", "price")

    def __init__(self) -> None:
        self._sums = (0.0,) * 9
        self._learned = 0
        self._requests = self._depth = 0.0
        self.price = FREE

    def learn(self, requests: int, depth: int, ms: float) -> None:
        """A step's drafting for so many requests, the longest draft `depth` tokens, took `ms`."""
        if self._learned:
            ms = min(ms, DOUBT * self.price.ms(requests, depth) + 0.1)
        n, d = float(requests), float(depth)
        one, nn, dd, sn, sd, nd, right, rn, rd = self._sums
        self._sums = (
            KEEP * one + 1.0,
            KEEP * nn + n * n,
            KEEP * dd + d * d,
            KEEP * sn + n,
            KEEP * sd + d,
            KEEP * nd + n * d,
            KEEP * right + ms,
            KEEP * rn + n * ms,
            KEEP * rd + d * ms,
        )
        rate = USUAL if self._learned else 1.0
        self._requests += rate * (n - self._requests)
        self._depth += rate * (d - self._depth)
        self._learned += 1
        if self._learned < SOLVE_EVERY or self._learned % SOLVE_EVERY == 0:
            self.price = self._solve()

    @property
    def usual_ms(self) -> float:
        """Milliseconds of drafting per request in a usual step."""
        return self.price.ms(self._requests, self._depth) / max(self._requests, 1.0)

    def _solve(self) -> DraftPrice:
        """Parts below 0 are dropped, the worst first, and the others fitted again."""
        one, nn, dd, sn, sd, nd, *right = self._sums
        matrix = [[one, sn, sd], [sn, nn, nd], [sd, nd, dd]]
        for i, ridge in enumerate(RIDGE):
            matrix[i][i] += ridge
        used = [0, 1, 2]
        while True:
            parts = _solved([[matrix[i][j] for j in used] for i in used], [right[i] for i in used])
            worst = min(range(len(used)), key=parts.__getitem__)
            if parts[worst] >= 0.0 or len(used) == 1:
                found = dict(zip(used, parts, strict=True))
                kept = (found.get(i, 0.0) for i in range(3))
                return DraftPrice(*(part if part > LEAST_MS else 0.0 for part in kept))
            del used[worst]


def _solved(matrix: list[list[float]], right: list[float]) -> list[float]:
    """Gaussian elimination; the ridge keeps every pivot positive."""
    n = len(right)
    for i in range(n):
        for k in range(i + 1, n):
            factor = matrix[k][i] / matrix[i][i]
            for j in range(i, n):
                matrix[k][j] -= factor * matrix[i][j]
            right[k] -= factor * right[i]
    found = [0.0] * n
    for i in range(n - 1, -1, -1):
        rest = sum(matrix[i][j] * found[j] for j in range(i + 1, n))
        found[i] = (right[i] - rest) / matrix[i][i]
    return found
