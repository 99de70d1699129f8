"""What drafting costs in a step: fixed, per request, per draft depth and per row of catching up.

Drafters draft for all their requests at once, so a price per request would be wrong by the batch
size: a call costs something by itself, and a serial drafter runs once per depth for everybody.
"""

from __future__ import annotations

import math
from statistics import median
from typing import NamedTuple

from controller.shift import Shift

KEEP = 1.0 - 1.0 / 128
USUAL = 0.05
SOLVE_EVERY = 8
"""The regression is solved after each of the first steps, then after every eighth."""
RIDGE = (0.02, 2.0, 2.0, 64.0)
"""How much evidence the parts need to leave what was thought of them at first, in steps: what one
step cannot tell apart counts as fixed."""
SERIAL_RIDGE = (2.0, 2.0, 0.02, 64.0)
"""The same of a model, which runs once per depth: it counts for the depth. A fixed part that is not
there would keep the model from being tried for a few requests."""
LEAST_MS = (0.001, 0.001, 0.001, 0.00001)
"""Smaller parts count as nothing."""
DOUBT = 2.0
"""A time above twice the expectation counts as twice, so that one stall does not move it far."""
FIRST_DOUBT, FIRST = 4.0, 8
"""The same for the first steps, when the expectation is a guess."""
FIRST_MS = 5.0
"""The most that the first call of a drafter without a guess counts for: it may compile."""


class DraftPrice(NamedTuple):
    """Milliseconds of a step's drafting: fixed + per_request * requests + per_depth * longest
    draft; and per_row for each row of text that the drafter has to catch up with."""

    fixed: float
    per_request: float
    per_depth: float
    per_row: float = 0.0

    def ms(self, requests: float, depth: float) -> float:
        """For so many requests, the longest draft of which has `depth` tokens; 0 for none."""
        if not requests:
            return 0.0
        return self.fixed + self.per_request * requests + self.per_depth * depth

    def call_ms(self, call: Call) -> float:
        """What such a call should take."""
        return self.ms(call.requests, call.depth) + self.per_row * call.catch_up

    def times(self, factor: float) -> DraftPrice:
        """All of it so many times as dear."""
        return DraftPrice(*(part * factor for part in self))


FREE = DraftPrice(0.0, 0.0, 0.0)


class Call(NamedTuple):
    """A step's drafting for so many requests, the longest draft `depth` tokens, together with
    `catch_up` rows of text, which took `ms`."""

    requests: int
    depth: int
    catch_up: int
    ms: float


class DraftCost:
    """One drafter's price, by discounted ridge regression over the steps it drafted in. guess: of a
    model, what it is thought to cost at first."""

    __slots__ = (
        "_depth",
        "_guess",
        "_learned",
        "_requests",
        "_ridge",
        "_right",
        "_shift",
        "_square",
        "price",
    )

    def __init__(self, guess: DraftPrice | None = None) -> None:
        self._square = [0.0] * 10
        self._right = [0.0] * 4
        self._learned = 0
        self._requests = self._depth = 0.0
        self._ridge = RIDGE if guess is None else SERIAL_RIDGE
        self._guess = self.price = guess or FREE
        self._shift: Shift[Call] = Shift()

    def learn(
        self, requests: int, depth: int, ms: float, catch_up: int = 0, step_ms: float = 0.0
    ) -> None:
        """A step's drafting for so many requests, the longest draft `depth` tokens, together with
        `catch_up` rows of text, took `ms`, in a step of `step_ms`. Without requests all of it went
        to the rows. A run of calls that are all far off is followed at once."""
        if self._learned or self._guess != FREE:
            if self.price.per_row or not catch_up:
                call = Call(requests, depth, catch_up, ms)
                expected = self.price.call_ms(call)
                if expected > 0.0 and ms > 0.0:
                    run = self._shift.add(math.log(ms) - math.log(expected), step_ms, call)
                    if run:
                        self._scale(median([one.ms / self.price.call_ms(one) for one in run]))
                        expected = self.price.call_ms(call)
                doubt = DOUBT if self._learned >= FIRST else FIRST_DOUBT
                ms = min(ms, doubt * expected + 0.1)
        else:
            ms = min(ms, FIRST_MS)
        f, n, d, c = float(requests > 0), float(requests), float(depth), float(catch_up)
        one, nn, dd, cc, sn, sd, sc, nd, nc, dc = self._square
        self._square = [
            KEEP * one + f,
            KEEP * nn + n * n,
            KEEP * dd + d * d,
            KEEP * cc + c * c,
            KEEP * sn + n,
            KEEP * sd + d,
            KEEP * sc + f * c,
            KEEP * nd + n * d,
            KEEP * nc + n * c,
            KEEP * dc + d * c,
        ]
        right, rn, rd, rc = self._right
        self._right = [
            KEEP * right + f * ms,
            KEEP * rn + n * ms,
            KEEP * rd + d * ms,
            KEEP * rc + c * ms,
        ]
        if requests:
            rate = USUAL if self._requests else 1.0
            self._requests += rate * (n - self._requests)
            self._depth += rate * (d - self._depth)
        self._learned += 1
        if self._learned < SOLVE_EVERY or self._learned % SOLVE_EVERY == 0:
            self.price = self._solve()

    def _scale(self, factor: float) -> None:
        """Everything takes so many times as long as was learned: the sums are linear in it."""
        self._right = [factor * part for part in self._right]
        self._guess = self._guess.times(factor)
        self.price = self.price.times(factor)

    @property
    def usual_ms(self) -> float:
        """Milliseconds of drafting per request in a usual step."""
        return self.price.ms(self._requests, self._depth) / max(self._requests, 1.0)

    def _solve(self) -> DraftPrice:
        """Parts below 0 are dropped, the worst first, and the others fitted again."""
        one, nn, dd, cc, sn, sd, sc, nd, nc, dc = self._square
        matrix = [[one, sn, sd, sc], [sn, nn, nd, nc], [sd, nd, dd, dc], [sc, nc, dc, cc]]
        right = list(self._right)
        for i, ridge in enumerate(self._ridge):
            matrix[i][i] += ridge
            right[i] += ridge * self._guess[i]
        used = [0, 1, 2, 3] if cc else [0, 1, 2]
        while True:
            parts = _solved([[matrix[i][j] for j in used] for i in used], [right[i] for i in used])
            worst = min(range(len(used)), key=parts.__getitem__)
            if parts[worst] >= 0.0 or len(used) == 1:
                found = dict(zip(used, parts, strict=True))
                if not cc:
                    found[3] = self._guess.per_row
                kept = [found.get(i, 0.0) for i in range(4)]
                return DraftPrice(*(p if p > LEAST_MS[i] else 0.0 for i, p in enumerate(kept)))
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
