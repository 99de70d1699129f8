"""The situations of other engines' own tests of their controllers, with their numbers, played to
the adaptive controller. What their rules do in them is in tests/controller/policies: SGLang's in
test_ema_tiers, vLLM's in test_tables and test_margin_verify, TensorRT-LLM's in test_tables."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from controller.contract import StepOutcome
from controller.cost import CostModel
from controller.probing import LONGEST
from tests.controller.simulated_engine import World, interpolate, points, simulate

ROWS = (1, 2, 4, 8, 16, 32)
NOTHING, GOOD, EVERYTHING = (0.0,), (0.9,), (1.0,)


def played(price: Callable[[int], float], rates: tuple[float, ...], steps: int = 250) -> World:
    """One request, steps of price(rows) ms."""
    table = {rows: price(rows) for rows in ROWS}
    world = simulate(table, cost=lambda rows, step: interpolate(table, rows))
    world.rates = lambda step: rates
    return world.run(steps)


def mean_length(world: World, steps: int) -> float:
    """Of the next so many steps."""
    world.plans.clear()
    return world.run(steps).mean_length


# --- Ollama: its depth controller -----------------------------------------------------------------


def test_ollama_a_flat_cost_is_drafted_deep_and_a_steep_one_shallow() -> None:
    flat, steep, steeper = (
        mean_length(played(lambda rows, each=each: 10.0 + each * (rows - 1), GOOD), 120)
        for each in (0.0, 1.0, 4.0)
    )
    assert flat > 10.0
    assert 1.0 < steeper < steep < 0.75 * flat


def test_ollama_where_nothing_pays_nothing_is_drafted() -> None:
    dear = played(lambda rows: 10.0 * rows, GOOD)
    assert mean_length(dear, 150) < 0.1
    wrong = played(lambda rows: 10.0 + rows, NOTHING)
    assert mean_length(wrong, 150) < 0.1


def test_ollama_acceptance_that_drifts_up_deepens_the_drafts() -> None:
    world = played(lambda rows: 10.0 + 0.5 * (rows - 1), (0.3,))
    before = mean_length(world, 120)
    world.rates = lambda step: GOOD
    world.run(400)
    assert mean_length(world, 120) > before + 4.0


def test_ollama_a_single_stall_does_not_end_the_rest() -> None:
    """A plain step of ten times the time makes drafts look cheap beside it."""
    world = played(lambda rows: 10.0 * rows, GOOD)
    cost, stalled = world.cost, world.step + 1
    world.cost = lambda rows, step: (10.0 if step == stalled else 1.0) * cost(rows, step)
    assert mean_length(world, 100) < 0.05


def test_ollama_one_outlier_moves_no_cost_beyond_a_quarter_and_a_lasting_change_does() -> None:
    model = CostModel(points({rows: 8.0 + 0.1 * rows for rows in ROWS}))
    for _ in range(10):
        model.observe(plain(8.1))
    model.observe(plain(1000.0))
    assert model.verify_ms(1, 1, 128) < 1.25 * 8.1
    for _ in range(100):
        model.observe(plain(32.0))
    assert model.verify_ms(1, 1, 128) == pytest.approx(32.0, rel=0.03)


def plain(ms: float) -> StepOutcome:
    """A step of one request, without drafts."""
    return StepOutcome(1, 1, 1, 0, 128, ms, 0.0, 0.0, ())


def test_ollama_few_of_the_resting_rounds_are_probes() -> None:
    """At 4, 8, ... 512 from the last change of mind on."""
    world = played(lambda rows: 10.0 + rows, NOTHING)
    world.plans.clear()
    world.run(2 * LONGEST)
    assert sum(plan.allotments[0].length > 0 for plan in world.plans) <= 8


# --- TensorRT-LLM: its gate on acceptance ---------------------------------------------------------


def test_tensorrt_poor_drafts_end_drafting_and_good_ones_bring_it_back() -> None:
    """Rates of 0.1, 0.2, 0.3 close its gate for good; ours is told by what it would have got."""
    world = played(lambda rows: 10.0 + 5.0 * (rows - 1), EVERYTHING, 100)
    for rate in (0.1, 0.2, 0.3):
        world.rates = lambda step, rate=rate: (rate,)
        world.run(100)
    assert mean_length(world, 100) < 0.5
    world.rates = lambda step: EVERYTHING
    world.run(100)
    assert mean_length(world, 100) > 4.0


# --- SGLang: its tiers ----------------------------------------------------------------------------


def test_sglang_a_repetitive_prompt_lengthens_the_drafts_and_a_random_one_shortens_them() -> None:
    world = played(lambda rows: 10.0 + 0.5 * (rows - 1), (0.6,))
    usual = mean_length(world, 120)
    world.rates = lambda step: EVERYTHING
    repetitive = mean_length(world.run(200), 120)
    world.rates = lambda step: (0.02,)
    random = mean_length(world.run(200), 120)
    assert random < 0.5 < usual + 2.0 < repetitive


# --- vLLM: its verification budget ----------------------------------------------------------------


def test_vllm_rows_that_are_cheap_up_to_one_and_dear_beyond_are_drafted_one_at_a_time() -> None:
    world = played(lambda rows: 10.0 + 0.1 * rows if rows <= 2 else 1000.0, GOOD)
    assert mean_length(world, 150) > 0.9
    assert {plan.allotments[0].length for plan in world.plans} <= {0, 1}
