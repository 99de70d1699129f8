"""Policies in the simulator serve under the operator's constraints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from controller.contract import BatchView, Controller, Decision, Offer, Plan, Setting, StepOutcome
from controller.policies import NAMES
from controller.simulate.calibration import calibrate
from controller.simulate.load import Phase
from controller.simulate.policy import Choice, build
from controller.simulate.run import Clock, Run, closed
from tests.controller.simulate.small import SETTING, library, machine

PHASES = (Phase(6, "mixed", 60),)


class Watched:
    """A controller that notes what its plans draft and what its steps take."""

    def __init__(self, inner: Controller) -> None:
        self.inner = inner
        self.drafted: list[int] = []
        self.ms: list[float] = []

    @property
    def attentive(self) -> bool:
        return self.inner.attentive

    def plan(self, batch: BatchView, offers: Sequence[Offer]) -> Plan:
        plan = self.inner.plan(batch, offers)
        self.drafted.append(sum(one.length + one.tail_length for one in plan.allotments))
        return plan

    def observe(self, outcome: StepOutcome) -> None:
        slowest = min(one.committed for one in outcome.per_request)
        took = outcome.verify_ms + outcome.draft_ms + outcome.overhead_ms
        self.ms.append(took / max(slowest, 1))
        self.inner.observe(outcome)

    def forget(self, request: int) -> None:
        self.inner.forget(request)

    def take_decisions(self) -> list[Decision]:
        return self.inner.take_decisions()


def watched(choice: Choice, setting: Setting) -> tuple[Watched, Run]:
    on, clock = machine(noise=0.01, chains=True), Clock()
    points = calibrate(on.cost, 8, 0.01, np.random.default_rng(1))
    watch = Watched(build(choice, on, points, clock, setting))
    return watch, closed(on, library(), PHASES, watch, clock, 0)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", NAMES)
def test_no_policy_drafts_beyond_the_budget(name: str) -> None:
    watch, _ = watched(Choice(name), replace(SETTING, draft_budget=5))
    assert max(watch.drafted) <= 5


def test_under_a_target_steps_are_shorter_and_tokens_fewer() -> None:
    """Requests without a match wait the whole step, which is then that of a few drafts."""
    choice = Choice("fixed", {"drafter": "ngram", "draft_length": 8})
    free, one = watched(choice, SETTING)
    aimed, other = watched(choice, replace(SETTING, tpot_target_ms=5.6))
    assert np.mean(aimed.drafted) < 0.7 * np.mean(free.drafted)
    assert np.quantile(aimed.ms, 0.9) < np.quantile(free.ms, 0.9)
    assert other.throughput < one.throughput
