"""D by upper bounds of the batch, then none; and a switch that turns drafting off for good.

TensorRT-LLM: `draft_len_schedule` (PR #10860), where 4:4,8:2,32:1 is D = 4 up to 4 requests, 2 up
to 8, 1 up to 32 and 0 above; and its speculation gate (`acceptance_rate_window_size`,
`acceptance_rate_threshold`, PR #12905), which never opens again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from controller.contract import NONE, Allotment, RequestOutcome, StepOutcome
from controller.policies.base import Policy, Step
from controller.policies.fixed import steady, uniform
from controller.policies.gate import Gate, acceptance_rate
from controller.policies.inputs import PolicyInputs
from controller.policies.options import LONGEST_DRAFT, OptionError
from controller.policies.placing import Pick
from controller.policies.reasons import GATE_CLOSED, TABLE
from controller.policies.recorder import Stand

EXAMPLE = "4:4,8:2,32:1"
"""The example of TensorRT-LLM's documentation."""
LONGEST_WINDOW = 100_000
THRESHOLD = 0.5


class TensorrtSchedule(Policy):
    """Options: drafter (auto), schedule (4:4,8:2,32:1), acceptance_window (0: no switch),
    acceptance_threshold (0.5)."""

    name: ClassVar[str] = "tensorrt_schedule"

    def __init__(self, inputs: PolicyInputs) -> None:
        super().__init__(inputs)
        self._drafter = self.options.drafter()
        self._schedule = self.options.table("schedule", EXAMPLE, LONGEST_DRAFT)
        self._window = self.options.whole("acceptance_window", 0, 0, LONGEST_WINDOW)
        threshold = self.options.real("acceptance_threshold", THRESHOLD, 0.0, 1.0)
        if threshold != THRESHOLD and not self._window:
            raise OptionError(
                "acceptance_threshold: has no effect without a window; give acceptance_window too"
            )
        self._gate = Gate(self._window, threshold) if self._window else None

    def length(self, requests: int) -> int:
        """D at a batch size, by the schedule alone."""
        return next((length for largest, length in self._schedule if requests <= largest), 0)

    @property
    def _is_off(self) -> bool:
        return self._gate is not None and self._gate.closed

    @property
    def rests(self) -> bool:
        return self._is_off

    def choose(self, step: Step) -> list[Pick]:
        length = 0 if self._is_off else self.length(step.size)
        return uniform(step, self.main(self._drafter), length)

    def stand(self, step: Step, allotments: Sequence[Allotment]) -> Stand:
        if self._gate is not None and self._is_off:
            text = (
                f"The acceptance rate of the last {self._window} drafting steps was "
                f"{self._gate.mean:.2f}, below {self._gate.threshold:g}: drafting is off for good."
            )
            return Stand(NONE, 0.0, GATE_CLOSED, text, GATE_CLOSED)
        length = self.length(step.size)
        clause = f"{step.size} requests decode: the schedule gives D = {length}"
        return steady(self.main(self._drafter), self._drafter, length, TABLE, clause)

    def learn(
        self,
        outcome: StepOutcome,
        own: Sequence[RequestOutcome],
        whole: Sequence[RequestOutcome],
    ) -> None:
        rate = acceptance_rate(own)
        if self._gate is not None and rate is not None:
            self._gate.record(rate)

    def describe(self) -> Mapping[str, object]:
        gate = self._gate
        if gate is None:
            return {}
        return {"off_for_good": gate.closed, "acceptance_rate": _rounded(gate.mean)}


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
