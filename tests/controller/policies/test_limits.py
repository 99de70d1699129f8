"""The operator's TPOT target and draft budget around every policy, and around two of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller import reasons
from controller.contract import (
    NONE,
    CostPoint,
    DrafterInfo,
    Features,
    Offer,
    Plan,
    Setting,
    Wish,
)
from controller.cost import CostModel
from controller.policies import NAMES, PolicyInputs, make
from controller.policies.split import in_arm_b
from controller.policies.switchable import PolicyChoice, Switchable
from tests.controller.policies.stage import Stage, everything, people
from tests.controller.policies.test_obedience import CHOICES, IDS, Turn, play, turns
from tests.controller.simulated_engine import Clock, batch, offer, request

SLOPE = 1.0
"""A step takes 10 ms and so many more for each drafted row, whatever the batch."""
POINTS = [CostPoint(n, n + m, 128, 10.0 + SLOPE * m) for n in (1, 2, 4, 8) for m in (0, 64)]
RULES = [name for name in NAMES if name not in ("adaptive", "off")]


def inputs(setting: Setting, **options: object) -> PolicyInputs:
    return PolicyInputs(
        ("ngram",), CostModel(POINTS), setting=setting, options=options, clock=Clock()
    )


def fixed(setting: Setting, length: int = 6) -> Stage:
    return Stage(make("fixed", inputs(setting, draft_length=length)))


def lengths(plan: Plan) -> list[int]:
    return [one.length + one.tail_length for one in plan.allotments]


def aim(ms: float, setting: Setting | None = None) -> Setting:
    return replace(setting or Setting(), tpot_target_ms=ms)


def subject(choice: PolicyChoice, setting: Setting) -> Switchable:
    made = Switchable(
        PolicyInputs(("ngram", "suffix"), CostModel(POINTS), tails=("ngram",), clock=Clock()),
        choice,
    )
    made.add_drafter(DrafterInfo("mtp", model=True, rho=0.05))
    made.configure(setting)
    return made


@pytest.mark.parametrize("choice", CHOICES, ids=IDS)
@given(st.lists(turns(), min_size=1, max_size=8), st.integers(1, 9))
@settings(max_examples=10, deadline=None)
def test_no_policy_and_no_pair_of_them_exceeds_the_budget(
    choice: PolicyChoice, history: list[Turn], tokens: int
) -> None:
    made = subject(choice, Setting())
    for step, turn in enumerate(history, 1):
        limited = turn.setting
        if limited.mode != "off":
            limited = replace(limited, draft_budget=tokens, tpot_target_ms=12.0)
        plan = play(made, replace(turn, setting=limited), step)
        if limited.mode != "off":
            assert sum(lengths(plan)) <= min(tokens, turn.free_rows)


@pytest.mark.parametrize("choice", CHOICES, ids=IDS)
@given(st.lists(turns(), min_size=1, max_size=8))
@settings(max_examples=10, deadline=None)
def test_limits_that_every_plan_keeps_change_nothing(
    choice: PolicyChoice, history: list[Turn]
) -> None:
    free, limited = subject(choice, Setting()), subject(choice, Setting())
    for step, turn in enumerate(history, 1):
        wide = turn.setting
        if wide.mode != "off":
            wide = replace(wide, draft_budget=100_000, tpot_target_ms=500_000.0)
        one, other = play(free, turn, step), play(limited, replace(turn, setting=wide), step)
        assert one.allotments == other.allotments


@pytest.mark.parametrize("name", RULES)
@given(st.lists(st.floats(2.0, 60.0), min_size=2, max_size=5), st.integers(1, 4))
@settings(max_examples=15, deadline=None)
def test_a_tighter_target_never_leads_to_longer_drafts_where_some_cannot_draft(
    name: str, targets: list[float], offers: int
) -> None:
    """The others wait the whole step, which more rows make longer."""
    before = 0
    for ms in sorted(targets):
        stage = Stage(make(name, inputs(aim(ms))))
        plan = stage.plan(people(5), [offer(i, length=8) for i in range(offers)])
        rows = sum(lengths(plan))
        assert rows >= before
        assert rows == 0 or 10.0 + SLOPE * rows <= ms * (1.0 + 1e-9)
        before = rows


def test_a_policys_d_is_cut_to_the_longest_that_meets_the_target() -> None:
    offers = [offer(0, length=8)]
    assert lengths(fixed(Setting()).plan(people(2), offers)) == [6, 0]
    assert lengths(fixed(aim(13.5)).plan(people(2), offers)) == [3, 0]
    assert lengths(fixed(aim(5.0)).plan(people(2), offers)) == [0, 0]


def test_a_pin_and_a_wish_are_cut_as_well() -> None:
    offers = [offer(0, length=8)]
    pinned = Setting("pinned", "ngram", 5)
    assert lengths(fixed(pinned).plan(people(2), offers)) == [5, 0]
    assert lengths(fixed(aim(12.0, pinned)).plan(people(2), offers)) == [2, 0]
    views = [request(0, wish=Wish(drafter="ngram", draft_length=4)), request(1)]
    assert lengths(fixed(aim(11.0)).plan(views, offers)) == [1, 0]


def test_drafts_for_everybody_are_kept_where_they_bring_all_within_the_target() -> None:
    """Plain decoding takes 10 ms a token; accepted drafts for both take less."""
    stage = fixed(aim(9.0), 2)
    for _ in range(60):
        stage.step(2, everything)
    assert lengths(stage.plan(people(2))) == [2, 2]
    assert lengths(stage.plan(people(2), [offer(0)])) == [0, 0]


def test_prefills_count() -> None:
    stage = fixed(aim(16.0))
    view = replace(batch(*people(2)), prefill_rows=4)
    assert lengths(stage.controller.plan(view, [offer(0, length=8)])) == [2, 0]


def test_the_record_says_what_the_target_decides_and_when_no_longer() -> None:
    stage = fixed(aim(13.5))
    for step in range(300):
        stage.step(2, offers=[offer(0, length=8)] if step < 120 else [])
    first, *later = stage.opened
    assert first.reason == reasons.START
    assert "TPOT at most 13.5 ms" in first.sentence
    assert "The policy's own goodput was " in first.sentence
    assert "over the target of 13.5 ms; the plan's is 13.0 ms." in first.sentence
    assert (first.drafter, first.draft_length) == ("ngram", 1.5)
    assert first.inputs["tpot_target_ms"] == 13.5
    assert first.inputs["target_decides"] == 1.0
    assert [one.reason for one in later] == ["RULE"]
    assert (later[0].drafter, later[0].draft_length) == ("ngram", 6)


def test_a_target_that_begins_to_decide_is_a_decision_with_its_own_reason() -> None:
    stage = fixed(aim(13.5))
    for step in range(300):
        stage.step(2, offers=[offer(0, length=8)] if step > 120 else [])
    first, *later = stage.opened
    assert first.reason == reasons.START
    assert "over the target" not in first.sentence
    assert later[0].reason == reasons.TPOT_TARGET
    assert later[0].sentence.startswith("The policy's own goodput was ")


def test_a_target_within_the_operators_table_is_told_as_the_target() -> None:
    """The table gives D = 6 where the plan drafts 3."""
    table = Setting("pinned", "ngram", schedule=((8, 6),))
    stage = fixed(aim(13.5, table))
    for step in range(300):
        stage.step(2, offers=[offer(0, length=8)] if step > 120 else [])
    first, *later = stage.opened
    assert first.draft_length == 6
    assert later[0].reason == reasons.TPOT_TARGET
    assert later[0].draft_length < 6
    assert "over the target of 13.5 ms" in later[0].sentence


def test_above_the_limit_of_drafting_requests_no_other_limit_decides() -> None:
    stage = fixed(replace(aim(13.5), max_drafting_requests=2))
    for size in (2, 3):
        for _ in range(40):
            stage.step(size, offers=[offer(0, length=8)])
    told = [(one.reason, one.drafter, one.draft_length) for one in stage.opened]
    assert told[0][1] == "ngram"
    assert told[1:] == [(reasons.REQUEST_LIMIT, NONE, 0)]
    assert "tpot_ms" in stage.opened[0].inputs
    assert "tpot_ms" not in stage.opened[1].inputs


def test_the_record_says_what_the_budget_decides() -> None:
    stage = fixed(replace(Setting(), draft_budget=4))
    for _ in range(10):
        plan = stage.step(2)
        assert sum(lengths(plan)) == 4
    (first,) = stage.opened
    assert "with 12.0 draft tokens per step, over the budget of 4." in first.sentence
    assert (first.drafter, first.draft_length) == ("ngram", 2.0)
    assert first.inputs["draft_budget"] == 4


# --- two policies -------------------------------------------------------------------------------

A = [number for number in range(40) if not in_arm_b(number, 0.5)]
B = [number for number in range(40) if in_arm_b(number, 0.5)]


def two(setting: Setting) -> Switchable:
    choice = PolicyChoice("fixed", "draft_length=4", "adaptive", ab_share=0.5)
    made = Switchable(PolicyInputs(("ngram",), CostModel(POINTS), clock=Clock()), choice)
    made.configure(setting)
    return made


def offers_of(*requests: int) -> Sequence[Offer]:
    return [Offer(one, "ngram", 8, Features(9)) for one in requests]


def test_each_arm_has_the_budget_of_its_requests() -> None:
    numbers = [A[0], A[1], B[0], B[1]]
    views = [request(one) for one in numbers]
    plan = two(replace(Setting(), draft_budget=6)).plan(batch(*views), offers_of(*numbers))
    found = dict(zip(numbers, lengths(plan), strict=True))
    assert found[A[0]] + found[A[1]] == 3
    assert 0 < found[B[0]] + found[B[1]] <= 3


def test_an_arm_is_not_judged_by_the_others_requests_but_waits_for_their_rows() -> None:
    """Each arm has one request that drafts. Were the other's judged as plain, nobody would."""
    numbers = [A[0], B[0]]
    views = [request(one) for one in numbers]
    made = two(aim(9.5))
    plan = made.plan(batch(*views), offers_of(*numbers))
    assert lengths(plan)[0] == 4
    told = {str(one.inputs["arm"]): asdict(one)["inputs"] for one in made.take_decisions()}
    alone = two(aim(9.5))
    alone.plan(batch(*views), offers_of(B[0]))
    other = {str(one.inputs["arm"]): one.inputs for one in alone.take_decisions()}
    assert told["B"]["tpot_ms"] > other["B"]["tpot_ms"]


def test_a_request_of_an_arm_without_an_offer_waits_the_whole_step() -> None:
    numbers = [A[0], A[1], B[0]]
    plan = two(aim(12.0)).plan(batch(*[request(one) for one in numbers]), offers_of(A[0]))
    assert lengths(plan) == [2, 0, 0]
    assert {one.drafter for one in plan.allotments[1:]} == {NONE}
