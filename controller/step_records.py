"""Sampled steps: what a step was predicted to give when it was planned, and what it gave."""

from __future__ import annotations

import math
import random
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass

from controller import reasons
from controller.averages import Sample
from controller.contract import BatchView, StepOutcome, StepRecord
from controller.decision import decoding_ms

ONE_IN = 256
KEPT = 64
"""Records that nobody has taken yet; the oldest go first."""
IN_FLIGHT = 4
"""Sampled steps whose outcomes may still come."""


@dataclass(frozen=True, slots=True)
class Predicted:
    """A step as it was planned; see StepRecord."""

    time: float
    requests: int
    context: float
    prefill_rows: int
    drafts: dict[str, tuple[int, int]]
    tokens: float
    ms: float
    price: float
    probe: bool
    guard: str | None
    decision: str


class StepRecords:
    """Draws steps at random gaps, one in 256 on average, whatever happens in them: in no rhythm
    with what the controller itself does in every fourth or sixteenth one. clock: seconds since the
    epoch."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._random = random.Random(0)
        self._left = self._gap()
        self._in_flight: OrderedDict[int, Predicted] = OrderedDict()
        self._records: deque[StepRecord] = deque(maxlen=KEPT)

    def draws(self) -> bool:
        """Whether the step that is planned now is one of the sample; asked once for every step."""
        self._left -= 1
        if self._left:
            return False
        self._left = self._gap()
        return True

    def _gap(self) -> int:
        """Steps to the next one of the sample, geometric: every step is as likely as any other."""
        return 1 + int(math.log(1.0 - self._random.random()) / math.log1p(-1.0 / ONE_IN))

    def planned(
        self, batch: BatchView, sample: Sample, price: float, probe: bool, held: bool, decision: str
    ) -> None:
        """A drawn step. price: tokens that a drafted row is worth. held: the harm guard is active.
        Steps that are shared with another arm are left out: what they take is not one plan's."""
        if batch.elsewhere:
            return
        guard = reasons.REQUEST_GUARD if sample.blocked else None
        self._in_flight[batch.step] = Predicted(
            self._clock(),
            sample.requests,
            sample.context,
            batch.prefill_rows,
            dict(sample.drafts),
            sample.tokens,
            sample.ms,
            price,
            probe,
            reasons.HARM_GUARD if held else guard,
            decision,
        )
        if len(self._in_flight) > IN_FLIGHT:
            self._in_flight.popitem(last=False)

    def observe(self, outcome: StepOutcome) -> None:
        """A measured step, which is recorded if it was drawn."""
        if not self._in_flight:
            return
        predicted = self._in_flight.pop(outcome.step, None)
        if predicted is None:
            return
        self._records.append(
            StepRecord(
                id=f"{int(predicted.time * 1e9):016x}-{outcome.step}",
                step=outcome.step,
                time=predicted.time,
                requests=predicted.requests,
                context=predicted.context,
                prefill_rows=predicted.prefill_rows,
                drafts=predicted.drafts,
                predicted_tokens=predicted.tokens,
                predicted_ms=predicted.ms,
                realised_tokens=sum(one.committed for one in outcome.per_request),
                realised_ms=decoding_ms(outcome),
                price=predicted.price,
                probe=predicted.probe,
                guard=predicted.guard,
                decision=predicted.decision,
            )
        )

    def take(self) -> list[StepRecord]:
        """Those since the last call, oldest first."""
        taken = list(self._records)
        self._records.clear()
        return taken
