"""vLLM's priced verification, with acceptance by position."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import pytest

from controller.contract import (
    Allotment,
    Bar,
    Controller,
    Margins,
    RequestOutcome,
    RequestView,
    Setting,
    StepOutcome,
    Wish,
)
from controller.cost import CostModel
from controller.policies import PolicyInputs
from controller.policies.margin_verify import MarginVerify, Positions
from controller.policies.split import in_arm_b
from controller.policies.switchable import PolicyChoice, Switchable
from tests.controller.policies.stage import Stage, at_most, everything, nothing, people, policy
from tests.controller.simulated_engine import BF16, batch, offer, points, request

WARM_UP = 300


def made(**options: Any) -> MarginVerify:
    subject = policy("margin_verify", **options)
    assert isinstance(subject, MarginVerify)
    return subject


# --- acceptance by position -----------------------------------------------------------------------


def test_the_first_guess_is_the_same_for_every_position() -> None:
    assert Positions(3).survival().tolist() == pytest.approx(
        [(1 / (1 + math.exp(0.2))) ** k for k in (1, 2, 3)]
    )


def test_positions_recover_their_rates_from_drafts_that_stop_at_a_rejection() -> None:
    rates, rng, subject = (0.8, 0.6, 0.3), random.Random(1), Positions(3)
    for n in range(6000):
        accepted = next((k for k, rate in enumerate(rates) if rng.random() >= rate), 3)
        subject.add(3, accepted, censored=False)
        if n % 1000 == 999:
            subject.refit()
    assert subject.survival().tolist() == pytest.approx([0.8, 0.48, 0.144], abs=0.04)


def test_a_position_never_reached_keeps_its_bias() -> None:
    subject = Positions(3)
    for _ in range(100):
        subject.add(3, 0, censored=False)
    subject.refit()
    assert subject.bias[1:].tolist() == [-0.2, -0.2]
    assert subject.bias[0] < -1.0


def test_a_refit_from_few_observations_moves_little() -> None:
    few, many = Positions(1), Positions(1)
    for _ in range(10):
        few.add(1, 0, censored=False)
    for _ in range(1000):
        many.add(1, 0, censored=False)
    few.refit()
    many.refit()
    step = -0.2 - many.bias[0]
    assert (-0.2 - few.bias[0]) / step == pytest.approx(10 / 60 / (1000 / 1050), rel=0.01)


def test_a_draft_cut_by_the_end_of_the_text_says_nothing_of_the_next_position() -> None:
    subject = Positions(3)
    subject.add(3, 1, censored=True)
    assert subject.reached.tolist() == [1.0, 0.0, 0.0]


# --- the budget -----------------------------------------------------------------------------------


def test_whole_drafts_are_verified_until_the_third_refit() -> None:
    stage = Stage(made())
    assert stage.lengths(WARM_UP, accept=nothing) == [7] * WARM_UP
    assert stage.lengths(600, accept=nothing)[-1] == 0


def test_good_drafts_at_cheap_rows_stay_whole() -> None:
    stage = Stage(made(costs={1: 10.0, 64: 10.5}))
    assert stage.lengths(WARM_UP + 50, accept=everything)[-50:] == [7] * 50


def test_cheap_up_to_one_row_and_dear_beyond_gives_a_budget_of_one() -> None:
    stage = Stage(made(costs={2: 10.0, 3: 10.0, 4: 1000.0, 64: 64_000.0}, requests=(2,)))
    for _ in range(WARM_UP):
        stage.step(2, everything)
    plan = stage.step(2, everything)
    assert [one.length for one in plan.allotments] == [1, 0]


def test_the_decision_says_how_many_positions_are_worth_their_time() -> None:
    """Also where margins tell, so that whole drafts are made: twelve of 14 positions are not."""
    costs = {2: 10.0, 4: 10.0, 5: 1000.0, 64: 64_000.0}
    subject = policy("margin_verify", ("mtp",), models=("mtp",), costs=costs, requests=(2,))
    bars(subject, people(2))
    plan = subject.plan(batch(*people(2), step=1000), [offer(i, "mtp") for i in range(2)])
    assert [one.length for one in plan.allotments] == [7, 7]
    subject.configure(Setting(max_draft_length=15))
    subject.plan(batch(*people(2), step=1001), [offer(i, "mtp") for i in range(2)])
    sentence = subject.take_decisions()[-1].sentence
    assert "By acceptance at each position, 2 of 14 are worth their time at 2 requests" in sentence
    assert "Where margins tell, whole drafts are made" in sentence


def test_costs_that_fall_are_forced_to_rise() -> None:
    """Four rows are cheaper than three as measured; the budget may not use that."""
    dip = {1: 10.0, 2: 40.0, 3: 40.0, 4: 10.0, 64: 640.0}
    stage = Stage(made(costs=dip, draft_length=3))
    stage.lengths(WARM_UP, accept=lambda one: 1)
    assert stage.lengths(1) == [0]


def test_the_likelier_drafter_gets_the_rows() -> None:
    """Two requests ask for two drafters; a row takes a fifth of the plain step."""
    costs = {2: 10.0, 64: 10.0 + 62 * 2.0}
    subject = policy("margin_verify", ("ngram", "suffix"), costs=costs, requests=(2,))
    stage = Stage(subject, ("ngram", "suffix"))
    views = [request(0, wish=Wish(drafter="ngram")), request(1, wish=Wish(drafter="suffix"))]
    offers = [offer(0, "ngram"), offer(1, "suffix")]

    def accept(one: Allotment) -> int:
        return 7 if one.drafter == "suffix" else 0

    for _ in range(WARM_UP):
        stage.observe(stage.plan(views, offers), accept)
    lengths = [one.length for one in stage.plan(views, offers).allotments]
    assert lengths[0] == 0
    assert lengths[1] >= 5


def test_the_drafts_cost_is_paid_whatever_is_verified() -> None:
    """So it makes nobody verify less: in vLLM's rule plain decoding pays it too."""
    costs = {1: 10.0, 2: 11.0, 64: 73.0}
    cheap, dear = Stage(made(costs=costs)), Stage(made(costs=costs))
    for stage, ms in ((cheap, 0.1), (dear, 50.0)):
        rng = random.Random(2)
        for _ in range(WARM_UP):
            accepted = rng.randrange(8)
            stage.observe(stage.plan(people(1)), at_most(accepted), draft_ms=ms)
    assert dear.lengths(1)[0] > cheap.lengths(1)[0] > 0


