"""One drafter and one D for everybody, always.

What a static `num_speculative_tokens` does in vLLM, SGLang, TensorRT-LLM and llama.cpp.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from controller.contract import NONE, Allotment
from controller.policies.base import Policy, Step
from controller.policies.inputs import PolicyInputs
from controller.policies.options import LONGEST_DRAFT
from controller.policies.placing import PLAIN, Pick
from controller.policies.reasons import RULE
from controller.policies.recorder import Stand


def uniform(step: Step, drafter: str | None, length: int) -> list[Pick]:
    """The same D for every opening: with the drafter, or with the one asked for there."""
    picks = [(one.who(drafter), length) for one in step.openings]
    return [(name, length) if name and length else PLAIN for name, length in picks]


class Fixed(Policy):
    """Options: drafter (auto), draft_length (4)."""

    name: ClassVar[str] = "fixed"

    def __init__(self, inputs: PolicyInputs) -> None:
        super().__init__(inputs)
        self._drafter = self.options.drafter()
        self._length = self.options.whole("draft_length", 4, 0, LONGEST_DRAFT)

    @property
    def rests(self) -> bool:
        return not self._length

    def choose(self, step: Step) -> list[Pick]:
        return uniform(step, self.main(self._drafter), self._length)

    def stand(self, step: Step, allotments: Sequence[Allotment]) -> Stand:
        drafter = self.main(self._drafter)
        return steady(drafter, self._drafter, self._length, RULE, f"D = {self._length} is fixed")


def steady(drafter: str | None, wanted: str, length: int, reason: str, clause: str) -> Stand:
    """The stand of one drafter at one D, and of plain decoding where there is none. clause: why,
    without a full stop."""
    if drafter is None:
        return Stand(NONE, 0.0, reason, f"No drafter: {wanted} is not loaded, or not enabled.")
    if not length:
        return Stand(NONE, 0.0, reason, f"{clause}: plain decoding.")
    return Stand(drafter, float(length), reason, f"{clause}, with {drafter}.")
