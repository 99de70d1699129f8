"""When a policy has the drafters asked: while anybody may draft who does not ask for it himself."""

from __future__ import annotations

import pytest

from controller.contract import NONE, Controller, Setting
from controller.policies.switchable import PolicyChoice
from tests.controller.policies.stage import Stage, nothing, policy
from tests.controller.policies.test_obedience import CHOICES, IDS, LARGEST, made

RULES = [one for one in CHOICES if not one.ab_policy and one.policy not in ("adaptive", "off")]


@pytest.mark.parametrize("choice", CHOICES, ids=IDS)
def test_only_off_asks_for_none_and_a_pin_is_asked_whatever_the_policy(
    choice: PolicyChoice,
) -> None:
    subject = made(choice)
    assert subject.attentive == (choice.policy != "off")
    subject.configure(Setting("pinned", "ngram", 3, LARGEST))
    assert subject.attentive
    subject.configure(Setting("pinned", "ngram", None, LARGEST, ((4, 2),)))
    assert subject.attentive


@pytest.mark.parametrize(
    "setting",
    [
        Setting("off", max_draft_length=LARGEST),
        Setting("pinned", NONE, None, LARGEST),
        Setting("pinned", "ngram", 0, LARGEST),
        Setting(max_draft_length=0),
        Setting(max_draft_length=LARGEST, max_drafting_requests=0),
    ],
)
@pytest.mark.parametrize("choice", RULES, ids=lambda one: one.policy)
def test_nobody_is_asked_where_the_operator_lets_nobody_draft(
    choice: PolicyChoice, setting: Setting
) -> None:
    subject = made(choice)
    assert subject.attentive
    subject.configure(setting)
    assert not subject.attentive


@pytest.mark.parametrize("choice", RULES, ids=lambda one: one.policy)
def test_nobody_is_asked_while_all_drafters_are_disabled(choice: PolicyChoice) -> None:
    subject = made(choice)
    for name in ("ngram", "suffix", "mtp"):
        assert subject.attentive
        subject.set_enabled(name, False)
    assert not subject.attentive
    subject.set_enabled("suffix", True)
    assert subject.attentive


def test_nobody_is_asked_for_a_drafter_that_is_not_there_or_for_a_d_of_0() -> None:
    assert not policy("fixed", drafter="mtp").attentive
    assert not policy("acceptance_gate", draft_length=0).attentive
    plain = policy("fixed", draft_length=0)
    assert not plain.attentive
    plain.configure(Setting("pinned", "ngram", 2, 16))
    assert plain.attentive
    plain.set_enabled("ngram", False)
    assert not plain.attentive


def lengths(subject: Controller, steps: int) -> list[int]:
    """D in each step when offers come only where the policy looks for them, and nothing of them is
    accepted."""
    stage = Stage(subject)
    return [
        stage.step(accept=nothing, offers=None if subject.attentive else []).allotments[0].length
        for _ in range(steps)
    ]


def test_a_gate_that_is_closed_does_not_look_and_looks_in_time_when_it_opens() -> None:
    subject = policy("acceptance_gate", window=4, pause_steps=20)
    assert lengths(subject, 4) == [4] * 4
    assert not subject.attentive
    assert lengths(subject, 24) == [0] * 19 + [4] * 4 + [0]


def test_a_switch_that_is_off_for_good_looks_no_more_but_for_a_pin() -> None:
    subject = policy("tensorrt_schedule", acceptance_window=3)
    assert lengths(subject, 4) == [4, 4, 4, 0]
    assert not subject.attentive
    subject.configure(Setting("pinned", "ngram", None, 16))
    assert not subject.attentive
    subject.configure(Setting("pinned", "ngram", 2, 16))
    assert subject.attentive


def test_what_was_offered_stands_while_nobody_is_asked() -> None:
    subject = policy("fixed")
    stage = Stage(subject)
    stage.step()
    before = [one.predicted_tokens for one in subject.what_if(1, 128).candidates]
    assert max(before) > 1.0
    subject.configure(Setting("off", max_draft_length=16))
    for _ in range(100):
        stage.step(offers=[])
    assert [one.predicted_tokens for one in subject.what_if(1, 128).candidates] == before
