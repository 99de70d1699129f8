"""Two policies side by side: who belongs to which arm, what each sees, and what is reported."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from controller.contract import Allotment, BatchView, Offer, Plan, Setting, Wish
from controller.cost import CostModel
from controller.policies import PolicyInputs, make
from controller.policies.arm import Arm
from controller.policies.intervals import Ratio
from controller.policies.off import Off
from controller.policies.split import Split, in_arm_b
from controller.policies.switchable import PolicyChoice, Switchable
from tests.controller.policies.stage import Stage, at_most, everything, people
from tests.controller.simulated_engine import BF16, Clock, offer, points, request


def split(
    first: str,
    second: str,
    share: float = 0.5,
    *,
    a: str = "",
    b: str = "",
    cost: CostModel | None = None,
) -> Switchable:
    """Two arms; a and b: their options."""
    cost = cost or CostModel(points(BF16, (1, 8)))
    choice = PolicyChoice(first, a, second, b, share)
    inputs = PolicyInputs(("ngram",), cost, setting=Setting(max_draft_length=16), clock=Clock())
    return Switchable(inputs, choice)


def arms(subject: Switchable) -> dict[str, Any]:
    report: Any = subject.report()
    return report["ab"]["arms"]


# --- arms -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_arm_b_gets_its_share_of_neighbouring_ids(share: float) -> None:
    members = [in_arm_b(number, share) for number in range(10_000)]
    assert sum(members) / 10_000 == pytest.approx(share, abs=0.015)
    pairs = sum(one != other for one, other in pairwise(members))
    assert pairs / 9_999 == pytest.approx(2 * share * (1 - share), abs=0.02)


def test_a_request_stays_in_its_arm_and_a_larger_share_only_adds() -> None:
    small = {number for number in range(1000) if in_arm_b(number, 0.2)}
    large = {number for number in range(1000) if in_arm_b(number, 0.7)}
    assert small == {number for number in range(1000) if in_arm_b(number, 0.2)}
    assert small < large
    assert not any(in_arm_b(number, 0.0) for number in range(1000))
    assert all(in_arm_b(number, 1.0) for number in range(1000))


@pytest.mark.parametrize("share", [-0.1, 1.1, float("nan")])
def test_a_share_that_is_none_is_refused(share: float) -> None:
    with pytest.raises(ValueError, match="ab_share: must be 0 to 1"):
        split("off", "fixed", share)


def test_arms_with_different_settings_are_refused() -> None:
    one = make("off", PolicyInputs(("ngram",)))
    other = make("off", PolicyInputs(("ngram",), setting=Setting("off")))
    with pytest.raises(ValueError, match="same setting"):
        Split(Arm("A", "off", one), Arm("B", "off", other), CostModel(), 0.5)


# --- plans ----------------------------------------------------------------------------------------


def test_each_request_gets_its_own_arms_plan() -> None:
    subject = split("fixed", "fixed", a="draft_length=2", b="draft_length=5")
    plan = Stage(subject).plan(people(64))
    assert [one.length for one in plan.allotments] == [
        5 if in_arm_b(i, 0.5) else 2 for i in range(64)
    ]


def test_an_arm_knows_the_size_of_the_whole_batch() -> None:
    table = "table=1-7:6,8-8:1"
    plan = Stage(split("batch_table", "off", a=table)).plan(people(8))
    assert {one.length for one in plan.allotments} == {0, 1}


def test_a_full_step_is_shared_by_requests() -> None:
    subject = split("fixed", "fixed", a="draft_length=8", b="draft_length=8")
    plan = Stage(subject).plan(people(16), room=20)
    own = [one.length for one in plan.allotments if in_arm_b(one.request, 0.5)]
    members = len(own)
    assert sum(own) == 20 * members // 16
    assert sum(one.length for one in plan.allotments) <= 20


class Shown(Off):
    """Keeps the requests whose offers it was shown."""

    shown: frozenset[int] = frozenset()

    def plan(self, batch: BatchView, offers: Sequence[Offer]) -> Plan:
        self.shown = frozenset(one.request for one in offers)
        return super().plan(batch, offers)


def test_an_arm_that_does_not_look_is_shown_no_offers_but_of_its_own_wishes() -> None:
    inputs = PolicyInputs(("ngram",), setting=Setting(max_draft_length=16))
    a, b = Shown(inputs), make("fixed", inputs)
    subject = Split(Arm("A", "off", a), Arm("B", "fixed", b), inputs.cost, 0.5)
    assert subject.attentive
    assert not split("off", "off").attentive
    stage = Stage(subject)
    stage.plan(people(8))
    assert a.shown == set()
    wish = Wish(drafter="ngram", draft_length=2)
    own = next(i for i in range(8) if not in_arm_b(i, 0.5))
    other = next(i for i in range(8) if in_arm_b(i, 0.5))
    stage.plan([request(i, wish=wish if i in (own, other) else None) for i in range(8)])
    assert a.shown == {own}


def test_the_decision_of_a_step_says_its_arm() -> None:
    stage = Stage(split("fixed", "off"))
    plan = stage.plan(people(8))
    assert plan.decision is not None
    assert plan.decision.sentence.startswith("Arm A (fixed): First plan of policy fixed")
    assert set(plan.decision.requests) == {i for i in range(8) if not in_arm_b(i, 0.5)}


def test_decisions_of_both_arms_are_told_apart_though_their_clock_is_one() -> None:
    stage = Stage(split("fixed", "ema_tiers"))
    stage.step(8)
    first = {one.id: one for one in stage.decisions}
    assert len(first) == 2
    told = sorted((one.inputs["arm"], one.inputs["policy"]) for one in first.values())
    assert told == [("A", "fixed"), ("B", "ema_tiers")]
    stage.step(8)
    again = [one for one in stage.opened if one.id in first]
    assert [one.realised.steps for one in again] == [2, 2]


# --- costs ----------------------------------------------------------------------------------------


def test_the_cost_model_learns_each_step_once_from_all_its_rows() -> None:
    shared, alone = (CostModel(points(BF16, (8,))) for _ in range(2))
    both = Stage(split("fixed", "fixed", cost=shared))
    inputs = PolicyInputs(("ngram",), alone, setting=Setting(max_draft_length=16), clock=Clock())
    single = Stage(make("fixed", inputs))
    for _ in range(100):
        both.step(8, ms=40.0)
        single.step(8, ms=40.0)
    assert shared.factor == pytest.approx(alone.factor)
    assert shared.factor > 1.2
    assert shared.draft_price("ngram") == alone.draft_price("ngram")


def test_steps_of_one_arm_alone_teach_it_as_if_there_were_no_other() -> None:
    cost = CostModel(points(BF16, (1,)))
    stage = Stage(split("fixed", "fixed", 0.0, cost=cost))
    for _ in range(100):
        stage.step(1, ms=40.0)
    assert cost.factor > 1.2


def test_the_time_of_decisions_is_shared_by_rows() -> None:
    """Arm A drafts 3 tokens, arm B none: of each step's forward a request of A takes 4 rows."""
    stage = Stage(split("fixed", "off", a="draft_length=3"))
    for _ in range(10):
        stage.step(8, everything, ms=20.0)
    members = sum(in_arm_b(i, 0.5) for i in range(8))
    rows_a, rows_b = 4 * (8 - members), members
    found = {one.inputs["arm"]: one.realised for one in stage.opened}
    assert found["A"].tokens == 40 * (8 - members)
    assert found["B"].tokens == 10 * members
    verify = 10 * 20.0
    share = rows_b / (rows_a + rows_b)
    assert found["B"].ms == pytest.approx((verify + 10 * 0.5) * share, rel=1e-6)
    total = 10 * (20.0 + 0.5 + 0.1)
    assert found["A"].ms + found["B"].ms == pytest.approx(total, rel=1e-6)


