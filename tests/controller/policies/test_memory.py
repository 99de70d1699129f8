"""Steps and requests leave nothing behind that grows with their number."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from types import FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import pytest

from controller.allotting import Allotter
from controller.contract import (
    BatchView,
    Features,
    Margins,
    Offer,
    Plan,
    Proposal,
    RequestOutcome,
    RequestView,
    ShadowScore,
    StepOutcome,
)
from controller.margins import MarginModel
from controller.policies.switchable import PolicyChoice, Switchable
from tests.controller.policies.test_obedience import CHOICES, DRAFTERS, IDS, made

STEPS = 300
LIFE, SIZE = 2, 4
"""Steps of a request, and requests of a step: 600 come and go in STEPS."""
WAITING = 6000
"""Entries of the news of acceptance that may wait: 256 of each of three drafters, 7 each."""
SLACK = 250
"""Entries by which what is bounded may differ. One entry for each step is more."""
EMPTIED = (Allotter, MarginModel)
"""Not looked into: they keep up to 2,048 allotments or 256 observations, then drop them all."""
FEATURES = [Features(match, 1, "prompt") for match in (0, 2, 9)]

PLAIN = (str, bytes, int, float, complex, bool, type(None), type)
CODE = (FunctionType, MethodType, ModuleType)


def entries(root: object) -> int:
    """How many values all containers and objects hold that can be reached from `root`."""
    seen: set[int] = set()
    waiting, found = [root], 0
    while waiting:
        one = waiting.pop()
        if isinstance(one, PLAIN + CODE + EMPTIED) or id(one) in seen:
            continue
        seen.add(id(one))
        parts = list(_parts(one))
        found += len(parts)
        waiting += parts
    return found


def _parts(one: Any) -> Iterable[object]:
    if isinstance(one, np.ndarray):
        yield from range(one.size)
        return
    if isinstance(one, dict):
        yield from one.keys()
        yield from one.values()
    elif isinstance(one, Iterable):
        yield from one
    yield from getattr(one, "__dict__", {}).values()
    for kind in type(one).__mro__:
        slots = getattr(kind, "__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            yield getattr(one, name, None)


class Traffic:
    """Requests that come and go, drafts of every kind, and decisions that are taken."""

    def __init__(self, subject: Switchable) -> None:
        self.subject = subject
        self._rng = random.Random(3)
        self._steps = 0

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self._steps += 1
            self._step()

    def _step(self) -> None:
        step, rng = self._steps, self._rng
        ids = [(step // LIFE) * SIZE + place for place in range(SIZE)]
        if step % LIFE == 0:
            for number in range(ids[0] - SIZE, ids[0]):
                self.subject.forget(number)
        views = [RequestView(i, f"tenant {i % 2}", 64, 100, float(i % 2), False) for i in ids]
        offers = [
            Offer(i, name, 8, rng.choice(FEATURES))
            for name in DRAFTERS
            for i in ids
            if rng.random() < 0.8
        ]
        plan = self.subject.plan(BatchView(step, views, 64 * (step % 16 == 0), 512), offers)
        self.subject.observe(self._outcome(plan, views))
        self.subject.take_decisions()

    def _outcome(self, plan: Plan, views: Sequence[RequestView]) -> StepOutcome:
        rng, results = self._rng, list[RequestOutcome]()
        content = 1 + self._steps // 200 % 2  # acceptance of it changes now and then
        for one, view in zip(plan.allotments, views, strict=True):
            drafted = one.length + one.tail_length
            kept = min(drafted, rng.randrange(4) // content)
            margins = None
            if one.drafter == "mtp":
                margins = Margins("mtp", view.sampled, tuple([rng.random() * 8.0] * drafted))
            shadow = ShadowScore("suffix", 4, rng.randrange(5) // content, Features(2, 1, ""))
            results.append(
                RequestOutcome(
                    one.request,
                    one.drafter,
                    drafted,
                    kept,
                    kept + 1,
                    shadows=(shadow,),
                    margins=margins,
                )
            )
        names = {one.drafter for one in plan.allotments if one.length}
        proposals = tuple([Proposal(name, 1, 2, 0.2) for name in names])
        rows = sum(1 + one.drafted for one in results)
        return StepOutcome(
            self._steps,
            SIZE,
            rows,
            64 * (self._steps % 16 == 0),
            64 * SIZE,
            10.0 + rng.random(),
            0.2 * len(names),
            0.5,
            tuple(results),
            proposals,
        )


@pytest.mark.parametrize("choice", CHOICES, ids=IDS)
def test_what_is_kept_does_not_grow_with_steps_and_requests(choice: PolicyChoice) -> None:
    subject = made(choice)
    traffic = Traffic(subject)
    sizes: list[int] = []
    for _ in range(2):
        traffic.run(STEPS)
        sizes.append(entries(subject))
    assert sizes[1] < sizes[0] + SLACK + WAITING
    subject.report()  # which counts the news of acceptance
    before = entries(subject)
    traffic.run(STEPS)
    subject.report()
    assert entries(subject) < before + SLACK


@pytest.mark.parametrize("choice", CHOICES, ids=IDS)
def test_plans_that_nothing_is_heard_of_do_not_pile_up(choice: PolicyChoice) -> None:
    subject = made(choice)
    views = [RequestView(i, "", 64, 100, 0.0, False) for i in range(SIZE)]
    sizes: list[int] = []
    for step in range(1, 2 * SLACK + 50):
        subject.plan(BatchView(step, views, 0, 512), [Offer(i, "ngram", 4) for i in range(SIZE)])
        if step in (48, 2 * SLACK + 48):
            subject.take_decisions()
            sizes.append(entries(subject))
    assert sizes[1] < sizes[0] + SLACK


def test_the_measure_sees_what_one_entry_a_step_adds() -> None:
    leaky: Any = made(PolicyChoice("fixed"))
    before = entries(leaky)
    leaky.steps = list(range(10_000, 10_000 + STEPS))
    assert entries(leaky) > before + SLACK
