"""What steps should take by arithmetic: without a calibration, and beyond one."""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.contract import CostPoint
from controller.cost import CostModel
from controller.cost_table import CostTable
from controller.prior import Prior
from controller.simulate.calibration import calibrate
from controller.simulate.machines import HARDWARE, MODELS
from controller.simulate.step_cost import StepCost, roofline
from tests.controller.test_shift import step

H100 = roofline(HARDWARE["H100"], MODELS["llama-8b"])
MIXTURE = roofline(HARDWARE["H200"], MODELS["qwen3-30b-a3b"])
LATENT = roofline(HARDWARE["H200"], MODELS["deepseek-v3"], 8)
BEYOND = ((32, 9, 256), (8, 4, 8192), (64, 1, 32768), (128, 1, 1024), (256, 2, 512))
"""(requests, rows of each, context) that no calibration measures."""


@pytest.mark.parametrize("cost", [H100, MIXTURE, LATENT])
@given(st.integers(1, 64), st.integers(1, 20), st.integers(0, 20_000))
def test_without_measurements_it_is_the_roofline_of_equal_requests(
    cost: StepCost, requests: int, each: int, context: int
) -> None:
    expected = cost.step_ms(requests, each, context)
    assert Prior(cost).ms(requests, requests * each, context) == pytest.approx(expected)


@pytest.mark.parametrize("cost", [MIXTURE, LATENT])
def test_rows_that_do_not_divide_are_spread_evenly(cost: StepCost) -> None:
    rows, context = np.array([4, 4, 3, 3]), np.full(4, 5000)
    assert Prior(cost).ms(4, 14, 5000) == pytest.approx(float(cost.verify_ms(rows, context)))


@pytest.mark.parametrize("cost", [H100, MIXTURE, LATENT])
@pytest.mark.parametrize("wrong", [{"peak": 0.5}, {"peak": 2.0}, {"bandwidth": 0.5}, {}])
def test_beyond_a_calibration_the_shape_is_the_priors_and_the_size_what_was_measured(
    cost: StepCost, wrong: dict[str, float]
) -> None:
    """Also where the machine is thought to be twice as quick as it is, or half."""
    names = {id(H100): ("H100", "llama-8b", 1), id(MIXTURE): ("H200", "qwen3-30b-a3b", 1)}
    hardware, model, devices = names.get(id(cost), ("H200", "deepseek-v3", 8))
    thought = HARDWARE[hardware]
    thought = replace(thought, **{name: getattr(thought, name) * f for name, f in wrong.items()})
    prior = roofline(thought, MODELS[model], devices)
    errors: dict[bool, list[float]] = {True: [], False: []}
    for seed in range(4):
        points = calibrate(cost, 64, 0.01, np.random.default_rng(seed))
        for known, table in ((True, CostTable(points, prior)), (False, CostTable(points))):
            for requests, each, context in BEYOND:
                true_ms = cost.step_ms(requests, each, context)
                ms = table.at(requests, requests * each, context)
                errors[known].append(abs(ms / true_ms - 1.0))
    assert fmean(errors[True]) < 0.1
    assert fmean(errors[True]) < 0.6 * fmean(errors[False])


@pytest.mark.parametrize("wrong", [1.0, 5.0])
def test_what_was_measured_stands_whatever_the_prior_says(wrong: float) -> None:
    prior = replace(H100, base_ms=wrong * H100.base_ms, row_ms=wrong**2 * H100.row_ms)
    points = calibrate(MIXTURE, 64, 0.05, np.random.default_rng(3))
    with_prior, without = CostTable(points, prior), CostTable(points)
    for point in points:
        asked = (point.requests, point.rows, float(point.context_len))
        assert with_prior.at(*asked) == pytest.approx(point.ms)
        assert with_prior.curve(point.requests, 0, 256) == pytest.approx(
            without.curve(point.requests, 0, 256)
        )
    assert with_prior.at(3, 9, 256) == pytest.approx(without.at(3, 9, 256))


@given(
    st.dictionaries(
        st.tuples(st.integers(1, 32), st.integers(0, 64), st.sampled_from((64, 128, 1024))),
        st.floats(0.5, 500.0),
        max_size=25,
    ),
    st.integers(1, 80),
    st.sampled_from([H100, MIXTURE, LATENT]),
)
def test_any_table_goes_on_without_falling_and_side_by_side_as_one_by_one(
    cells: dict[tuple[int, int, int], float], requests: int, prior: StepCost
) -> None:
    points = [CostPoint(n, n + more, c, ms) for (n, more, c), ms in cells.items()]
    table = CostTable(points, prior)
    curve = table.curve(requests, 300, 2048.0)
    assert curve.tolist() == pytest.approx(
        [table.at(requests, requests + m, 2048.0) for m in range(301)]
    )
    most = max((p.rows for p in points), default=0)
    assert np.diff(curve[max(0, most - requests) :]).min() > -1e-9
    assert curve.min() > 0.0
    assert table.at(requests, requests, 9000.0) >= table.at(requests, requests, 2048.0)


def test_steps_at_tile_edges_are_seen_beyond_the_calibration() -> None:
    cost = StepCost(base_ms=5.0, row_ms=0.05, kv_ms=0.0, tile=64)
    points = [CostPoint(1, rows, 0, cost.step_ms(1, rows, 0)) for rows in (1, 8, 32, 64)]
    table = CostTable(points, cost)
    assert table.at(1, 65, 0.0) == pytest.approx(table.at(1, 128, 0.0))
    assert table.at(1, 129, 0.0) > 1.2 * table.at(1, 128, 0.0)


def test_an_engine_without_a_calibration_starts_from_the_prior_and_follows_what_it_measures() -> (
    None
):
    cost = CostModel((), H100)
    assert cost.verify_ms(4, 8, 1024) == pytest.approx(H100.step_ms(4, 2, 256))
    for _ in range(40):
        cost.observe(step(1.0))
        cost.observe(step(1.0, 8))
    assert cost.verify_ms(4, 4, 1024) == pytest.approx(100.0, rel=0.1)
    assert cost.verify_ms(4, 8, 1024) == pytest.approx(110.0, rel=0.1)