# --- figures --------------------------------------------------------------------------------------


def test_the_report_has_each_arms_figures_by_request() -> None:
    """Half of the drafted tokens of a request is accepted in every step of arm A."""
    subject = split("fixed", "off", a="draft_length=4")
    stage = Stage(subject)
    for _ in range(50):
        stage.step(8, at_most(2), ms=19.4)
    for i in range(8):
        subject.forget(i)
    found = arms(subject)
    members = sum(in_arm_b(i, 0.5) for i in range(8))
    assert (found["A"]["requests"], found["B"]["requests"]) == (8 - members, members)
    assert found["A"]["acceptance_length"]["value"] == 3.0
    assert found["B"]["acceptance_length"]["value"] == 1.0
    assert found["A"]["tokens_per_request_second"]["value"] == pytest.approx(3.0 / 0.020, rel=1e-3)
    assert found["B"]["tokens_per_request_second"]["value"] == pytest.approx(1.0 / 0.020, rel=1e-3)
    rows_a = 5 * (8 - members)
    per_row = 0.0199 / (rows_a + members)
    caused_by_a = rows_a * per_row + 0.0001  # its rows, and all that was spent on drafts
    tokens_a = 3 * (8 - members)
    assert found["A"]["tokens_per_row_second"]["value"] == pytest.approx(tokens_a / caused_by_a)
    assert found["B"]["tokens_per_row_second"]["value"] == pytest.approx(1 / per_row)
    report: Any = subject.report()
    gains = report["ab"]["b_over_a"]
    assert gains["acceptance_length"]["value"] == pytest.approx(1 / 3, abs=1e-3)
    assert report["ab"]["share"] == 0.5


