"""Cost: true at the calibrated points, slow and clamped in what it learns later."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.contract import CostPoint, Proposal, RequestOutcome, StepOutcome
from controller.cost import CostModel
from controller.draft_cost import DraftCost
from tests.controller.simulated_engine import BF16, FP32, points


def step(
    ms: float,
    *,
    rows: int = 1,
    requests: int = 1,
    prefill: int = 0,
    drafted: int = 0,
    draft_ms: float = 0.0,
    overhead: float = 0.0,
    proposals: tuple[Proposal, ...] = (),
) -> StepOutcome:
    result = RequestOutcome(1, "ngram" if drafted else "none", drafted, 0, 1)
    return StepOutcome(
        1, requests, rows, prefill, 128 * requests, ms, draft_ms, overhead, (result,), proposals
    )


@pytest.mark.parametrize("table", [BF16, FP32])
def test_calibrated_points_are_returned_exactly(table: dict[int, float]) -> None:
    model = CostModel(points(table))
    for rows, ms in table.items():
        assert model.verify_ms(1, rows, 128) == pytest.approx(ms)


def test_a_staircase_that_falls_is_kept_and_not_flattened() -> None:
    model = CostModel(points(FP32))
    assert model.verify_ms(1, 8, 128) < model.verify_ms(1, 3, 128)


@given(
    st.dictionaries(
        st.tuples(st.integers(1, 32), st.integers(0, 64), st.sampled_from((64, 128, 1024))),
        st.floats(0.5, 500.0),
        min_size=1,
        max_size=25,
    )
)
def test_any_table_is_exact_at_its_points_and_positive_everywhere(
    cells: dict[tuple[int, int, int], float],
) -> None:
    table = [CostPoint(n, n + more, c, ms) for (n, more, c), ms in cells.items()]
    model = CostModel(table)
    for p in table:
        got = model.verify_ms(p.requests, p.rows, p.requests * p.context_len)
        assert got == pytest.approx(p.ms)
    for n in (1, 2, 5, 17, 40):
        assert min(model.verify_curve(n, 80, n * 300)) > 0.0


@given(st.integers(1, 40), st.integers(0, 30))
def test_the_curve_of_a_plan_is_the_point_formula(n: int, context: int) -> None:
    table = [*points(BF16, (1, 4, 16)), CostPoint(4, 8, 1024, 15.0), CostPoint(1, 1, 1024, 12.0)]
    model = CostModel(table)
    curve = model.verify_curve(n, 60, 64 * context * n)
    expected = [model.verify_ms(n, n + m, 64 * context * n) for m in range(61)]
    assert curve == pytest.approx(expected)


def test_between_points_rows_requests_and_context_are_interpolated() -> None:
    model = CostModel(
        [
            CostPoint(1, 1, 0, 10.0),
            CostPoint(1, 5, 0, 14.0),
            CostPoint(1, 1, 1000, 20.0),
            CostPoint(1, 5, 1000, 24.0),
            CostPoint(3, 5, 0, 18.0),
        ]
    )
    assert model.verify_ms(1, 3, 0) == pytest.approx(12.0)
    assert model.verify_ms(1, 1, 500) == pytest.approx(15.0)
    assert model.verify_ms(2, 5, 0) == pytest.approx(16.0)


def test_beyond_the_table_time_never_falls() -> None:
    model = CostModel(points(FP32))
    beyond = [model.verify_ms(1, rows, 128) for rows in range(32, 200, 8)]
    assert beyond == sorted(beyond)
    assert model.verify_ms(1, 64, 128) > 89.0


def test_an_empty_table_gives_a_careful_line() -> None:
    model = CostModel()
    assert model.verify_ms(1, 2, 0) == pytest.approx(1.2 * model.verify_ms(1, 1, 0))


def test_a_slower_machine_is_followed_at_all_rows() -> None:
    model = CostModel(points(BF16))
    for _ in range(200):
        for rows in (1, 8):
            model.observe(step(1.5 * BF16[rows], rows=rows))
    assert model.verify_ms(1, 8, 128) == pytest.approx(1.5 * BF16[8], rel=0.04)
    assert model.verify_ms(1, 32, 128) > 1.15 * BF16[32]


def test_one_stalled_step_hardly_moves_the_table() -> None:
    model = CostModel(points(BF16))
    for _ in range(30):
        model.observe(step(BF16[1]))
    model.observe(step(1000.0))
    assert model.verify_ms(1, 1, 128) < 1.03 * BF16[1]


def test_rows_not_seen_for_long_are_set_right_by_a_few_steps() -> None:
    """Only the rows became dearer; the plain step must not stay inflated by the shared factor."""
    model = CostModel(points(BF16))
    for _ in range(300):
        model.observe(step(2.0 * BF16[8], rows=8))
    assert model.verify_ms(1, 1, 128) > 1.2 * BF16[1]
    for _ in range(8):
        model.observe(step(BF16[1]))
    assert model.verify_ms(1, 1, 128) == pytest.approx(BF16[1], rel=0.1)


def test_noise_inside_the_dead_band_changes_nothing() -> None:
    model = CostModel(points(BF16))
    for i in range(1000):
        model.observe(step(BF16[1] * (1.015 if i % 2 else 0.985)))
    assert model.verify_ms(1, 1, 128) == pytest.approx(BF16[1])
    assert not model.drifting


@given(st.floats(0.01, 10_000.0))
def test_the_correction_is_bounded_and_monotone_in_the_residual(ms: float) -> None:
    lower, higher = CostModel(points(BF16)), CostModel(points(BF16))
    for _ in range(300):
        lower.observe(step(ms))
        higher.observe(step(2.0 * ms))
    low, high = lower.verify_ms(1, 1, 128), higher.verify_ms(1, 1, 128)
    assert BF16[1] / 32.1 <= low <= high <= BF16[1] * 32.1


def test_a_machine_that_slows_down_raises_the_drift_alarm_until_it_is_learned() -> None:
    model = CostModel(points(BF16))
    for _ in range(300):
        model.observe(step(BF16[1]))
    assert not model.drifting
    alarmed = False
    for _ in range(600):
        model.observe(step(1.8 * BF16[1]))
        alarmed = alarmed or model.drifting
    assert alarmed
    assert not model.drifting
    assert model.verify_ms(1, 1, 128) == pytest.approx(1.8 * BF16[1], rel=0.03)


def test_a_wrong_table_is_repaired_within_a_few_steps() -> None:
    model = CostModel(points({rows: ms / 2 for rows, ms in BF16.items()}))
    for _ in range(20):
        model.observe(step(BF16[1]))
    assert model.verify_ms(1, 1, 128) == pytest.approx(BF16[1], rel=0.1)


def test_steps_with_prefill_teach_nothing() -> None:
    model = CostModel(points(BF16))
    model.observe(step(100.0, prefill=64, overhead=50.0))
    assert model.verify_ms(1, 1, 128) == pytest.approx(BF16[1])
    assert model.overhead_ms(1, False) == 0.0


def test_overhead_is_kept_by_kind_of_step_and_holds_the_offers_but_not_the_proposals() -> None:
    model = CostModel(points(BF16))
    proposal = Proposal("ngram", 1, 3, 0.4)
    drafting = step(BF16[4], rows=4, drafted=3, draft_ms=0.5, overhead=1.0, proposals=(proposal,))
    model.observe(drafting)
    model.observe(step(BF16[1], draft_ms=0.1, overhead=0.5))
    assert model.overhead_ms(1, True) == pytest.approx(1.1)
    assert model.overhead_ms(1, False) == pytest.approx(0.6)
    assert model.overhead_ms(30, False) > 0.0


def test_a_drafter_that_never_drafted_is_thought_free() -> None:
    assert CostModel().draft_price("ngram").ms(8, 4) == 0.0


def test_the_time_of_one_draft_is_not_taken_for_every_requests() -> None:
    """A drafter drafts for all requests in one call: eight cost nearly what one does."""
    cost = DraftCost()
    cost.learn(1, 4, 0.4)
    assert cost.price.ms(1, 4) == pytest.approx(0.4, rel=0.05)
    assert cost.price.ms(8, 4) < 0.6


@pytest.mark.parametrize("true", [(0.4, 0.0, 0.0), (0.02, 0.01, 0.0), (0.3, 0.02, 0.7)])
def test_the_parts_of_a_drafters_price_are_told_apart(true: tuple[float, float, float]) -> None:
    rng, cost = random.Random(4), DraftCost()
    for _ in range(300):
        requests, depth = rng.randint(1, 16), rng.randint(1, 8)
        ms = true[0] + true[1] * requests + true[2] * depth
        cost.learn(requests, depth, ms * (1.0 + rng.gauss(0.0, 0.05)))
    for requests, depth in ((1, 1), (16, 1), (1, 8), (16, 8)):
        expected = true[0] + true[1] * requests + true[2] * depth
        assert cost.price.ms(requests, depth) == pytest.approx(expected, rel=0.15)


def test_one_stall_does_not_move_a_drafters_price_far() -> None:
    cost = DraftCost()
    for _ in range(100):
        cost.learn(4, 4, 0.5)
    cost.learn(4, 4, 500.0)
    for _ in range(8):
        cost.learn(4, 4, 0.5)
    assert cost.price.ms(4, 4) == pytest.approx(0.5, rel=0.05)


@given(
    st.lists(st.tuples(st.integers(1, 256), st.integers(1, 64), st.floats(0.0, 1e3)), max_size=40)
)
def test_a_drafters_price_is_never_below_zero(
    steps: list[tuple[int, int, float]],
) -> None:
    cost = DraftCost()
    for requests, depth, ms in steps:
        cost.learn(requests, depth, ms)
    assert min(cost.price) >= 0.0
    assert cost.usual_ms >= 0.0
