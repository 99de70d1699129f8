"""What a step costs: the calibrated table with a slow online correction, drafting, overhead."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from controller.contract import CostPoint, StepOutcome
from controller.cost_table import CostTable
from controller.draft_cost import FREE, DraftCost, DraftPrice
from controller.factors import Factors
from controller.overhead_cost import OverheadCost
from controller.prefill_cost import PrefillCost
from controller.simulate.step_cost import StepCost

MAX_CURVES = 256
MANY_ROWS = 64
"""Rows over which the price of a further one is taken."""
LEAST_CURVE = 128
"""Rows of a cached curve at least, so that it is not built again for each larger plan."""


class CostModel:
    """Milliseconds of a verify step by (requests, rows, context), plus draft and overhead.

    `points` is the calibration, `roofline` what steps should take by arithmetic, for where nothing
    was measured; without either a careful line stands in. `observe` corrects by a
    factor shared by all rows and one per bucket of rows, from residuals clamped to +-20 % and
    ignored within +-2 %. Rows not seen for a while learn faster and with a wider clamp, so that
    a few probes suffice to set them right. A run of steps that are all far off is a change of the
    machine and is followed at once (shift.py)."""

    def __init__(self, points: Sequence[CostPoint] = (), roofline: StepCost | None = None) -> None:
        self.points = tuple(points)
        self.roofline = roofline
        self._table = CostTable(points, roofline)
        self._curves: OrderedDict[tuple[int, int], NDArray[np.float64]] = OrderedDict()
        self._factors = Factors()
        self._draft: dict[str, DraftCost] = {}
        self._overhead = OverheadCost()
        self._prefill = PrefillCost()

    # --- reading ------------------------------------------------------------------------------

    def verify_ms(self, requests: int, rows: int, context_tokens: int) -> float:
        """Milliseconds of one target forward over `rows` rows of `requests` requests that hold
        `context_tokens` tokens of context in all."""
        context = context_tokens / max(requests, 1)
        return self._table.at(requests, rows, context) * self._factors.of(rows)

    def verify_curve(self, requests: int, extra: int, context_tokens: int) -> NDArray[np.float64]:
        """verify_ms at rows = requests + m for m = 0..extra, the mean context rounded to 64."""
        base = self._curve(requests, extra, context_tokens)
        factors = self._factors.between(requests, requests + extra)
        factors *= base[: extra + 1]
        return factors

    def row_ms(self, requests: int, rows: int, context_tokens: int) -> tuple[float, float]:
        """Milliseconds of a step without drafts, and what each of `rows` more takes on average."""
        base = self._curve(requests, rows, context_tokens)
        plain = base.item(0) * self._factors.of(requests)
        more = base.item(rows) * self._factors.of(requests + rows) - plain
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
        return self._overhead.ms(requests, drafting)

    @property
    def known_rows(self) -> int:
        """The most rows of steps that were seen often enough to go by; 0 before any were."""
        return self._factors.known_rows

    @property
    def factor(self) -> float:
        """The correction shared by all rows: 1.3 when the machine is 30 % slower than measured."""
        return self._factors.shared

    @property
    def spread(self) -> float:
        """Mean absolute relative residual of recent steps."""
        return self._factors.spread

    @property
    def drifting(self) -> bool:
        """Whether recent steps differ from the predictions by more than noise explains, or the
        machine has just changed."""
        return self._factors.drifting

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
        step_ms = outcome.verify_ms + outcome.draft_ms + outcome.overhead_ms
        other = outcome.overhead_ms + outcome.draft_ms
        for proposal in outcome.proposals:
            other -= proposal.ms
            if proposal.requests or proposal.catch_up:
                cost = self._draft.get(proposal.drafter)
                if cost is None:
                    cost = self._draft[proposal.drafter] = DraftCost()
                cost.learn(
                    proposal.requests, proposal.depth, proposal.ms, proposal.catch_up, step_ms
                )
        if looked:
            drafting = outcome.rows > outcome.requests
            self._overhead.learn(outcome.requests, drafting, other, step_ms)

    def _learn_verify(self, outcome: StepOutcome) -> None:
        context = outcome.context_tokens / outcome.requests
        table_ms = self._table.at(outcome.requests, outcome.rows, context)
        slower = self._factors.learn(outcome.requests, outcome.rows, table_ms, outcome.verify_ms)
        if slower != 1.0:
            self._prefill.scale(slower)

    # --- report ---------------------------------------------------------------------

    def report(self) -> dict[str, object]:
        """JSON-able view: the table and what was learned since."""
        return {
            "points": [
                {"requests": p.requests, "rows": p.rows, "context_len": p.context_len, "ms": p.ms}
                for p in self.points
            ],
            "factor": round(self.factor, 4),
            "factor_by_rows": self._factors.report(),
            "spread": round(self.spread, 4),
            "drifting": self.drifting,
            "draft_ms": {k: round(v.usual_ms, 4) for k, v in self._draft.items()},
            "draft_price": {
                name: {part: round(ms, 5) for part, ms in cost.price._asdict().items()}
                for name, cost in self._draft.items()
            },
            "prefill_row_ms": self._prefill.per_row,
            "overhead_ms": self._overhead.report(),
        }