def test_running_requests_count_when_they_end() -> None:
    subject = split("fixed", "off")
    Stage(subject).step(8)
    found = arms(subject)
    assert found["A"]["requests"] == found["B"]["requests"] == 0
    assert found["A"]["running"] + found["B"]["running"] == 8
    assert found["A"]["acceptance_length"] is None
    subject.forget(3)
    subject.forget(3)
    found = arms(subject)
    assert found["A"]["requests"] + found["B"]["requests"] == 1


def test_requests_that_are_never_ended_do_not_pile_up() -> None:
    subject = split("fixed", "off", 0.0)
    stage = Stage(subject)
    for start in range(0, 6000, 500):
        views = [request(start + i) for i in range(500)]
        plan = stage.plan(views, [], room=0)
        stage.observe(plan, everything)
    found = arms(subject)["A"]
    assert found["running"] == 4096
    assert found["requests"] == 6000 - 4096


def test_the_interval_covers_the_truth_as_often_as_it_says() -> None:
    """Requests of different lengths with a rate of their own: 90 % of intervals hold the ratio."""
    rng = random.Random(4)
    held = 0
    for _ in range(400):
        ratio = Ratio()
        for _ in range(60):
            steps = rng.randrange(20, 200)
            rate = rng.uniform(1.0, 3.0)
            ratio.add(sum(rng.random() < rate / 3.0 for _ in range(steps)) * 3.0, steps)
        found = ratio.estimate()
        assert found is not None
        report = found.report()
        low, high = report["low"], report["high"]
        assert low is not None
        assert high is not None
        held += low <= 2.0 <= high
    assert held / 400 == pytest.approx(0.9, abs=0.04)


def test_one_request_has_no_interval() -> None:
    ratio = Ratio()
    assert ratio.estimate() is None
    ratio.add(6.0, 3.0)
    found = ratio.estimate()
    assert found is not None
    assert found.report() == {"value": 2.0, "low": None, "high": None}
    assert found.over(found).report() == {"value": 1.0, "low": None, "high": None}


def test_an_arm_of_few_requests_says_what_it_drafts() -> None:
    """Of 40 requests arm B has three, fewer than the share of a batch that counts as drafting."""
    for policy in ("margin_verify", "ngram_else_model"):
        stage = Stage(split("off", policy, 0.1))
        assert 0 < sum(in_arm_b(i, 0.1) for i in range(40)) / 40 < 0.15
        for _ in range(40):
            stage.step(40, everything)
        found = {one.inputs["arm"]: one for one in stage.opened}
        assert found["B"].drafter == "ngram"
        assert found["B"].draft_length > 5.0


def test_an_arm_predicts_for_its_own_requests_and_its_what_if_for_all() -> None:
    """All of arm A's requests have a draft: so has everybody in its what-if, and half of the batch
    in the prediction of its decision."""
    costs = points({8: 10.0, 64: 10.0}, (8,))
    subject, alone = (split("fixed", "off", b, cost=CostModel(costs)) for b in (0.5, 0.0))
    Stage(subject).plan(people(8))
    Stage(alone).plan(people(8))
    assert subject.what_if(8, 128).candidates == alone.what_if(8, 128).candidates
    members = sum(in_arm_b(i, 0.5) for i in range(8))
    whole = next(one for one in subject.what_if(8, 128).candidates if one.draft_length == 4)
    first = next(one for one in subject.take_decisions() if one.inputs["arm"] == "A")
    plan = next(one for one in first.candidates if one.draft_length == 4)
    gained = plan.predicted_tokens - 8
    assert gained > 0.0
    assert gained / (whole.predicted_tokens - 8) == pytest.approx((8 - members) / 8, rel=1e-6)


# --- both -----------------------------------------------------------------------------------------


def test_settings_and_drafters_reach_both_arms() -> None:
    subject = split("fixed", "fixed")
    stage = Stage(subject)
    subject.configure(replace(subject.setting, max_draft_length=1))
    assert {one.length for one in stage.plan(people(8)).allotments} == {1}
    subject.set_enabled("ngram", False)
    assert {one.length for one in stage.plan(people(8)).allotments} == {0}
    subject.set_enabled("ngram", True)
    subject.remove_drafter("ngram")
    assert {one.length for one in stage.plan(people(8), [offer(1)]).allotments} == {0}


def test_arms_learn_acceptance_from_their_own_requests() -> None:
    subject = split("fixed", "fixed")

    def accept(one: Allotment) -> int:
        return one.length if in_arm_b(one.request, 0.5) else 0

    stage = Stage(subject)
    for _ in range(100):
        stage.step(8, accept)
    inner = subject.controller
    assert isinstance(inner, Split)
    rates = []
    for arm in inner.arms:
        report: Any = arm.controller.report()
        rates.append(report["acceptance"]["ngram"]["positions"][0]["rate"])
    assert rates == [0.0, 1.0]
