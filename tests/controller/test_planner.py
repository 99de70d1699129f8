"""The allocation: exact, monotone, and plain decoding where nothing pays."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.planner import MIN_GAIN, Choice, allocate, pick, uniform
from tests.controller.simulated_engine import BF16, FP32, interpolate

RATES = st.lists(st.floats(0.01, 0.99), min_size=1, max_size=5)
STEPS = st.lists(st.floats(0.0, 8.0), min_size=24, max_size=24)


def survival(rates: list[float]) -> list[float]:
    found, value = [], 1.0
    for rate in rates:
        value *= rate
        found.append(value)
    return found


def bf16(rows: int, extra: int) -> list[float]:
    return [interpolate(BF16, rows + m) for m in range(extra + 1)]


@given(st.lists(RATES, min_size=1, max_size=3), st.lists(st.floats(1.0, 50.0), min_size=16))
def test_the_best_prefix_is_the_best_of_all_length_combinations(
    batch: list[list[float]], costs: list[float]
) -> None:
    choices = [Choice(i, "ngram", survival(r)) for i, r in enumerate(batch)]
    tokens = float(len(choices))
    found = allocate(costs, tokens, choices, 15)
    best = max(
        (tokens + sum(sum(c.survival[:d]) for c, d in zip(choices, lengths, strict=True)))
        / costs[sum(lengths)]
        for lengths in product(*(range(len(c.survival) + 1) for c in choices))
    )
    assert found.goodput >= best / (1.0 + MIN_GAIN) * (1 - 1e-9)
    if sum(found.lengths):
        assert found.goodput == pytest.approx(best)


@given(RATES, st.integers(0, 4), st.floats(0.0, 1.0), STEPS)
def test_higher_acceptance_never_lowers_the_length(
    rates: list[float], position: int, raised: float, steps: list[float]
) -> None:
    """Other things equal, for one request and any cost."""
    costs = [10.0]
    for step in steps:
        costs.append(costs[-1] + step)
    better = list(rates)
    k = min(position, len(rates) - 1)
    better[k] += raised * (0.99 - better[k])
    before = allocate(costs, 1.0, [Choice(0, "ngram", survival(rates))], 16).lengths[0]
    after = allocate(costs, 1.0, [Choice(0, "ngram", survival(better))], 16).lengths[0]
    assert after >= before


@given(RATES, st.floats(0.1, 3.0), st.floats(1.0, 4.0))
def test_dearer_rows_never_raise_the_length(rates: list[float], row: float, factor: float) -> None:
    choice = [Choice(0, "ngram", survival(rates))]
    cheap = allocate([10.0 + row * m for m in range(8)], 1.0, choice, 7)
    dear = allocate([10.0 + factor * row * m for m in range(8)], 1.0, choice, 7)
    assert dear.lengths[0] <= cheap.lengths[0]


def test_nothing_is_drafted_when_no_position_pays() -> None:
    costs = [10.0 + 5.0 * m for m in range(17)]
    found = allocate(costs, 1.0, [Choice(0, "ngram", survival([0.4] * 16))], 16)
    assert found.lengths == [0]
    assert (found.tokens, found.ms) == (1.0, 10.0)


def test_a_gain_below_one_percent_is_not_taken() -> None:
    found = allocate([10.0, 10.0], 1.0, [Choice(0, "ngram", [0.009])], 1)
    assert found.lengths == [0]


def test_free_rows_of_a_plateau_are_filled() -> None:
    costs = [10.0, 12.0, 12.0, 12.0, 12.0, 30.0]
    found = allocate(costs, 1.0, [Choice(0, "ngram", survival([0.5] * 5))], 5)
    assert found.lengths == [4]


def test_a_cheaper_larger_step_is_found_behind_a_hump() -> None:
    """fp32 here: 8 rows cost less than 3."""
    costs = [interpolate(FP32, 1 + m) for m in range(16)]
    found = allocate(costs, 1.0, [Choice(0, "ngram", survival([0.8] * 15))], 15)
    assert found.lengths[0] >= 7


def test_the_batch_shares_rows_by_survival() -> None:
    costs = [10.0 + 1.5 * m for m in range(40)]
    good, bad = survival([0.9] * 8), survival([0.2] * 8)
    found = allocate(costs, 2.0, [Choice(0, "ngram", bad), Choice(1, "ngram", good)], 39)
    assert found.lengths[1] > found.lengths[0]


def test_the_price_rule_holds_at_the_optimum() -> None:
    """S >= lambda * dT for what is admitted, < for what is not (linear cost)."""
    row = 0.9
    costs = [20.0 + row * m for m in range(60)]
    batch = [Choice(i, "ngram", survival([0.3 + 0.1 * i] * 10)) for i in range(6)]
    found = allocate(costs, 6.0, batch, 59)
    price = found.goodput * row
    for choice, length in zip(batch, found.lengths, strict=True):
        assert all(s >= price - 1e-9 for s in choice.survival[:length])
        assert all(s <= price + 1e-9 for s in choice.survival[length:])


def test_drafting_cost_counts_once_per_request() -> None:
    costs = [10.0] * 5
    assert allocate(costs, 1.0, [Choice(0, "x", [0.5, 0.4], draft_ms=3.0)], 4).lengths == [2]
    assert allocate(costs, 1.0, [Choice(0, "x", [0.5, 0.4], draft_ms=12.0)], 4).lengths == [0]


@given(st.lists(RATES, min_size=0, max_size=8), st.integers(0, 30))
def test_the_room_is_never_exceeded(batch: list[list[float]], room: int) -> None:
    choices = [Choice(i, "ngram", survival(r)) for i, r in enumerate(batch)]
    extra = min(room, sum(len(c.survival) for c in choices))
    found = allocate(bf16(8, extra), 8.0, choices, room)
    assert sum(found.lengths) <= room
    assert all(d <= len(c.survival) for d, c in zip(found.lengths, choices, strict=True))


def test_the_drafter_with_the_larger_surplus_is_picked() -> None:
    wide = Choice(0, "suffix", survival([0.6] * 8), draft_ms=0.0)
    sure = Choice(0, "ngram", survival([0.9, 0.9]), draft_ms=0.0)
    assert pick([wide, sure], price=0.1, row_price=0.05) is sure
    assert pick([wide, Choice(0, "ngram", survival([0.5]))], 0.1, 0.05) is wide
    slow = Choice(0, "model", survival([0.9] * 4), draft_ms=50.0)
    assert pick([slow, wide], price=0.1, row_price=0.05) is wide


def test_uniform_lengths_respect_caps_and_room() -> None:
    choices = [Choice(0, "x", [0.5, 0.25]), Choice(1, "x", [0.5, 0.25, 0.1])]
    assert uniform([1.0] * 6, 2.0, choices, 3, 5) == pytest.approx((3.6, 1.0))
    assert uniform([1.0] * 6, 2.0, choices, 3, 2) == pytest.approx((2.75, 1.0))
