"""Plain decoding for everybody who does not ask for drafts: the baseline of every comparison."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from controller.contract import NONE, Allotment
from controller.policies.base import Policy, Step
from controller.policies.placing import PLAIN, Pick
from controller.policies.reasons import RULE
from controller.policies.recorder import Stand


class Off(Policy):
    """D = 0. Unlike the operator's mode `off` it is no limit: wishes and pins are obeyed."""

    name: ClassVar[str] = "off"

    @property
    def rests(self) -> bool:
        """Nobody is asked for drafts that would not be used: plain decoding costs nothing more."""
        return True

    def choose(self, step: Step) -> list[Pick]:
        return [PLAIN] * len(step.openings)

    def stand(self, step: Step, allotments: Sequence[Allotment]) -> Stand:
        return Stand(NONE, 0.0, RULE, "The policy decodes plainly.")
