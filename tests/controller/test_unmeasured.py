"""Guidelines as bounds: they bind an engine that measured nothing, and let go as it measures."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from controller.contract import CostPoint, RequestOutcome, Setting, StepOutcome, Wish
from controller.controller import AdaptiveController
from controller.cost import CostModel
from controller.simulate.machines import HARDWARE, MODELS
from controller.simulate.step_cost import StepCost, roofline
from controller.unmeasured import longest
from tests.controller.simulated_engine import batch, offer, request

H200 = roofline(HARDWARE["H200"], MODELS["llama-8b"])
POINTS = [CostPoint(1, rows, 256, 5.0 + 0.01 * rows) for rows in (1, 2, 4, 8, 17)]


def measured(cost: CostModel, requests: int, rows: int, times: int = 10) -> None:
    results = tuple(RequestOutcome(i, "none", 0, 0, 1) for i in range(requests))
    for _ in range(times):
        ms = H200.step_ms(requests, rows // requests, 256)
        cost.observe(StepOutcome(1, requests, rows, 0, 256 * requests, ms, 0.0, 0.0, results))


def lengths(cost: CostModel, count: int, wish: Wish | None = None, **setting: Any) -> list[int]:
    """What is drafted where every draft is sure to be accepted."""
    controller = AdaptiveController(["suffix"], cost, Setting(**setting))
    asked = batch(*[request(i, wish=wish) for i in range(1, count + 1)])
    plan = controller.plan(asked, [offer(i, "suffix", 16, match=64) for i in range(1, count + 1)])
    return [one.length for one in plan.allotments]


@pytest.mark.parametrize(("requests", "most"), [(1, 31), (32, 5), (64, 2), (128, 1), (512, 1)])
def test_the_knee_and_the_first_tile_bound_what_was_never_measured(
    requests: int, most: int
) -> None:
    """An H200 and Llama-3.1-8B, whose 4 query heads per KV head leave 31 in the first tile."""
    assert longest(CostModel((), H200), requests) == most


def test_a_tile_that_plain_decoding_fills_leaves_one_token_to_measure_with() -> None:
    assert longest(CostModel((), replace(H200, group=128)), 1) == 1


def test_the_plan_keeps_to_the_bound_until_such_steps_were_measured() -> None:
    cost = CostModel((), replace(H200, row_ms=1e-4, group=64))  # rows look free, the tile is full
    assert max(lengths(cost, 4)) == 1
    for rows, most in ((8, 3), (16, 7), (32, 15)):
        measured(cost, 4, rows)
        assert longest(cost, 4) == most
    assert max(lengths(cost, 4)) > 7


def test_few_steps_are_no_measurement() -> None:
    cost = CostModel((), replace(H200, group=64))
    measured(cost, 4, 32, times=3)
    assert longest(cost, 4) == 1


@pytest.mark.parametrize(("points", "prior"), [(POINTS, H200), (POINTS, None), ((), None)])
def test_a_calibrated_engine_is_not_bound_nor_one_whose_machine_nobody_knows(
    points: list[CostPoint], prior: StepCost | None
) -> None:
    assert longest(CostModel(points, prior), 128) is None


def test_lengths_that_were_asked_for_are_not_bound() -> None:
    cost = CostModel((), replace(H200, group=64))
    assert lengths(cost, 2, Wish(draft_length=9)) == [9, 9]
    assert lengths(cost, 2, mode="pinned", drafter="suffix", draft_length=9) == [9, 9]
    assert max(lengths(cost, 2, mode="pinned", drafter="suffix")) == 1


def test_the_report_says_that_a_bound_is_in_force() -> None:
    def codes(cost: CostModel) -> dict[str, Any]:
        report: Any = AdaptiveController(["suffix"], cost).report()
        return {one["code"]: one["numbers"] for one in report["guidelines"]["guidelines"]}

    assert codes(CostModel((), H200))["unmeasured"]["draft_length"] == 31
    assert "unmeasured" not in codes(CostModel(POINTS, H200))
