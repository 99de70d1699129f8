"""The operator's table of D by batch size, and the limit above which nobody drafts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from controller import reasons
from controller.contract import NONE, Plan, Setting, Wish
from controller.controller import AdaptiveController
from controller.cost import CostModel
from controller.schedule import at_batch
from tests.controller.simulated_engine import BF16, batch, offer, points, request

TABLE = Setting("pinned", "ngram", schedule=((4, 2), (8, 1)))


def controller(setting: Setting) -> AdaptiveController:
    return AdaptiveController(["ngram"], CostModel(points(BF16)), setting)


def plan(subject: AdaptiveController, step: int, requests: int, wish: Wish | None = None) -> Plan:
    views = [request(id, wish=wish) for id in range(requests)]
    return subject.plan(
        replace(batch(*views), step=step), [offer(id, length=8) for id in range(requests)]
    )


@pytest.mark.parametrize(("requests", "length"), [(1, 2), (4, 2), (5, 1), (8, 1), (9, 0)])
def test_the_table_gives_d_by_batch_size_and_none_beyond_its_end(
    requests: int, length: int
) -> None:
    made = plan(controller(TABLE), 1, requests)
    assert [allotment.length for allotment in made.allotments] == [length] * requests


def test_nobody_drafts_above_the_limit_whatever_the_mode_or_the_wish() -> None:
    for setting in (Setting(), Setting("pinned", "ngram", 4)):
        subject = controller(replace(setting, max_drafting_requests=2))
        for wish in (Wish(), Wish(True, "ngram", 3)):
            made = plan(subject, 1, 3, wish)
            assert {(one.drafter, one.length) for one in made.allotments} == {(NONE, 0)}
    pinned = controller(Setting("pinned", "ngram", 4, max_drafting_requests=2))
    assert [one.length for one in plan(pinned, 1, 2).allotments] == [4, 4]


def test_a_change_by_the_batch_size_is_a_decision_with_its_reason() -> None:
    subject = controller(TABLE)
    steps = [3] * 40 + [9] * 40 + [3] * 40
    made = [plan(subject, step, size).decision for step, size in enumerate(steps, 1)]
    decided = [decision for decision in made if decision is not None]
    assert [decision.reason for decision in decided] == [
        reasons.START,
        reasons.BATCH_TABLE,
        reasons.BATCH_TABLE,
    ]
    assert [decision.draft_length for decision in decided] == [2.0, 0.0, 2.0]
    assert decided[1].sentence == "9 requests decode: the operator's table gives D = 0."


def test_a_batch_size_that_flickers_makes_few_decisions_but_the_plan_follows_at_once() -> None:
    subject = controller(replace(Setting("pinned", "ngram", 4), max_drafting_requests=2))
    decisions = 0
    for step in range(1, 257):
        size = 2 + step % 2
        made = plan(subject, step, size)
        decisions += made.decision is not None
        assert {one.length for one in made.allotments} == ({0} if size == 3 else {4})
    assert decisions <= 1 + 256 // 32


@pytest.mark.parametrize(
    ("setting", "field"),
    [
        (Setting("auto", schedule=((4, 2),)), "schedule"),
        (Setting("pinned", "ngram", 2, schedule=((4, 2),)), "schedule"),
        (Setting("pinned", NONE, schedule=((4, 2),)), "schedule"),
        (Setting("pinned", "ngram", schedule=((4, 2), (4, 1))), "schedule"),
        (Setting("pinned", "ngram", schedule=((0, 2),)), "schedule"),
        (Setting("pinned", "ngram", schedule=((4, 17),)), "schedule"),
        (Setting("off", max_drafting_requests=2), "max_drafting_requests"),
        (Setting("auto", max_drafting_requests=-1), "max_drafting_requests"),
    ],
)
def test_a_setting_that_would_have_no_effect_or_no_sense_is_refused(
    setting: Setting, field: str
) -> None:
    with pytest.raises(ValueError, match=field):
        controller(setting)


def test_without_a_table_or_limit_the_setting_is_as_given() -> None:
    assert at_batch(Setting(), 100) == Setting()
