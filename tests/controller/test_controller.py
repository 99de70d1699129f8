"""The controller as a whole, in a simulated engine whose true rates and costs are known."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

import pytest

from controller import reasons
from controller.contract import (
    CostPoint,
    Decision,
    Features,
    RequestOutcome,
    Setting,
    ShadowScore,
    StepOutcome,
)
from controller.controller import AdaptiveController
from controller.cost import CostModel
from tests.controller.simulated_engine import (
    BF16,
    FP32,
    Clock,
    World,
    batch,
    interpolate,
    offer,
    points,
    request,
    simulate,
)

DOCS = Path(__file__).parents[2] / "docs" / "controller.md"


def plain_ms(world: World, steps: int) -> float:
    """ms per token without any drafts."""
    return sum(world.cost(world.size, s) + 0.6 for s in range(1, steps + 1)) / steps / world.size


def speed_up(world: World) -> float:
    return world.tokens * plain_ms(world, world.step) / world.ms


def taken(world: World) -> list[Decision]:
    return world.controller.take_decisions()


# --- what it is for -----------------------------------------------------------------------------


def test_a_good_drafter_is_used_to_its_depth() -> None:
    world = simulate(rates=lambda step: (0.7, 0.9)).run(1000)
    assert world.mean_length > 8
    assert speed_up(world) > 3.0


@pytest.mark.parametrize("size", [1, 8])
def test_a_useless_drafter_costs_less_than_one_percent(size: int) -> None:
    table = {n: interpolate(BF16, n) for n in (1, 2, 4, 8, 16, 32, 64)}
    world = simulate(table, size, rates=lambda step: (0.005, 0.1)).run(2500)
    assert speed_up(world) > 0.99


def test_rows_that_cost_too_much_are_not_drafted() -> None:
    """The named test of the cost table: with a table that hides the price, D would be high."""
    steep = {rows: 10.0 + 8.0 * (rows - 1) for rows in (1, 2, 4, 8, 16, 32)}
    dear = simulate(steep, cost=lambda rows, step: interpolate(steep, rows)).run(300)
    cheap = simulate(rates=dear.rates).run(300)
    assert dear.mean_length < 0.2
    assert cheap.mean_length > 4.0


def test_rejections_stop_the_drafts() -> None:
    """The named test of acceptance: if rejections were not counted, D would stay high."""
    world = simulate(rates=lambda step: (0.0,)).run(500)
    late = [a.length for p in world.plans[300:] for a in p.allotments]
    assert sum(late) / len(late) < 0.2


def test_eight_rows_in_fp32_are_preferred_to_three() -> None:
    world = simulate(FP32, rates=lambda step: (0.6, 0.8), cost=lambda r, _: interpolate(FP32, r))
    world.run(600)
    lengths = [a.length for p in world.plans[100:] for a in p.allotments]
    assert sum(n in (1, 2, 3) for n in lengths) < 0.05 * len(lengths)
    assert speed_up(world) > 1.5


def test_a_larger_batch_gets_shorter_drafts() -> None:
    table = {rows: interpolate(BF16, rows) for rows in (1, 2, 4, 8, 16, 32, 64, 128, 256)}
    small = simulate(table, 1, rates=lambda step: (0.4, 0.7)).run(400)
    large = simulate(table, 32, rates=lambda step: (0.4, 0.7)).run(400)
    assert large.mean_length < 0.6 * small.mean_length


def test_content_that_changes_is_followed() -> None:
    world = simulate(rates=lambda step: (0.02,) if step <= 1000 else (0.7, 0.9)).run(1300)
    world.plans.clear()
    world.run(200)
    assert world.mean_length > 6
    world.rates = lambda step: (0.003,)
    world.run(300)
    world.plans.clear()
    world.run(200)
    assert world.mean_length < 1.5


def test_a_price_that_changes_is_followed() -> None:
    def cost(rows: int, step: int) -> float:
        return interpolate(BF16, rows) + (0.0 if step <= 600 else 3.0 * (rows - 1))

    world = simulate(rates=lambda step: (0.4, 0.7), cost=cost).run(600)
    before = world.mean_length
    world.run(400)
    world.plans.clear()
    world.run(300)
    assert world.mean_length < 0.6 * before


def test_requests_of_one_batch_get_their_own_lengths() -> None:
    controller = AdaptiveController(["ngram"], CostModel(points(BF16, (2,))))
    for step in range(200):
        view = batch(request(1), request(2), step=step)
        plan = controller.plan(view, [offer(1), offer(2)])
        results = tuple(
            RequestOutcome(
                a.request,
                a.drafter,
                a.length,
                a.length if a.request == 1 else 0,
                1 + (a.length if a.request == 1 else 0),
                features=Features(3, 0, "prompt"),
            )
            for a in plan.allotments
        )
        rows = 2 + sum(a.length for a in plan.allotments)
        ms = interpolate(BF16, rows)
        controller.observe(StepOutcome(step, 2, rows, 0, 256, ms, 0.0, 0.0, results))
    last = controller.plan(batch(request(1), request(2), step=999), [offer(1), offer(2)])
    good, bad = last.allotments
    assert good.length > bad.length


# --- learning -----------------------------------------------------------------------------------


def learned(controller: AdaptiveController) -> float:
    """Drafts counted so far (undiscounted enough for a handful)."""
    return controller.acceptance.evidence("ngram")


def outcome(result: RequestOutcome, step: int = 1) -> StepOutcome:
    return StepOutcome(step, 1, 1 + result.drafted, 0, 128, 11.0, 0.0, 0.0, (result,))


def test_a_stop_inside_the_accepted_run_is_no_rejection() -> None:
    first = Features(3)
    cut, full = (AdaptiveController(["ngram"], CostModel()) for _ in range(2))
    for controller, flag in ((cut, True), (full, False)):
        for step in range(30):
            result = RequestOutcome(step, "ngram", 4, 0, 1, flag, first)
            controller.observe(outcome(result, step))
    before = AdaptiveController(["ngram"], CostModel()).acceptance.rates(99, "ngram", first, 1)
    assert cut.acceptance.rates(99, "ngram", first, 1) == before
    assert full.acceptance.rates(99, "ngram", first, 1)[0] < 0.5 * before[0]


def test_a_live_draft_and_its_shadow_are_counted_once() -> None:
    controller = AdaptiveController(["ngram"], CostModel())
    score = ShadowScore("ngram", 4, 2, Features(3))
    controller.observe(outcome(RequestOutcome(1, "ngram", 4, 2, 3, shadows=(score,))))
    assert learned(controller) == pytest.approx(1.0)


def test_a_request_that_did_not_draft_teaches_by_its_shadow() -> None:
    controller = AdaptiveController(["ngram"], CostModel())
    score = ShadowScore("ngram", 4, 2, Features(3))
    controller.observe(outcome(RequestOutcome(1, "none", 0, 0, 1, shadows=(score,))))
    assert learned(controller) == pytest.approx(1.0)


def test_a_shadow_cut_off_by_going_live_is_kept() -> None:
    controller = AdaptiveController(["ngram"], CostModel())
    score = ShadowScore("ngram", 4, 2, Features(3), censored=True)
    controller.observe(outcome(RequestOutcome(1, "ngram", 4, 2, 3, shadows=(score,))))
    assert learned(controller) == pytest.approx(2.0, abs=0.01)


def test_shadows_of_other_drafters_count_beside_a_live_draft() -> None:
    controller = AdaptiveController(["ngram", "suffix"], CostModel())
    score = ShadowScore("suffix", 4, 2, Features(3))
    controller.observe(outcome(RequestOutcome(1, "ngram", 4, 2, 3, shadows=(score,))))
    assert controller.acceptance.evidence("suffix") == 1.0


def test_forgetting_a_request_leaves_nothing_of_it() -> None:
    controller = AdaptiveController(["ngram"], CostModel())
    usual = controller.acceptance.rates(2, "ngram", Features(3), 4)
    controller.observe(outcome(RequestOutcome(1, "ngram", 8, 0, 1)))
    controller.forget(1)
    controller.forget(1)
    assert controller.acceptance.rates(1, "ngram", Features(3), 4) == (
        controller.acceptance.rates(2, "ngram", Features(3), 4)
    )
    assert usual[0] > 0


def test_an_outcome_that_was_never_planned_is_survived() -> None:
    controller = AdaptiveController(["ngram"], CostModel())
    controller.observe(outcome(RequestOutcome(9, "ngram", 3, 1, 2), step=77))
    assert controller.take_decisions() == []


# --- harm ---------------------------------------------------------------------------------------


def test_a_drafter_whose_shadow_flatters_it_is_stopped() -> None:
    """Shadows promise everything, live drafts give nothing."""
    world = simulate(rates=lambda step: (0.9,), cost=lambda rows, step: 10.0 + 1.0 * rows)
    true = world.accepted
    world.accepted = lambda length: 0 if world.live else true(length)
    world.run(3000)
    assert speed_up(world) > 0.95


def test_the_guard_forces_plain_decoding_and_says_so() -> None:
    world = simulate().run(50)
    controller = world.controller
    taken(world)
    assert any(controller._harm.record(10.0, 13.0, True) for _ in range(1000))
    controller._journal.guard_fired()
    world.plans.clear()
    world.run(100)
    assert world.mean_length == 0.0
    fired = [d for d in taken(world) if d.guard]
    assert [(d.reason, d.drafter, d.draft_length) for d in fired] == [("HARM_GUARD", "none", 0.0)]
    world.run(300)
    world.plans.clear()
    world.run(300)
    assert world.mean_length > 1.0
    assert "REARMED" in [d.reason for d in taken(world)]


# --- modes --------------------------------------------------------------------------------------


def test_modes_change_live_at_the_next_plan() -> None:
    world = simulate().run(100)
    for setting, lengths in (
        (Setting("pinned", "ngram", 4), {4}),
        (Setting("off"), {0}),
        (Setting("pinned", "ngram", 1), {1}),
    ):
        world.controller.configure(setting)
        world.plans.clear()
        world.run(20)
        assert {a.length for p in world.plans for a in p.allotments} == lengths
        assert world.plans[0].decision is not None
        assert world.plans[0].decision.reason == "OPERATOR"
    world.controller.configure(Setting())
    world.plans.clear()
    world.run(50)
    assert world.mean_length > 2


def test_setting_the_same_again_is_no_decision() -> None:
    world = simulate().run(10)
    taken(world)
    world.controller.configure(Setting())
    world.controller.set_enabled("ngram", True)
    assert world.one().decision is None


def test_an_empty_batch_gives_an_empty_plan() -> None:
    controller = AdaptiveController(["ngram"], CostModel())
    assert controller.plan(batch(), []).allotments == ()


# --- decisions ----------------------------------------------------------------------------------


def test_the_first_plan_is_a_decision() -> None:
    plan = simulate().one()
    assert plan.decision is not None
    assert plan.decision.reason == "START"


@pytest.mark.parametrize(
    ("first", "match"), [(0.3, 1.0), (0.02, 1.0), (0.6, 0.3), (0.1, 0.5), (0.5, 0.06)]
)
@pytest.mark.parametrize("seed", [1, 2])
def test_a_steady_load_makes_few_decisions(first: float, match: float, seed: int) -> None:
    world = simulate(seed=seed, rates=lambda s: (first, 0.75), match=lambda s: match, noise=0.08)
    world.run(600)
    taken(world)
    world.run(4000)
    opened = {d.id for d in taken(world)}
    assert len(opened) <= 4 * 5


def test_an_alternating_load_cannot_flood_the_ledger() -> None:
    world = simulate(rates=lambda step: (0.8, 0.9) if step // 50 % 2 else (0.02,))
    start = world.clock.now
    world.run(4000)
    seconds = world.clock.now - start
    assert len({d.id for d in taken(world)}) <= seconds + 1


def test_a_shift_of_content_is_one_explained_decision() -> None:
    world = simulate(match=lambda step: 0.0 if step <= 400 else 0.9).run(400)
    taken(world)
    world.run(400)
    found = [d for d in taken(world) if d.step > 400]
    assert len(found) == 1
    decision = found[0]
    assert (decision.reason, decision.drafter) == ("MATCH", "ngram")
    assert decision.previous_drafter == "none"
    assert "(before: 0 %)" in decision.sentence
    assert decision.draft_length > 1
    assert decision.candidates[0].goodput == decision.predicted_goodput
    assert decision.runner_up in decision.candidates[1:]
    assert all(c.low <= c.goodput <= c.high for c in decision.candidates)


def test_a_dearer_row_is_given_as_the_reason() -> None:
    def cost(rows: int, step: int) -> float:
        return interpolate(BF16, rows) + (0.0 if step <= 600 else 4.0 * (rows - 1))

    world = simulate(rates=lambda step: (0.45, 0.75), cost=cost).run(600)
    taken(world)
    world.run(900)
    assert "PRICE_UP" in [d.reason for d in taken(world) if d.step > 600]


def test_realised_outcomes_add_up_to_what_was_measured() -> None:
    world = simulate(match=lambda step: 0.9 if step // 500 % 2 else 0.0).run(2200)
    world.controller.configure(Setting("pinned", "ngram", 2))
    world.run(100)
    decisions = {d.id: d for d in taken(world)}.values()
    assert len(decisions) >= 4
    assert sum(d.realised.steps for d in decisions) == world.step
    assert sum(d.realised.tokens for d in decisions) == world.tokens
    assert sum(d.realised.ms for d in decisions) == pytest.approx(world.ms)
    assert [d.closed for d in decisions] == [True] * (len(decisions) - 1) + [False]


def test_the_prediction_of_a_change_is_close_to_what_is_realised() -> None:
    world = simulate(rates=lambda step: (0.6, 0.8), match=lambda s: 0.0 if s < 400 else 0.9)
    world.run(2000)
    (last,) = [d for d in taken(world) if d.reason == "MATCH"]
    assert last.realised.goodput == pytest.approx(last.predicted_goodput, rel=0.1)


def test_a_corrupted_cost_table_shows_in_the_ledger_and_heals() -> None:
    clock = Clock()
    flat = CostModel([CostPoint(1, rows, 128, 5.0) for rows in BF16])
    world = World(AdaptiveController(["ngram"], flat, clock=clock), clock)
    world.run(30)
    first = taken(world)[0]
    assert first.realised.goodput < 0.7 * first.predicted_goodput
    world.run(600)
    assert world.controller.cost.verify_ms(1, 9, 128) == pytest.approx(
        interpolate(BF16, 9), rel=0.1
    )


def test_a_prefill_step_counts_only_the_decoding_share_of_time() -> None:
    controller = AdaptiveController(["ngram"], CostModel())
    controller.plan(batch(request(1)), [])
    result = RequestOutcome(1, "none", 0, 0, 1)
    controller.observe(StepOutcome(1, 1, 1, 99, 128, 100.0, 0.0, 1.0, (result,)))
    (decision,) = controller.take_decisions()
    assert decision.realised.ms == pytest.approx(2.0)


def test_a_decision_comes_again_with_its_growing_outcome() -> None:
    world = simulate().run(10)
    first = taken(world)[-1]
    world.run(10)
    (again,) = taken(world)
    assert again.id == first.id
    assert (first.realised.steps, again.realised.steps) == (10, 20)
    assert taken(world) == []


def test_ids_sort_by_time_even_when_the_clock_steps_back() -> None:
    world = simulate()
    ids = []
    for i in range(5):
        world.controller.configure(Setting("pinned", "ngram", i))
        world.clock.now -= 100.0
        decision = world.one().decision
        assert decision is not None
        ids.append(decision.id)
    assert ids == sorted(set(ids))


def test_every_reason_code_is_documented() -> None:
    text = DOCS.read_text()
    for code, meaning in reasons.REASONS.items():
        assert f"`{code}`" in text
        assert meaning in text


# --- views --------------------------------------------------------------------------------------


def test_report_and_decisions_are_plain_json() -> None:
    world = simulate().run(200)
    text = json.dumps(world.controller.report())
    assert "ngram" in text
    for key in ("setting", "acceptance", "cost", "probing", "guard"):
        assert key in world.controller.report()
    for decision in taken(world):
        json.dumps(dataclasses.asdict(decision))


def test_what_if_finds_shorter_drafts_for_larger_batches() -> None:
    table = {rows: interpolate(BF16, rows) for rows in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)}
    clock = Clock()
    model = CostModel(points(table, (1, 8, 32)))
    world = World(AdaptiveController(["ngram"], model, clock=clock), clock)
    world.rates = lambda step: (0.5, 0.7)
    world.run(500)
    alone, crowd = world.controller.what_if(1, 128), world.controller.what_if(32, 128)
    assert alone.best.draft_length > crowd.best.draft_length
    assert alone.best.goodput == max(c.goodput for c in alone.candidates)
    assert {c.drafter for c in alone.candidates} == {"none", "ngram"}
    with pytest.raises(ValueError, match="batch_size"):
        world.controller.what_if(0, 1)


# --- bounds -------------------------------------------------------------------------------------


def size_of(value: object, seen: set[int] | None = None) -> int:
    """Bytes of everything reachable from the value."""
    seen = set() if seen is None else seen
    if id(value) in seen:
        return 0
    seen.add(id(value))
    total = sys.getsizeof(value)
    if isinstance(value, dict):
        return total + sum(size_of(v, seen) for pair in value.items() for v in pair)
    if isinstance(value, list | tuple | set | frozenset):
        return total + sum(size_of(v, seen) for v in value)
    total += size_of(getattr(value, "__dict__", None), seen)
    for name in getattr(type(value), "__slots__", ()):
        total += size_of(getattr(value, name, None), seen)
    return total


def test_memory_is_flat_over_many_requests_and_steps() -> None:
    controller = AdaptiveController(["ngram"], CostModel(points(BF16, (2,))), clock=Clock())

    def serve(first: int, last: int) -> None:
        for i in range(first, last):
            view = batch(request(i, context=100 + i % 900), request(i + 1), step=i)
            plan = controller.plan(view, [offer(i, match=1 + i % 30), offer(i + 1)])
            results = tuple(
                RequestOutcome(
                    a.request,
                    a.drafter,
                    a.length,
                    min(a.length, i % 5),
                    1,
                    features=Features(1 + i % 30, i % 6, "prompt"),
                )
                for a in plan.allotments
            )
            rows = 2 + sum(a.length for a in plan.allotments)
            controller.observe(StepOutcome(i, 2, rows, 0, 300, 12.0, 0.1, 0.5, results))
            controller.forget(i)

    serve(0, 2500)
    controller.take_decisions()
    before = size_of(controller)
    serve(2500, 7500)
    controller.take_decisions()
    assert size_of(controller) < 1.1 * before + 20_000


def test_the_order_of_requests_does_not_matter() -> None:
    def lengths(order: list[int]) -> dict[int, int]:
        controller = AdaptiveController(["ngram"], CostModel(points(BF16, (4,))))
        plan = controller.plan(
            batch(*(request(i) for i in order)), [offer(i, match=2 + 3 * i) for i in order]
        )
        return {a.request: a.length for a in plan.allotments}

    assert lengths([0, 1, 2, 3]) == lengths([3, 1, 0, 2])
