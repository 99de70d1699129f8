"""SGLang's tiers: the sequences of its own tests, and its thresholds."""

from __future__ import annotations

from typing import Any

import pytest

from controller.policies.ema_tiers import EmaTiers, Slot
from tests.controller.policies.stage import Stage, at_most, everything, nothing, people, policy

NO_WARM_UP: dict[str, Any] = {"warm_up_steps": 0, "interval_steps": 1}


def slot(tiers: str, start: int, hysteresis: float = 0.0) -> Slot:
    return Slot([int(one) for one in tiers.split("/")], hysteresis, start)


def after(subject: Slot, *batches: list[int], rate: float = 1.0) -> list[int]:
    """D after each batch of accepted counts, deciding at each."""
    found: list[int] = []
    for accepted in batches:
        subject.update(accepted, rate, 0, 1)
        found.append(subject.length)
    return found


def test_a_start_that_is_no_tier_is_the_middle_one() -> None:
    assert slot("1/3/7", 5).length == 3
    assert slot("0/1", 3).length == 1


def test_three_batches_without_an_accepted_token_go_down_on_the_third() -> None:
    subject = slot("1/3/7", 3)
    lengths: list[int] = []
    for accepted in ([0, 0], [0, 0], [0, 0]):
        subject.update(accepted, 1.0, 1, 2)
        lengths.append(subject.length)
    assert lengths == [3, 3, 1]


def test_an_empty_batch_is_ignored() -> None:
    subject = slot("1/3/7", 3)
    assert after(subject, [], [], []) == [3, 3, 3]
    assert subject.mean == 2.0


def test_good_batches_go_up_and_a_bad_one_goes_all_the_way_down() -> None:
    assert after(slot("1/3/7", 1), [1], [3], [7], [0]) == [3, 7, 7, 1]


def test_exactly_at_the_threshold_it_does_not_rise_but_does_drop() -> None:
    assert after(slot("1/3/7", 3), [2, 3]) == [3]  # a mean of 2.5
    assert after(slot("1/3/7", 3), [0, 1]) == [1]  # a mean of 0.5


def test_half_rates_follow_the_sequence() -> None:
    subject = slot("1/3/7", 3)
    assert after(subject, [4, 4], [0, 0], [0, 0], [0, 0], rate=0.5) == [7, 3, 3, 1]
    assert subject.mean == pytest.approx(0.375)


def test_zero_is_left_again_as_a_trial() -> None:
    assert after(slot("0/3", 3), [0], [0], [3]) == [0, 3, 3]


def test_a_slot_that_starts_at_zero_begins_its_first_trial_neutral() -> None:
    subject = slot("0/3", 0)
    subject.update([0], 0.2, 0, 1)
    assert (subject.length, subject.mean) == (3, 2.0)


def test_default_thresholds_of_small_batches() -> None:
    """Up above 0.5, 2.5, 4.5; down at 4.25, 2.25, 0.25 and below."""
    for before, mean, length in [
        (1, 0.5, 1),
        (1, 0.51, 3),
        (3, 2.5, 3),
        (3, 2.51, 5),
        (5, 4.5, 5),
        (5, 4.51, 7),
        (7, 4.25, 5),
        (7, 4.26, 7),
        (5, 2.25, 3),
        (5, 2.26, 5),
        (3, 0.25, 1),
        (3, 0.26, 3),
    ]:
        subject = slot("1/3/5/7", before, -0.25)
        subject.mean = mean
        assert after(subject, [0], rate=0.0) == [length], (before, mean)


def test_batches_are_routed_to_the_slot_from_their_size_on() -> None:
    subject = policy("ema_tiers")
    assert isinstance(subject, EmaTiers)
    sizes = {1: 0, 7: 0, 8: 1, 31: 1, 32: 2, 63: 2, 64: 3, 1000: 3}
    slots = [subject.slot(size) for size in (1, 8, 32, 64)]
    for size, place in sizes.items():
        assert subject.slot(size) is slots[place]


def test_ten_steps_are_ignored_then_every_fifth_decides() -> None:
    stage = Stage(policy("ema_tiers"))
    lengths = stage.lengths(31, accept=everything)
    assert lengths[:15] == [3] * 15
    assert lengths[15] == 5
    assert set(lengths[15:20]) == {5}
    assert lengths[20:25] == [5] * 5  # the mean is 2.0 + (5 - 2.0) * (1 - 0.8 ** n) by then
    assert lengths[30] == 7


def test_sixty_four_requests_never_draft() -> None:
    stage = Stage(policy("ema_tiers"))
    for _ in range(40):
        plan = stage.step(64, everything)
        assert not any(one.length for one in plan.allotments)


def test_useless_drafts_at_a_batch_of_eight_cycle_for_ever() -> None:
    """Five steps off, five trying: there is no back-off."""
    stage = Stage(policy("ema_tiers", interval_steps=5, warm_up_steps=0))
    lengths = stage.lengths(100, 8, nothing)
    tail = lengths[40:]
    assert tail.count(0) == len(tail) // 2
    assert set(tail) == {0, 1}


def test_a_result_of_another_d_does_not_count() -> None:
    subject = policy("ema_tiers", **NO_WARM_UP)
    assert isinstance(subject, EmaTiers)
    stage = Stage(subject)
    plan = stage.step(1, at_most(2))
    assert plan.allotments[0].length == 3
    old = stage.plan(people(1))
    subject.slot(1).length = 5
    mean = subject.slot(1).mean
    stage.observe(old, everything)
    assert subject.slot(1).mean == mean


def test_decisions_say_what_is_accepted_and_which_way_d_went() -> None:
    stage = Stage(policy("ema_tiers"))
    stage.lengths(80, accept=everything)
    stage.lengths(80, accept=nothing)
    reasons = [one.reason for one in stage.opened]
    assert reasons[0] == "START"
    assert "TIER_UP" in reasons
    assert reasons[-1] == "TIER_DOWN"
    assert "D fell from" in stage.opened[-1].sentence
