"""Changing the policy of a running server."""

from __future__ import annotations

import json
from typing import Any

import pytest

from controller.contract import DrafterInfo, Setting
from controller.cost import CostModel
from controller.policies import NAMES, PolicyInputs
from controller.policies.switchable import PolicyChoice, Switchable, check_choice
from tests.controller.policies.stage import Stage, everything, people
from tests.controller.simulated_engine import BF16, Clock, points


def made(choice: PolicyChoice | None = None) -> Switchable:
    inputs = PolicyInputs(
        ("ngram", "suffix"),
        CostModel(points(BF16)),
        tails=("ngram",),
        setting=Setting(max_draft_length=16),
        clock=Clock(),
    )
    return Switchable(inputs, choice or PolicyChoice())


def lengths(subject: Switchable, steps: int = 1) -> list[int]:
    return Stage(subject).lengths(steps)


def test_every_policy_can_follow_every_other() -> None:
    subject = made()
    for name in (*NAMES, *reversed(NAMES)):
        subject.switch(PolicyChoice(name))
        Stage(subject).lengths(5)
        report: Any = subject.report()
        assert report["policy"]["name"] == name
        json.dumps(report)


def test_a_switch_holds_from_the_next_plan_on() -> None:
    subject = made(PolicyChoice("fixed", "drafter=ngram draft_length=2"))
    assert lengths(subject) == [2]
    subject.switch(PolicyChoice("fixed", "drafter=ngram draft_length=7"))
    assert lengths(subject) == [7]
    subject.switch(PolicyChoice("off"))
    assert lengths(subject) == [0]


def test_what_was_done_to_the_drafters_and_the_setting_goes_on() -> None:
    subject = made()
    subject.add_drafter(DrafterInfo("mtp", model=True, rho=0.2))
    subject.set_enabled("ngram", False)
    subject.remove_drafter("suffix")
    setting = Setting("pinned", "mtp", 3, 16)
    subject.configure(setting)
    subject.switch(PolicyChoice("ema_tiers"))
    assert subject.setting == setting
    report: Any = subject.report()
    assert report["drafters"] == {"ngram": False, "mtp": True}
    assert report["cost"]["draft_price"]["mtp"]["per_depth"] > 0.0


def test_measured_costs_go_on() -> None:
    subject = made(PolicyChoice("fixed", "drafter=ngram"))
    stage = Stage(subject)
    for _ in range(100):
        stage.step(1, ms=40.0)
    report: Any = subject.report()
    factor = report["cost"]["factor"]
    assert factor > 1.2
    subject.switch(PolicyChoice("goodput"))
    report = subject.report()
    assert report["cost"]["factor"] == factor


def test_a_measured_price_of_drafts_stays_over_a_switch_and_over_a_refused_one() -> None:
    subject = made(PolicyChoice("fixed", "drafter=mtp draft_length=2"))
    subject.add_drafter(DrafterInfo("mtp", model=True, rho=0.9))
    stage = Stage(subject, ("mtp",))
    for _ in range(40):
        stage.observe(stage.plan(people(1)), everything, draft_ms=1.0)

    def price() -> Any:
        report: Any = subject.report()
        return report["cost"]["draft_price"]["mtp"]

    measured = price()
    assert measured["per_depth"] < 1.0  # and not .9 of a step of 10.7 ms
    subject.switch(PolicyChoice("goodput", ab_policy="adaptive"))
    assert price() == measured
    with pytest.raises(ValueError, match="ab_options"):
        subject.switch(PolicyChoice("fixed", ab_policy="ema_tiers", ab_options="ema_rate=9"))
    assert price() == measured


def test_an_option_that_a_loaded_drafter_makes_no_sense_of_is_refused() -> None:
    subject = made()
    choice = PolicyChoice("ngram_else_model", "matcher=mtp")
    check_choice(choice)  # nobody knows yet what mtp will be
    subject.add_drafter(DrafterInfo("mtp", model=True, rho=0.1))
    with pytest.raises(ValueError, match="policy_options: matcher: mtp is a model"):
        subject.switch(choice)
    with pytest.raises(ValueError, match="ab_options: model: ngram has no model"):
        subject.switch(PolicyChoice("off", "", "ngram_else_model", "model=ngram"))
    assert subject.choice == PolicyChoice()


def test_the_decision_in_force_is_told_as_closed() -> None:
    subject = made(PolicyChoice("fixed", "drafter=ngram"))
    stage = Stage(subject)
    stage.step(1, everything)
    old = stage.opened[-1]
    assert not old.closed
    subject.take_decisions()
    subject.switch(PolicyChoice("off"))
    told = subject.take_decisions()
    assert [(one.id, one.closed) for one in told] == [(old.id, True)]
    assert told[0].realised.tokens == 5
    stage.step(1)
    assert stage.opened[-1].sentence.startswith("First plan of policy off")


def test_of_two_arms_both_decisions_in_force_are_told_as_closed() -> None:
    subject = made(PolicyChoice("fixed", "drafter=ngram", "off"))
    stage = Stage(subject)
    stage.step(8)
    stage.step(8)
    opened = {one.id for one in stage.opened}
    assert len(opened) == 2
    subject.take_decisions()
    subject.switch(PolicyChoice("off"))
    told = subject.take_decisions()
    assert {(one.id, one.closed) for one in told} == {(number, True) for number in opened}


@pytest.mark.parametrize(
    ("choice", "text"),
    [
        (PolicyChoice("clever"), "policy: 'clever' is not one of adaptive, off"),
        (PolicyChoice("off", ab_policy="clever"), "ab_policy: 'clever' is not one of"),
        (PolicyChoice("fixed", "depth=3"), "policy_options: depth: is no option of policy fixed"),
        (PolicyChoice("fixed", "depth"), "policy_options: depth: options are written as"),
        (
            PolicyChoice("off", ab_policy="fixed", ab_options="draft_length=99"),
            "ab_options: draft_length: must be a whole number from 0 to 64",
        ),
        (PolicyChoice("off", ab_policy="fixed", ab_share=1.5), "ab_share: must be 0 to 1"),
    ],
)
def test_a_choice_that_makes_no_sense_is_refused_and_changes_nothing(
    choice: PolicyChoice, text: str
) -> None:
    subject = made(PolicyChoice("fixed", "drafter=ngram draft_length=2"))
    inner = subject.controller
    with pytest.raises(ValueError, match="^" + text.replace("(", r"\(")):
        subject.switch(choice)
    with pytest.raises(ValueError, match="^" + text):
        check_choice(choice)
    assert subject.controller is inner
    assert lengths(subject) == [2]


def test_every_policy_is_a_choice() -> None:
    for name in NAMES:
        check_choice(PolicyChoice(name, ab_policy=name))
