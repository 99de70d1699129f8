"""What a policy learns of a D that it chose where limits let less of it run."""

from __future__ import annotations

from typing import Any

import pytest

from controller.contract import Offer, RequestOutcome, Setting, StepOutcome, Wish
from controller.policies.ema_tiers import LASTING, EmaTiers
from controller.policies.goodput import Goodput
from controller.policies.openings import find_openings
from controller.policies.placing import place, uncut
from controller.policies.ucb import Ucb
from tests.controller.policies.stage import Stage, everything, nothing, people, policy
from tests.controller.simulated_engine import batch, offer, request

# --- which drafts ran as chosen -------------------------------------------------------------------


def whole(*, remaining: int = 100, offered: int = 16, room: int = 64, most: int = 16) -> list[bool]:
    """Whether two requests with D = 4 got it. remaining and offered: of the first of them."""
    setting = Setting(max_draft_length=most)
    views = [request(0, remaining=remaining), request(1)]
    offers = [Offer(0, "ngram", offered), Offer(1, "ngram", 16)]
    openings = find_openings(batch(*views), offers, setting, ["ngram"])
    picks = [("ngram", 4)] * 2
    found = uncut(openings, picks, place(openings, picks, room), most)
    return [number in found for number in (0, 1)]


def test_what_a_drafter_offers_and_the_largest_d_are_part_of_the_choice() -> None:
    assert whole() == [True, True]
    assert whole(offered=2) == [True, True]
    assert whole(most=3) == [True, True]


def test_the_end_of_the_text_and_the_room_are_not() -> None:
    assert whole(remaining=3) == [False, True]
    assert whole(room=7) == [True, False]
    assert whole(room=2) == [False, False]


def test_plain_decoding_that_was_chosen_ran_as_chosen() -> None:
    openings = find_openings(batch(request(0)), [offer(0)], Setting(), ["ngram"])
    assert uncut(openings, [("none", 0)], {}, 16) == {0}
    assert uncut(openings, [("suffix", 3)], {}, 16) == {0}
    assert uncut(openings, [("ngram", 3)], {}, 16) == frozenset()


# --- the bandit -----------------------------------------------------------------------------------


def bandit(setting: Setting | None = None, **options: Any) -> Ucb:
    subject = policy("ucb", setting=setting, **options)
    assert isinstance(subject, Ucb)
    return subject


def state(subject: Ucb, length: int) -> Any:
    return subject.describe()[f"ngram {length}"]


def test_an_arm_that_the_budget_cuts_gets_no_reward_of_a_shorter_d() -> None:
    subject = bandit(Setting(max_draft_length=16, draft_budget=1))
    stage = Stage(subject)
    assert stage.lengths(400, accept=everything) == [1] * 400
    for length in (2, 4, 8):
        assert state(subject, length)["told"] == 0
        assert state(subject, length)["mean"] == 0.0
    assert state(subject, 1)["mean"] == 2.0
    assert state(subject, 1)["rounds"] == state(subject, 1)["told"] > 350  # it does not try on
    assert stage.decisions[-1].draft_length == 1


def test_the_last_tokens_of_a_text_say_nothing_of_a_long_d() -> None:
    subject = bandit(draft_lengths="8")
    stage = Stage(subject)
    stage.observe(stage.plan([request(0, remaining=3)]), everything)
    assert state(subject, 8) == {"rounds": 1, "told": 0, "mean": 0.0}
    stage.observe(stage.plan([request(0, remaining=3), request(1)]), everything)
    assert state(subject, 8) == {"rounds": 2, "told": 1, "mean": 9.0}


def test_a_request_that_asks_for_another_drafter_says_nothing_of_the_arm() -> None:
    subject = policy("ucb", ("ngram", "suffix"), draft_lengths="4")
    stage = Stage(subject, ("ngram", "suffix"))
    views = [request(0), request(1, wish=Wish(drafter="suffix"))]
    plan = stage.plan(views)
    assert [one.drafter for one in plan.allotments] == ["ngram", "suffix"]
    stage.observe(plan, lambda one: 4 if one.drafter == "suffix" else 1)
    assert isinstance(subject, Ucb)
    assert state(subject, 4)["mean"] == 2.0


def test_the_time_of_a_step_whose_drafts_were_mostly_cut_is_not_the_arms() -> None:
    subject = bandit(draft_lengths="8", reward="tokens_per_ms", exploration=2.0)
    stage = Stage(subject)
    stage.step()  # plain decoding has the first round
    ending, going = request(0, remaining=3), request(2)
    for _ in range(8):
        stage.observe(stage.plan([ending, request(1, remaining=3), going]), everything)
    assert state(subject, 8)["rounds"] > 1
    assert state(subject, 8)["told"] == 0
    for _ in range(8):
        stage.observe(stage.plan([ending, request(1), going]), everything)
    assert state(subject, 8)["told"] > 1


# --- tiers ----------------------------------------------------------------------------------------


def tiers() -> tuple[EmaTiers, Stage]:
    subject = policy("ema_tiers", draft_length=7, warm_up_steps=0, interval_steps=1)
    assert isinstance(subject, EmaTiers)
    return subject, Stage(subject)


def test_drafts_that_the_room_cuts_do_not_make_d_shorter() -> None:
    subject, stage = tiers()
    for step in range(60):
        stage.observe(stage.plan(people(1), room=512 if step % 3 == 0 else 2), everything)
    assert subject.slot(1).length == 7


def test_a_text_that_ends_does_not_make_d_shorter() -> None:
    subject, stage = tiers()
    for _ in range(20):
        stage.observe(stage.plan([request(0, remaining=3)]), everything)
    assert subject.slot(1).length == 7


def test_a_limit_that_is_there_to_stay_is_what_the_tiers_are_judged_by() -> None:
    """Else useless drafts would go on for as long as a limit cuts them."""
    subject, stage = tiers()
    for _ in range(LASTING):
        stage.observe(stage.plan(people(1), room=2), nothing)
    assert subject.slot(1).length == 7
    for _ in range(20):
        stage.observe(stage.plan(people(1), room=2), nothing)
    assert subject.slot(1).length == 1
    stage.observe(stage.plan(people(1), room=2), nothing)
    assert subject.slot(1).cut == 0  # D = 1 runs as it was chosen


# --- those that judge what runs -------------------------------------------------------------------


def test_a_gate_closes_for_the_drafts_that_limits_leave() -> None:
    setting = Setting(max_draft_length=16, draft_budget=1)
    stage = Stage(policy("acceptance_gate", setting=setting, window=8))
    assert stage.lengths(9, accept=nothing) == [1] * 8 + [0]


def test_a_rate_per_position_holds_for_every_d() -> None:
    setting = Setting(max_draft_length=16, draft_budget=1)
    subject = policy("goodput", setting=setting, costs={1: 10.0, 64: 10.0})
    assert isinstance(subject, Goodput)
    Stage(subject).lengths(1, accept=everything)
    assert subject.describe()["acceptance_rate"] == pytest.approx(0.85 * 0.7 + 0.15)


def test_what_a_mask_ruled_out_counts_as_rejected() -> None:
    """One token was accepted, and the next would not have been."""
    subject = policy("goodput", costs={1: 10.0, 64: 10.0})
    assert isinstance(subject, Goodput)
    Stage(subject).plan(people(1))
    ended = RequestOutcome(0, "ngram", 1, 1, 2, refused="ngram")
    subject.observe(StepOutcome(1, 1, 2, 0, 128, 10.0, 0.1, 0.5, (ended,)))
    assert subject.describe()["acceptance_rate"] == pytest.approx(0.85 * 0.7 + 0.15 * 0.5)
