"""The ledger of decisions: their records, and what was measured while each was in force."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from controller.contract import Candidate, Decision, Realised, StepOutcome

KEPT = 256


class Ledger:
    """Opens and closes decisions, adds up what was measured under each, and hands them out.

    Ids sort by time and are unique. Memory: the last 256 decisions at most."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._last = 0
        self._number = 0
        self.current: Decision | None = None
        self._previous: Decision | None = None
        self._touched: OrderedDict[str, Decision] = OrderedDict()

    @property
    def count(self) -> int:
        """Decisions opened since the start."""
        return self._number

    def open(
        self,
        *,
        step: int,
        drafter: str,
        draft_length: float,
        inputs: dict[str, object],
        candidates: Sequence[Candidate],
        chosen: Candidate,
        reason: str,
        sentence: str,
        guard: str | None,
        requests: tuple[int, ...],
    ) -> Decision:
        """Close the decision in force and open the next. `chosen` is among the candidates."""
        now = self._clock()
        self._last = max(self._last + 1, int(now * 1e9))
        self._number += 1
        others = [c for c in candidates if c is not chosen]
        runner_up = max(others, key=lambda c: c.goodput, default=None)
        margin = 0.0
        if runner_up is not None and runner_up.goodput > 0:
            margin = chosen.goodput / runner_up.goodput - 1.0
        old = self.current
        decision = Decision(
            id=f"{self._last:016x}-{self._number:06d}",
            step=step,
            time=now,
            drafter=drafter,
            draft_length=round(draft_length, 3),
            previous_drafter=old.drafter if old else "none",
            previous_draft_length=old.draft_length if old else 0.0,
            inputs=inputs,
            candidates=tuple(candidates),
            runner_up=runner_up,
            margin=margin,
            reason=reason,
            sentence=sentence,
            guard=guard,
            predicted_goodput=chosen.goodput,
            requests=requests,
            predicted_tokens=chosen.predicted_tokens,
            predicted_ms=chosen.predicted_ms,
        )
        if old is not None:
            old.closed = True
            self._touch(old)
        self._previous, self.current = old, decision
        self._touch(decision)
        return decision

    def add(self, outcome: StepOutcome) -> None:
        """Credit a step to the decision it ran under."""
        decision = self.current
        if decision is None:
            return
        if outcome.step < decision.step and self._previous is not None:
            decision = self._previous
        realised = decision.realised
        realised.steps += 1
        realised.tokens += sum(r.committed for r in outcome.per_request)
        realised.ms += decoding_ms(outcome)
        self._touch(decision)

    def take(self) -> list[Decision]:
        """Copies of the decisions opened, closed or measured since the last call, oldest first."""
        taken = [
            replace(d, realised=Realised(d.realised.steps, d.realised.tokens, d.realised.ms))
            for d in sorted(self._touched.values(), key=lambda d: d.id)
        ]
        self._touched.clear()
        return taken

    def _touch(self, decision: Decision) -> None:
        self._touched[decision.id] = decision
        if len(self._touched) > KEPT:
            self._touched.popitem(last=False)


def decoding_ms(outcome: StepOutcome) -> float:
    """What a step took for its decoding requests. Where it carries prefill rows, the verify time
    counts by these requests' share of rows."""
    share = outcome.rows / max(outcome.rows + outcome.prefill_rows, 1)
    return outcome.verify_ms * share + outcome.draft_ms + outcome.overhead_ms


def summary(decision: Decision) -> dict[str, Any]:
    """Id, plan, reason and sentence: the short form for reports."""
    return {
        "id": decision.id,
        "time": decision.time,
        "drafter": decision.drafter,
        "draft_length": decision.draft_length,
        "reason": decision.reason,
        "sentence": decision.sentence,
    }