def test_equal_positions_go_by_depth_then_by_request() -> None:
    costs = {4: 10.0, 10: 10.0, 11: 1000.0, 64: 64_000.0}
    stage = Stage(made(costs=costs, requests=(4,), draft_length=2))
    for _ in range(WARM_UP):
        stage.step(4, everything)
    assert [one.length for one in stage.step(4, everything).allotments] == [2, 2, 1, 1]
    reverse = stage.plan(people(4)[::-1])
    assert [one.length for one in reverse.allotments] == [1, 1, 2, 2]


# --- what a model's margins decide ----------------------------------------------------------------


def bars(controller: Controller, views: list[RequestView]) -> dict[int, Bar | None]:
    """The bar of each request's draft of a model that is right where its margin is wide."""
    rng, found = random.Random(4), dict[int, Bar | None]()
    for step in range(1, 16 * 40):
        plan = controller.plan(batch(*views, step=step), [offer(one.id, "mtp") for one in views])
        results: list[RequestOutcome] = []
        for view, one in zip(views, plan.allotments, strict=True):
            wide = rng.random() < 0.5
            margins = Margins("mtp", view.sampled, (6.0 if wide else 0.0,) * one.length)
            drafted = one.length if one.bar is None else one.bar.length(margins.values)
            accepted = drafted if wide else 0
            results.append(
                RequestOutcome(one.request, "mtp", drafted, accepted, accepted + 1, margins=margins)
            )
        rows = sum(1 + one.drafted for one in results)
        controller.observe(
            StepOutcome(step, len(views), rows, 0, 1000, 10.0, 0.1, 0.5, tuple(results), ())
        )
        found = {one.request: one.bar for one in plan.allotments}
    return found


def test_a_draft_has_the_bar_of_its_kind_unless_its_length_was_asked_for() -> None:
    views = [
        request(0),
        request(1)._replace(temperature=1.0),
        request(2, wish=Wish(draft_length=3)),
    ]
    found = bars(policy("margin_verify", ("mtp",), models=("mtp",), requests=(1, 3)), views)
    greedy, sampled = found[0], found[1]
    assert greedy is not None
    assert sampled is not None
    assert greedy != sampled
    assert greedy.length((6.0,)) == 1
    assert greedy.length((0.0,)) == 0
    assert found[2] is None


def test_what_a_bar_lets_through_says_nothing_about_acceptance_by_position() -> None:
    """Half of all first tokens are right, and with a bar nearly all of those that are verified."""
    subject = policy("margin_verify", ("mtp",), models=("mtp",), requests=(1, 3))
    assert isinstance(subject, MarginVerify)
    bars(subject, people(3))
    rates: Any = subject.describe()["acceptance"]
    assert rates["mtp"][0] == pytest.approx(0.5, abs=0.08)


def test_in_a_comparison_only_its_own_requests_have_bars() -> None:
    inputs = PolicyInputs(("mtp",), CostModel(points(BF16, (1, 8))), ("mtp",))
    subject = Switchable(inputs, PolicyChoice("fixed", "draft_length=3", "margin_verify", "", 0.5))
    found = bars(subject, people(8))
    assert {number for number, bar in found.items() if bar} == {
        number for number in range(8) if in_arm_b(number, 0.5)
    }


def test_its_state_is_plain() -> None:
    subject = made()
    Stage(subject).lengths(250, accept=lambda one: 1)
    state = subject.describe()
    assert state["refits"] == 2
    assert isinstance(state["acceptance"], dict)
    assert np.isclose(state["acceptance"]["ngram"][2], 1 / (1 + math.exp(0.2)), atol=1e-3)
