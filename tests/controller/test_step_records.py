"""Sampled steps: drawn whatever happens, predicted when planned, bounded."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

import pytest

from controller.averages import Sample
from controller.contract import (
    Offer,
    RequestOutcome,
    RequestView,
    Setting,
    StepOutcome,
    StepRecord,
)
from controller.controller import AdaptiveController
from controller.cost import CostModel
from controller.policies import PolicyInputs
from controller.policies.split import Split
from controller.policies.switchable import PolicyChoice, Switchable
from controller.step_records import IN_FLIGHT, KEPT, ONE_IN, StepRecords
from tests.controller.simulated_engine import (
    BF16,
    World,
    batch,
    offer,
    points,
    request,
    simulate,
)


def always(world: World) -> World:
    """Every step of the world is drawn."""
    world.controller._steps.draws = lambda: True
    return world


def sample(tokens: float = 2.5, blocked: int = 0) -> Sample:
    return Sample(1, 1, 128.0, 0, blocked, None, 0.1, 11.0, 1.0, tokens=tokens, ms=12.0)


def outcome(step: int, committed: int = 3, prefill_rows: int = 0) -> StepOutcome:
    result = RequestOutcome(1, "ngram", 4, committed - 1, committed)
    return StepOutcome(step, 1, 5, prefill_rows, 128, 10.0, 0.5, 1.5, (result,))


# --- the sample -----------------------------------------------------------------------------------


def test_one_step_in_256_is_drawn_in_no_rhythm() -> None:
    records = StepRecords(lambda: 0.0)
    drawn = [step for step in range(400_000) if records.draws()]
    assert len(drawn) == pytest.approx(400_000 / ONE_IN, rel=0.1)
    gaps = [after - before for before, after in itertools.pairwise(drawn)]
    # Geometric: as wide as its mean, and a look in every 4th or 16th step is met by its share.
    mean = sum(gaps) / len(gaps)
    spread = (sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5
    assert spread == pytest.approx(mean, rel=0.15)
    assert sum(step % 4 == 0 for step in drawn) / len(drawn) == pytest.approx(1 / 4, rel=0.2)
    assert sum(step % 16 == 0 for step in drawn) / len(drawn) == pytest.approx(1 / 16, rel=0.35)


def test_a_serving_controller_draws_them() -> None:
    world = simulate(rates=lambda step: (0.7, 0.8)).run(3000)
    found = world.controller.take_step_records()
    assert 4 <= len(found) <= 24
    assert world.controller.take_step_records() == []


# --- what a record says ---------------------------------------------------------------------------


def test_a_record_is_the_plan_as_predicted_and_the_step_as_measured() -> None:
    world = always(simulate(size=3, rates=lambda step: (0.8, 0.9)).run(400))
    decision = world.controller.report()["current"]
    assert isinstance(decision, dict)
    world.controller.take_step_records()
    before = world.clock.now
    plan = world.one()
    (record,) = world.controller.take_step_records()
    measured = world.outcomes[-1]
    lengths = [one.length for one in plan.allotments]
    assert (record.step, record.time, record.requests) == (world.step, before, 3)
    assert (record.context, record.prefill_rows) == (128.0, 0)
    assert record.drafts == {"ngram": (sum(n > 0 for n in lengths), sum(lengths))}
    assert record.realised_tokens == sum(one.committed for one in measured.per_request)
    assert record.realised_ms == pytest.approx(
        measured.verify_ms + measured.draft_ms + measured.overhead_ms
    )
    assert 0.0 < record.price < 1.0
    assert record.decision == decision["id"]
    assert record.guard is None


@pytest.mark.parametrize("setting", [Setting(), Setting("pinned", "ngram", 4)])
def test_predictions_hold_in_sum(setting: Setting) -> None:
    world = simulate(size=4, rates=lambda step: (0.7, 0.8))
    world.controller.configure(setting)
    world.run(600)
    always(world).controller.take_step_records()
    found = list[StepRecord]()
    for _ in range(1000):
        world.one()
        found += world.controller.take_step_records()
    assert len(found) == 1000
    tokens = sum(one.predicted_tokens for one in found)
    ms = sum(one.predicted_ms for one in found)
    assert sum(one.realised_tokens for one in found) == pytest.approx(tokens, rel=0.03)
    assert sum(one.realised_ms for one in found) == pytest.approx(ms, rel=0.03)


def test_a_prediction_is_of_this_very_step_and_not_a_mean() -> None:
    """Every other step has an offer."""
    world = simulate(rates=lambda step: (0.9, 0.9), match=lambda step: float(step % 2)).run(400)
    always(world).controller.take_step_records()
    found = list[StepRecord]()
    for _ in range(40):
        world.one()
        found += world.controller.take_step_records()
    with_drafts = [one for one in found if one.drafts]
    without = [one for one in found if not one.drafts]
    assert len(with_drafts) >= 18
    assert all(one.predicted_tokens > 2.0 for one in with_drafts)
    assert [one.predicted_tokens for one in without] == [1.0] * len(without)


def test_steps_of_a_controller_that_rests_are_drawn_too() -> None:
    """Nothing pays, so it looks for drafts in few steps."""
    table = {rows: 4.0 * rows for rows in range(1, 65)}
    controller = AdaptiveController(["ngram"], CostModel(points(table, (2,))))
    controller._steps.draws = lambda: True
    views = [request(1), request(2)]
    rested = list[StepRecord]()
    for step in range(1, 500):
        looks = controller.attentive
        plan = controller.plan(batch(*views, step=step), [offer(1), offer(2)] if looks else [])
        results = [
            RequestOutcome(one.request, one.drafter, one.length, 0, 1) for one in plan.allotments
        ]
        rows = 2 + sum(one.length for one in plan.allotments)
        beside = 2.5 if looks else 0.5
        controller.observe(
            StepOutcome(step, 2, rows, 0, 256, 4.0 * rows, 0.0, beside, tuple(results))
        )
        (record,) = controller.take_step_records()
        if not looks:
            rested.append(record)
    assert len(rested) > 300
    last = rested[-1]
    assert (last.predicted_tokens, last.realised_tokens, last.drafts) == (2, 2, {})
    assert last.predicted_ms == pytest.approx(last.realised_ms, rel=0.05)
    assert last.price > 0.0


def test_of_a_step_with_prefill_the_share_of_the_decoding_requests_counts() -> None:
    records = StepRecords(lambda: 7.0)
    view = dataclasses.replace(batch(request(1), step=3), prefill_rows=15)
    records.planned(view, sample(), 0.1, False, False, "d")
    records.observe(outcome(3, prefill_rows=15))
    (record,) = records.take()
    assert record.prefill_rows == 15
    assert record.realised_ms == pytest.approx(10.0 * 5 / 20 + 0.5 + 1.5)


@pytest.mark.parametrize(
    ("blocked", "held", "code"),
    [(0, False, None), (1, False, "REQUEST_GUARD"), (1, True, "HARM_GUARD")],
)
def test_a_record_names_the_guard_that_held_drafts_back(
    blocked: int, held: bool, code: str | None
) -> None:
    records = StepRecords(lambda: 7.0)
    records.planned(batch(request(1), step=3), sample(blocked=blocked), 0.1, True, held, "d")
    records.observe(outcome(3))
    (record,) = records.take()
    assert (record.guard, record.probe, record.decision) == (code, True, "d")


# --- bounds ---------------------------------------------------------------------------------------


def test_what_nobody_takes_and_what_never_ends_is_bounded() -> None:
    records = StepRecords(lambda: 7.0)
    for step in range(3 * KEPT):
        records.planned(batch(request(1), step=step), sample(), 0.1, False, False, "")
        records.observe(outcome(step))
    assert [one.step for one in records.take()] == list(range(2 * KEPT, 3 * KEPT))
    for step in range(100):
        records.planned(batch(request(1), step=step), sample(), 0.1, False, False, "")
    assert len(records._in_flight) == IN_FLIGHT
    records.observe(outcome(5))
    assert records.take() == []


# --- other controllers ----------------------------------------------------------------------------


def serve(
    controller: Switchable | Split, steps: int, views: Sequence[RequestView], offers: list[Offer]
) -> None:
    for step in range(steps):
        plan = controller.plan(batch(*views, step=step), offers)
        results = tuple(
            [RequestOutcome(one.request, one.drafter, one.length, 0, 1) for one in plan.allotments]
        )
        rows = len(views) + sum(one.length for one in plan.allotments)
        controller.observe(StepOutcome(step, len(views), rows, 0, 256, 12.0, 0.1, 0.5, results))


def switchable(choice: PolicyChoice) -> Switchable:
    return Switchable(PolicyInputs(("ngram",), CostModel(points(BF16, (1, 2)))), choice)


def test_records_outlive_a_switch_and_the_next_policy_makes_none() -> None:
    controller = switchable(PolicyChoice())
    serve(controller, 2000, [request(1)], [offer(1)])
    controller.switch(PolicyChoice("off"))
    serve(controller, 1000, [request(1)], [offer(1)])
    found = controller.take_step_records()
    assert 2 <= len(found) <= 20
    assert controller.take_step_records() == []


def test_steps_that_two_arms_share_are_left_out_and_those_of_one_are_not() -> None:
    controller = switchable(PolicyChoice(ab_policy="adaptive"))
    split = controller.controller
    assert isinstance(split, Split)
    one = next(number for number in range(99) if split.arm(number) is split.arms[0])
    other = next(number for number in range(99) if split.arm(number) is split.arms[1])
    serve(controller, 2000, [request(one), request(other)], [offer(one), offer(other)])
    assert controller.take_step_records() == []
    serve(controller, 2000, [request(one)], [offer(one)])
    assert controller.take_step_records()


def test_with_drafts_off_steps_are_predicted_as_plain() -> None:
    world = simulate(size=2)
    world.controller.configure(Setting("off"))
    always(world.run(200))
    world.controller.take_step_records()
    world.run(20)
    found = world.controller.take_step_records()
    assert {(one.predicted_tokens, one.realised_tokens) for one in found} == {(2, 2)}
