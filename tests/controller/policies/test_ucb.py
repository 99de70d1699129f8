"""BanditSpec's UCB over (drafter, D)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from controller.contract import Allotment, Plan, Setting
from controller.policies.ucb import Ucb
from tests.controller.policies.stage import Accept, Stage, at_most, nothing, people, policy

TWO = ("ngram", "suffix")
ARMS = {(name, length): 1 for name in TWO for length in (1, 2, 4, 8)}


def made(**options: Any) -> Ucb:
    subject = policy("ucb", TWO, **options)
    assert isinstance(subject, Ucb)
    return subject


def played(
    stage: Stage,
    steps: int,
    accept: Accept = nothing,
    ms: Callable[[Plan], float] = lambda plan: 10.0,
) -> Counter[tuple[str, int]]:
    """How often each arm ran."""
    found: Counter[tuple[str, int]] = Counter()
    for _ in range(steps):
        plan = stage.plan(people(1))
        stage.observe(plan, accept, ms(plan))
        found[plan.allotments[0].drafter, plan.allotments[0].length] += 1
    return found


def test_every_arm_is_tried_once_before_any_twice() -> None:
    assert played(Stage(made(), TWO), 8) == ARMS


def test_the_better_drafter_is_played_most() -> None:
    def accept(one: Allotment) -> int:
        return one.length if one.drafter == "suffix" else 0

    found = played(Stage(made(), TWO), 400, accept)
    assert found.most_common(1)[0][0] == ("suffix", 8)
    assert sum(found["suffix", length] for length in (1, 2, 4, 8)) > 300


def test_accepted_tokens_alone_know_no_cost_and_time_does() -> None:
    """Each drafted token takes as long as a plain step, and one in eight is accepted."""

    def ms(plan: Plan) -> float:
        return 10.0 * (1 + plan.allotments[0].length)

    by_tokens = played(Stage(made(exploration=0.1), TWO), 400, at_most(1), ms)
    assert by_tokens["ngram", 8] + by_tokens["suffix", 8] > 80
    by_time = played(Stage(made(exploration=0.1, reward="tokens_per_ms"), TWO), 400, nothing, ms)
    assert by_time.most_common(1)[0][0] == ("none", 0)
    assert by_time["none", 0] > 300


def test_the_bound_is_the_mean_and_a_radius_that_shrinks_with_rounds() -> None:
    subject = made(exploration=0.5)
    assert subject.bound(("ngram", 4)) == math.inf
    stage = Stage(subject, TWO)
    played(stage, 8, at_most(1))  # two tokens from each arm
    radius = 0.5 * 2.0 * math.sqrt(2.0 * math.log(8))
    assert subject.bound(("ngram", 4)) == pytest.approx(2.0 + radius)


def test_arms_of_a_drafter_that_left_are_forgotten() -> None:
    subject = made()
    stage = Stage(subject, TWO)
    played(stage, 20)
    subject.remove_drafter("suffix")
    stage.drafters = ("ngram",)
    assert all(name == "ngram" for name, _ in played(stage, 20))
    assert not any("suffix" in name for name in subject.describe())


def test_an_arm_above_the_operators_limit_is_no_arm() -> None:
    stage = Stage(made(setting=Setting(max_draft_length=2)), TWO)
    assert {length for _, length in played(stage, 40)} == {1, 2}


def test_the_decision_names_the_arm_played_most() -> None:
    stage = Stage(made(), TWO)
    for _ in range(200):
        stage.step(1, lambda one: one.length if one.drafter == "suffix" else 0)
    last = stage.opened[-1]
    assert (last.reason, last.drafter, last.draft_length) == ("ARM", "suffix", 8)
    assert last.sentence.startswith("suffix with D = 8 has brought 9.00 tokens")
