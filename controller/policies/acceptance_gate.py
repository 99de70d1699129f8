"""One drafter and one D, with a pause whenever too few drafted tokens are accepted.

A gate on the recent acceptance rate, as mlx-node has per turn (#115) and Atlas as suspension with
a later trial (#304). It looks at acceptance alone and not at what a drafted row costs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from controller.contract import NONE, Allotment, RequestOutcome, StepOutcome
from controller.policies.base import Policy, Step
from controller.policies.fixed import steady, uniform
from controller.policies.gate import Gate, acceptance_rate
from controller.policies.inputs import PolicyInputs
from controller.policies.options import LONGEST_DRAFT
from controller.policies.placing import Pick
from controller.policies.reasons import GATE_CLOSED, GATE_OPEN
from controller.policies.recorder import Stand


class AcceptanceGate(Policy):
    """Options: drafter (auto), draft_length (4), window (32 drafting steps), threshold (0.3),
    pause_steps (256)."""

    name: ClassVar[str] = "acceptance_gate"

    def __init__(self, inputs: PolicyInputs) -> None:
        super().__init__(inputs)
        self._drafter = self.options.drafter()
        self._length = self.options.whole("draft_length", 4, 0, LONGEST_DRAFT)
        self._window = self.options.whole("window", 32, 1, 100_000)
        threshold = self.options.real("threshold", 0.3, 0.0, 1.0)
        self._gate = Gate(self._window, threshold, self.options.whole("pause_steps", 256, 1, 10**6))

    @property
    def rests(self) -> bool:
        return self._gate.rests or not self._length

    def choose(self, step: Step) -> list[Pick]:
        self._gate.tick()
        length = 0 if self._gate.closed else self._length
        return uniform(step, self.main(self._drafter), length)

    def stand(self, step: Step, allotments: Sequence[Allotment]) -> Stand:
        gate = self._gate
        if gate.closed:
            text = (
                f"The acceptance rate of the last {self._window} drafting steps was "
                f"{gate.mean:.2f}, below {gate.threshold:g}: plain decoding for "
                f"another {gate.left} steps."
            )
            return Stand(NONE, 0.0, GATE_CLOSED, text, GATE_CLOSED)
        clause = f"D = {self._length} while the acceptance rate stays above {gate.threshold:g}"
        return steady(self.main(self._drafter), self._drafter, self._length, GATE_OPEN, clause)

    def learn(
        self,
        outcome: StepOutcome,
        own: Sequence[RequestOutcome],
        whole: Sequence[RequestOutcome],
    ) -> None:
        rate = acceptance_rate(own)
        if rate is not None:
            self._gate.record(rate)

    def describe(self) -> Mapping[str, object]:
        gate = self._gate
        mean = None if gate.mean is None else round(gate.mean, 4)
        return {"closed": gate.closed, "steps_left": gate.left, "acceptance_rate": mean}
