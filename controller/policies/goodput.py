"""The D of highest goodput by one acceptance rate for everybody and offline timing tables.

TurboSpec / SmartSpec (arXiv 2406.14066, vLLM RFC #4565): goodput(k) = expected tokens of the
batch, (1 - a^(k+1)) / (1 - a) for each request that drafts, over the time of k drafts and a verify
of k + 1 rows each. a is a moving mean that starts at 0.7 and, once below 0.3, is put back to 0.65;
plain decoding counts 1.1 times; D is chosen every 20 steps, rising from 0 until the goodput falls.
While nobody drafts there is no new evidence. The verify table here is the calibration, never
corrected; what drafting takes is measured as it runs, since no calibration knows the drafters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from controller.contract import Allotment, RequestOutcome, StepOutcome
from controller.cost import CostModel
from controller.policies.base import Policy, Step
from controller.policies.fixed import steady, uniform
from controller.policies.gate import rejected
from controller.policies.inputs import PolicyInputs
from controller.policies.options import LONGEST_DRAFT
from controller.policies.placing import Pick
from controller.policies.reasons import GOODPUT
from controller.policies.recorder import Stand

FIRST_RATE = 0.7
LOW_RATE, PUT_BACK = 0.3, 0.65
MEMORY = 0.85
PLAIN_BONUS = 1.1
MOST_RATE = 0.999
"""Keeps the geometric sum finite."""


def expected_tokens(rate: float, length: int) -> float:
    """Tokens of a verify step with D = length when each drafted token is accepted at the rate."""
    return (1.0 - rate ** (length + 1)) / (1.0 - rate)


class Goodput(Policy):
    """Options: drafter (auto), max_draft_length (16), interval_steps (20)."""

    name: ClassVar[str] = "goodput"

    def __init__(self, inputs: PolicyInputs) -> None:
        super().__init__(inputs)
        self._drafter = self.options.drafter()
        self._most = self.options.whole("max_draft_length", 16, 1, LONGEST_DRAFT)
        self._interval = self.options.whole("interval_steps", 20, 1, 100_000)
        self._table = CostModel(inputs.cost.points, inputs.cost.roofline)
        self._rate = FIRST_RATE
        self._length = 0
        self._steps = 0
        self._reason = "Nobody could draft yet: D = 0"

    def choose(self, step: Step) -> list[Pick]:
        drafter = self.main(self._drafter)
        drafting = sum(one.who(drafter) is not None for one in step.openings)
        if drafting:
            if self._steps % self._interval == 0:
                self._length = self._best(step, drafter, drafting)
                self._reason = (
                    f"At {step.size} requests and an acceptance rate of {self._rate:.2f} for "
                    f"everybody, D = {self._length} had the highest goodput by the calibration"
                )
            self._steps += 1
        return uniform(step, drafter, self._length)

    def _best(self, step: Step, drafter: str | None, drafting: int) -> int:
        best, most = 0, PLAIN_BONUS * self.goodput(step, drafter, drafting, 0)
        for length in range(1, min(self._most, self.setting.max_draft_length) + 1):
            found = self.goodput(step, drafter, drafting, length)
            if found <= most:
                break
            best, most = length, found
        return best

    def goodput(self, step: Step, drafter: str | None, drafting: int, length: int) -> float:
        """Tokens per ms of the step when so many requests draft `length` tokens each."""
        size = step.size
        tokens = size - drafting + drafting * expected_tokens(self._rate, length)
        ms = self._table.verify_ms(size, size + drafting * length, step.context_tokens)
        ms += self.cost.overhead_ms(size, length > 0)
        if length and drafter is not None:
            ms += self.cost.draft_price(drafter).ms(drafting, length)
        return tokens / ms

    def stand(self, step: Step, allotments: Sequence[Allotment]) -> Stand:
        drafter = self.main(self._drafter)
        return steady(drafter, self._drafter, self._length, GOODPUT, self._reason)

    def learn(
        self,
        outcome: StepOutcome,
        own: Sequence[RequestOutcome],
        whole: Sequence[RequestOutcome],
    ) -> None:
        accepted = sum(one.accepted for one in own)
        reached = accepted + sum(rejected(one) for one in own)
        if not reached:
            return
        rate = MEMORY * self._rate + (1.0 - MEMORY) * accepted / reached
        self._rate = PUT_BACK if rate < LOW_RATE else min(rate, MOST_RATE)

    def describe(self) -> Mapping[str, object]:
        return {"acceptance_rate": round(self._rate, 4), "draft_length": self._length}
