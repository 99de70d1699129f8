"""Counts what the steps did, and hands out one interval at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from controller.contract import RequestOutcome, StepOutcome
from engine.wire import Cell

SAMPLES = 4096
"""Step times kept per interval for the percentiles."""


@dataclass(slots=True)
class _Tally:
    request_steps: int = 0
    tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    reached: list[int] = field(default_factory=list)
    accepted_at: list[int] = field(default_factory=list)
    verify_ms: float = 0.0
    draft_ms: float = 0.0
    overhead_ms: float = 0.0

    def add(self, outcome: RequestOutcome) -> None:
        self.request_steps += 1
        self.tokens += outcome.committed
        self.drafted += outcome.drafted
        self.accepted += outcome.accepted
        # Position k is reached when 1..k-1 were accepted; a cut leaves the next one unobserved.
        reached = min(outcome.drafted, outcome.accepted + (0 if outcome.cut else 1))
        if reached > len(self.reached):
            grow = [0] * (reached - len(self.reached))
            self.reached.extend(grow)
            self.accepted_at.extend(grow)
        for position in range(reached):
            self.reached[position] += 1
        for position in range(outcome.accepted):
            self.accepted_at[position] += 1


@dataclass(frozen=True, slots=True)
class Interval:
    """Sums since the last `take`. tokens counts all output tokens of decode steps and prefills."""

    steps: int
    tokens: int
    drafted_tokens: int
    prefill_tokens: int
    batch_mean: float
    batch_max: int
    tpot_ms: float | None
    step_ms_p50: float | None
    step_ms_p99: float | None
    cells: tuple[Cell, ...]


class Meter:
    """Plain integers on the step path; the sums are shared out only once an interval."""

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        self._steps = 0
        self._first_tokens = 0
        self._prefill = 0
        self._batch_sum = 0
        self._batch_max = 0
        self._decode_steps = 0
        self._request_ms = 0.0
        self._times: list[float] = []
        self._cells: dict[tuple[str, int], _Tally] = {}

    def add(self, outcome: StepOutcome, first_tokens: int) -> None:
        """Count one step. first_tokens: output tokens that came from prefills ending in it."""
        total_ms = outcome.verify_ms + outcome.draft_ms + outcome.overhead_ms
        self._steps += 1
        self._first_tokens += first_tokens
        self._prefill += outcome.prefill_rows
        self._batch_sum += outcome.requests
        self._batch_max = max(self._batch_max, outcome.requests)
        if len(self._times) < SAMPLES:
            self._times.append(total_ms)
        if not outcome.requests:
            return
        self._decode_steps += 1
        self._request_ms += total_ms * outcome.requests
        for request in outcome.per_request:
            cell = self._cells.setdefault((request.name, request.drafted), _Tally())
            cell.add(request)
            share = (1 + request.drafted) / (outcome.rows + outcome.prefill_rows)
            cell.verify_ms += share * outcome.verify_ms
            cell.draft_ms += share * outcome.draft_ms
            cell.overhead_ms += share * outcome.overhead_ms

    def take(self) -> Interval:
        """The interval so far; counting starts anew."""
        cells = tuple(
            Cell(
                drafter=drafter,
                draft_length=length,
                request_steps=tally.request_steps,
                tokens=tally.tokens,
                drafted=tally.drafted,
                accepted=tally.accepted,
                reached=tuple(tally.reached),
                accepted_at=tuple(tally.accepted_at),
                verify_ms=tally.verify_ms,
                draft_ms=tally.draft_ms,
                overhead_ms=tally.overhead_ms,
            )
            for (drafter, length), tally in self._cells.items()
        )
        decoded = sum(cell.tokens for cell in cells)
        interval = Interval(
            steps=self._steps,
            tokens=decoded + self._first_tokens,
            drafted_tokens=sum(cell.accepted for cell in cells),
            prefill_tokens=self._prefill,
            batch_mean=self._batch_sum / self._decode_steps if self._decode_steps else 0.0,
            batch_max=self._batch_max,
            tpot_ms=self._request_ms / decoded if decoded else None,
            step_ms_p50=_percentile(self._times, 0.5),
            step_ms_p99=_percentile(self._times, 0.99),
            cells=cells,
        )
        self._reset()
        return interval


def _percentile(values: Sequence[float], share: float) -> float | None:
    if not values:
        return None
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
