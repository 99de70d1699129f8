"""What a step costs: the calibrated table with a slow online correction, drafting, overhead."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from controller.contract import CostPoint, StepOutcome
from controller.cost_table import CostTable
from controller.draft_cost import FREE, DraftCost, DraftPrice
from controller.prefill_cost import PrefillCost

DEAD_BAND = 0.02
INNOVATION, STALE_INNOVATION = 0.2, 0.6
SHARED_RATE = 0.04
OWN_RATE = 0.06
FRESH_STEPS = 256
SHARED_LIMIT = math.log(8.0)
OWN_LIMIT = math.log(4.0)
DRIFT_RATE = 1 / 64
DRIFT_ALARM = 0.05
FADE_STEPS = 64
FADE = 0.97
EMA = 0.05
FIRST_FACTOR, FIRST_MS = 4.0, 1.0
"""The first overhead of a kind of step counts at most so many times that of the nearest kind, and
so much more."""
MAX_CURVES = 256
MANY_ROWS = 64
"""Rows over which the price of a further one is taken."""
LEAST_CURVE = 128
"""Rows of a cached curve at least, so that it is not built again for each larger plan."""


def row_bucket(rows: int) -> int:
    """Rows up to 16 each have their own correction, beyond that four buckets per doubling."""
    return rows if rows <= 16 else min(16 + int(4.0 * math.log2(rows / 16.0)), MOST_BUCKETS - 1)


MOST_BUCKETS = 64
BUCKETS = np.array([row_bucket(max(rows, 1)) for rows in range(4097)], np.intp)


class CostModel:
    """Milliseconds of a verify step by (requests, rows, context), plus draft and overhead.

    `points` is the calibration; without one a careful prior stands in. `observe` corrects by a
    factor shared by all rows and one per bucket of rows, from residuals clamped to +-20 % and
    ignored within +-2 %. Rows not seen for a while learn faster and with a wider clamp, so that
    a few probes suffice to set them right."""

    def __init__(self, points: Sequence[CostPoint] = ()) -> None:
        self.points = tuple(points)
        self._table = CostTable(points)
        self._curves: OrderedDict[tuple[int, int], NDArray[np.float64]] = OrderedDict()
        self._factors = np.ones(MOST_BUCKETS)
        self._shared = 0.0
        self._own: dict[int, float] = {}
        self._visits: dict[int, tuple[float, int]] = {}
        self._observed = 0
        self._residual = 0.0
        self._spread = 0.05
        self._draft: dict[str, DraftCost] = {}
        self._overhead: dict[tuple[int, bool], float] = {}
        self._prefill = PrefillCost()

    # --- reading ------------------------------------------------------------------------------

    def verify_ms(self, requests: int, rows: int, context_tokens: int) -> float:
        """Milliseconds of one target forward over `rows` rows of `requests` requests that hold
        `context_tokens` tokens of context in all."""
        context = context_tokens / max(requests, 1)
        return self._table.at(requests, rows, context) * self._factor(rows)

    def verify_curve(self, requests: int, extra: int, context_tokens: int) -> NDArray[np.float64]:
        """verify_ms at rows = requests + m for m = 0..extra, the mean context rounded to 64."""
        base = self._curve(requests, extra, context_tokens)
        last = requests + extra
        if last < len(BUCKETS):
            buckets = BUCKETS[requests : last + 1]
        else:
            buckets = np.array([row_bucket(rows) for rows in range(requests, last + 1)], np.intp)
        factors = self._factors[buckets]
        factors *= math.exp(self._shared)
        factors *= base[: extra + 1]
        return factors

    def row_ms(self, requests: int, rows: int, context_tokens: int) -> tuple[float, float]:
        """Milliseconds of a step without drafts, and what each of `rows` more takes on average."""
        base = self._curve(requests, rows, context_tokens)
        plain = base.item(0) * self._factor(requests)
        more = base.item(rows) * self._factor(requests + rows) - plain
        return plain, max(more, 0.0) / rows

    def _curve(self, requests: int, extra: int, context_tokens: int) -> NDArray[np.float64]:
        """The table's milliseconds at rows = requests + m for m = 0..extra or more."""
        context = round(context_tokens / max(requests, 1) / 64)
        key = (requests, context)
        base = self._curves.get(key)
        if base is None or len(base) <= extra:
            base = self._table.curve(requests, max(extra, LEAST_CURVE), 64.0 * context)
            self._curves[key] = base
            if len(self._curves) > MAX_CURVES:
                self._curves.popitem(last=False)
        return base

    def expect(self, drafter: str, rho: float) -> None:
        """A model comes to draft: until it was measured, a drafted token costs `rho` of a plain
        step of one request, and a row of its catching up `rho` of a row of the target's. One that
        is known already keeps its price."""
        if drafter in self._draft:
            return
        plain = self.verify_ms(1, 1, 0)
        row = max(self.verify_ms(1, 1 + MANY_ROWS, 0) - plain, 0.0) / MANY_ROWS
        self._draft[drafter] = DraftCost(DraftPrice(0.0, 0.0, rho * plain, rho * row))

    def forget_drafter(self, drafter: str) -> None:
        """Drop what its drafts were measured to cost."""
        self._draft.pop(drafter, None)

    def draft_price(self, drafter: str) -> DraftPrice:
        """What drafting with the drafter costs in a step; before it was observed what was expected
        of it, or nothing."""
        found = self._draft.get(drafter)
        return FREE if found is None else found.price

    def prefill_ms(self, requests: int, prefill_rows: int, context_tokens: int) -> float:
        """What prefill rows add to a step of decoding requests; before any were seen as much as so
        many more rows of a verify step."""
        if not prefill_rows:
            return 0.0
        per_row = self._prefill.per_row
        if per_row is not None:
            return per_row * prefill_rows
        alone = self.verify_ms(requests, requests, context_tokens)
        return max(self.verify_ms(requests, requests + prefill_rows, context_tokens) - alone, 0.0)

    def overhead_ms(self, requests: int, drafting: bool) -> float:
        """Everything else in a step; falls back to the other kind of step, then to near sizes."""
        size = requests.bit_length()
        for key in ((size, drafting), (size, not drafting)):
            if key in self._overhead:
                return self._overhead[key]
        if not self._overhead:
            return 0.0
        return self._overhead[min(self._overhead, key=lambda k: abs(k[0] - size))]

    @property
    def factor(self) -> float:
        """The correction shared by all rows: 1.3 when the machine is 30 % slower than measured."""
        return math.exp(self._shared)

    @property
    def spread(self) -> float:
        """Mean absolute relative residual of recent steps."""
        return self._spread

    @property
    def drifting(self) -> bool:
        """Whether recent steps differ from the predictions by more than noise explains."""
        return abs(self._residual) > DRIFT_ALARM

    # --- learning -----------------------------------------------------------------------------

    def observe(self, outcome: StepOutcome, looked: bool = True) -> None:
        """Learn from a measured step. Steps that carry prefill rows teach what these take, and
        nothing else. looked: drafts were looked for, so that the overhead is that of a step to
        compare drafting with."""
        if outcome.requests < 1 or outcome.verify_ms <= 0:
            return
        if outcome.prefill_rows:
            # Where others share the step, as arms do, their rows are not told from a prefill's.
            if len(outcome.per_request) == outcome.requests:
                alone = self.verify_ms(outcome.requests, outcome.rows, outcome.context_tokens)
                self._prefill.learn(outcome.prefill_rows, outcome.verify_ms - alone)
            return
        self._learn_verify(outcome)
        drafting = outcome.rows > outcome.requests
        other = outcome.overhead_ms + outcome.draft_ms
        for proposal in outcome.proposals:
            other -= proposal.ms
            if proposal.requests or proposal.catch_up:
                cost = self._draft.get(proposal.drafter)
                if cost is None:
                    cost = self._draft[proposal.drafter] = DraftCost()
                cost.learn(proposal.requests, proposal.depth, proposal.ms, proposal.catch_up)
        if looked:
            key = (outcome.requests.bit_length(), drafting)
            old = self._overhead.get(key)
            if old is None and self._overhead:  # a first one may stall too
                near = self.overhead_ms(outcome.requests, drafting)
                self._overhead[key] = min(other, FIRST_FACTOR * near + FIRST_MS)
            else:
                self._overhead[key] = _ema(old, other)

    def _learn_verify(self, outcome: StepOutcome) -> None:
        predicted = self.verify_ms(outcome.requests, outcome.rows, outcome.context_tokens)
        error = math.log(outcome.verify_ms / predicted)
        self._observed += 1
        bucket = row_bucket(outcome.rows)
        weight, last = self._visits.get(bucket, (0.0, 0))
        weight *= (1.0 - 1.0 / FRESH_STEPS) ** (self._observed - last)
        self._visits[bucket] = (weight + 1.0, self._observed)
        usual = _within(error, INNOVATION)
        self._residual += DRIFT_RATE * (usual - self._residual)
        self._spread += DRIFT_RATE * (abs(usual) - self._spread)
        if self._observed % FADE_STEPS == 0:
            self._settle()
        if abs(error) < DEAD_BAND:
            return
        self._shared = _within(self._shared + SHARED_RATE * usual, SHARED_LIMIT)
        rate = max(OWN_RATE, 1.0 / (2.0 + weight))
        own = _within(error, INNOVATION + STALE_INNOVATION / (1.0 + weight))
        self._own[bucket] = _within(self._own.get(bucket, 0.0) + rate * own, OWN_LIMIT)
        self._factors[bucket] = math.exp(self._own[bucket])

    def _settle(self) -> None:
        """Give what the visited rows have in common to the shared factor (their times stay, the
        others follow), and fade the own corrections: rows no longer visited would stay shunned."""
        total = sum(self._visits[b][0] for b in self._own)
        if total:
            common = sum(v * self._visits[b][0] for b, v in self._own.items()) / total / 2.0
            self._shared = _within(self._shared + common, SHARED_LIMIT)
            self._own = {b: FADE * (v - common) for b, v in self._own.items()}
            for bucket, value in self._own.items():
                self._factors[bucket] = math.exp(value)

    # --- report ---------------------------------------------------------------------

    def report(self) -> dict[str, object]:
        """JSON-able view: the table and what was learned since."""
        return {
            "points": [
                {"requests": p.requests, "rows": p.rows, "context_len": p.context_len, "ms": p.ms}
                for p in self.points
            ],
            "factor": round(self.factor, 4),
            "factor_by_rows": {str(b): round(math.exp(v), 4) for b, v in sorted(self._own.items())},
            "spread": round(self._spread, 4),
            "drifting": self.drifting,
            "draft_ms": {k: round(v.usual_ms, 4) for k, v in self._draft.items()},
            "draft_price": {
                name: {part: round(ms, 5) for part, ms in cost.price._asdict().items()}
                for name, cost in self._draft.items()
            },
            "prefill_row_ms": self._prefill.per_row,
            "overhead_ms": {
                f"{'draft' if drafting else 'plain'}, {2 ** (size - 1)} requests": round(v, 4)
                for (size, drafting), v in sorted(self._overhead.items())
            },
        }

    def _factor(self, rows: int) -> float:
        return math.exp(self._shared + self._own.get(row_bucket(rows), 0.0))


def _ema(old: float | None, value: float) -> float:
    """Slow mean whose single step is at most a doubling, so one stall does not move it far."""
    if old is None:
        return value
    return old + EMA * (min(value, 2.0 * old + 0.1) - old)


def _within(value: float, limit: float) -> float:
    return min(max(value, -limit), limit)
