"""The allocation: exact, monotone, and plain decoding where nothing pays."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.choices import Choices
from controller.draft_cost import DraftPrice
from controller.mixing import Pass, Tail, chained
from controller.planner import MIN_GAIN, Allocation, allocate, expected, surplus, uniform
from controller.pricing import Price
from tests.controller.simulated_engine import BF16, FP32, choices, interpolate

RATES = st.lists(st.floats(0.01, 0.99), min_size=1, max_size=5)
STEPS = st.lists(st.floats(0.0, 8.0), min_size=24, max_size=24)


def survival(rates: list[float]) -> list[float]:
    found, value = [], 1.0
    for rate in rates:
        value *= rate
        found.append(value)
    return found


def allot(costs: Sequence[float], tokens: float, found: Choices, room: int) -> Allocation:
    """The allocation when the step may hold `room` more rows."""
    return allocate(np.array(costs[: min(room, int(found.longest.sum())) + 1]), tokens, found)


def lengths(found: Allocation) -> list[int]:
    return found.lengths.tolist()


def bf16(rows: int, extra: int) -> list[float]:
    return [interpolate(BF16, rows + m) for m in range(extra + 1)]


@given(st.lists(RATES, min_size=1, max_size=3), st.lists(st.floats(1.0, 50.0), min_size=16))
def test_the_best_prefix_is_the_best_of_all_length_combinations(
    batch: list[list[float]], costs: list[float]
) -> None:
    survivals = [survival(rates) for rates in batch]
    tokens = float(len(batch))
    found = allot(costs, tokens, choices(*survivals), 15)
    best = max(
        (tokens + sum(sum(s[:d]) for s, d in zip(survivals, depths, strict=True)))
        / costs[sum(depths)]
        for depths in product(*(range(len(s) + 1) for s in survivals))
    )
    assert found.goodput >= best / (1.0 + MIN_GAIN) * (1 - 1e-9)
    if found.rows:
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
    before = allot(costs, 1.0, choices(survival(rates)), 16)
    after = allot(costs, 1.0, choices(survival(better)), 16)
    assert after.rows >= before.rows


@given(RATES, st.floats(0.1, 3.0), st.floats(1.0, 4.0))
def test_dearer_rows_never_raise_the_length(rates: list[float], row: float, factor: float) -> None:
    choice = choices(survival(rates))
    cheap = allot([10.0 + row * m for m in range(8)], 1.0, choice, 7)
    dear = allot([10.0 + factor * row * m for m in range(8)], 1.0, choice, 7)
    assert dear.rows <= cheap.rows


def test_nothing_is_drafted_when_no_position_pays() -> None:
    costs = [10.0 + 5.0 * m for m in range(17)]
    found = allot(costs, 1.0, choices(survival([0.4] * 16)), 16)
    assert lengths(found) == [0]
    assert (found.tokens, found.ms) == (1.0, 10.0)


def test_a_gain_below_one_percent_is_not_taken() -> None:
    found = allot([10.0, 10.0], 1.0, choices([0.009]), 1)
    assert lengths(found) == [0]


def test_free_rows_of_a_plateau_are_filled() -> None:
    costs = [10.0, 12.0, 12.0, 12.0, 12.0, 30.0]
    found = allot(costs, 1.0, choices(survival([0.5] * 5)), 5)
    assert lengths(found) == [4]


def test_a_cheaper_larger_step_is_found_behind_a_hump() -> None:
    """fp32 here: 8 rows cost less than 3."""
    costs = [interpolate(FP32, 1 + m) for m in range(16)]
    found = allot(costs, 1.0, choices(survival([0.8] * 15)), 15)
    assert found.lengths[0] >= 7


def test_the_batch_shares_rows_by_survival() -> None:
    costs = [10.0 + 1.5 * m for m in range(40)]
    good, bad = survival([0.9] * 8), survival([0.2] * 8)
    found = allot(costs, 2.0, choices(bad, good), 39)
    assert found.lengths[1] > found.lengths[0]


def test_the_price_rule_holds_at_the_optimum() -> None:
    """S >= lambda * dT for what is admitted, < for what is not (linear cost)."""
    row = 0.9
    costs = [20.0 + row * m for m in range(60)]
    batch = [survival([0.3 + 0.1 * i] * 10) for i in range(6)]
    found = allot(costs, 6.0, choices(*batch), 59)
    price = found.goodput * row
    for chances, length in zip(batch, lengths(found), strict=True):
        assert all(s >= price - 1e-9 for s in chances[:length])
        assert all(s <= price + 1e-9 for s in chances[length:])


def test_drafting_cost_counts_once_per_request() -> None:
    costs = [10.0] * 5
    assert lengths(allot(costs, 1.0, choices([0.5, 0.4], draft_ms=[3.0]), 4)) == [2]
    assert lengths(allot(costs, 1.0, choices([0.5, 0.4], draft_ms=[12.0]), 4)) == [0]


@given(st.lists(st.tuples(RATES, st.floats(0.0, 6.0)), min_size=2, max_size=3), st.floats(0.0, 3.0))
def test_drafting_cost_is_due_with_the_first_position_of_each_request(
    batch: list[tuple[list[float], float]], row: float
) -> None:
    """Among the prefixes of the order by survival, which decide, the best one is found."""
    survivals, draft_ms = [survival(r) for r, _ in batch], [ms for _, ms in batch]
    costs = [10.0 + row * m for m in range(16)]
    found = allot(costs, 3.0, choices(*survivals, draft_ms=draft_ms), 15)
    order = sorted((-s, k, i) for i, each in enumerate(survivals) for k, s in enumerate(each))
    tokens, best, drafting = 3.0, 3.0 / 10.0, 0.0
    for count, (loss, k, i) in enumerate(order, start=1):
        tokens, drafting = tokens - loss, drafting + (draft_ms[i] if k == 0 else 0.0)
        best = max(best, tokens / (costs[count] + drafting))
    assert found.goodput >= best / (1.0 + MIN_GAIN) * (1 - 1e-9)
    if found.rows:
        assert found.goodput == pytest.approx(best)


def test_of_equal_requests_the_first_ones_draft_and_positions_stay_in_order() -> None:
    costs = [10.0, 10.0, 10.0, 30.0, 40.0, 50.0, 60.0]
    equal = [0.9, 0.9, 0.9]
    assert lengths(allot(costs, 2.0, choices(equal, equal), 6)) == [1, 1]
    assert lengths(allot([10.0, 30.0], 2.0, choices(equal, equal), 1)) == [0, 0]
    assert lengths(allot([10.0, 10.0, 30.0], 2.0, choices(equal, equal), 2)) == [1, 0]


@given(st.lists(RATES, min_size=0, max_size=8), st.integers(0, 30))
def test_the_room_is_never_exceeded(batch: list[list[float]], room: int) -> None:
    found = allot(bf16(8, 40), 8.0, choices(*map(survival, batch)), room)
    assert sum(lengths(found)) == found.rows <= room
    assert all(d <= len(rates) for d, rates in zip(lengths(found), batch, strict=True))


def test_the_drafter_with_the_larger_surplus_is_worth_more() -> None:
    wide, sure, short, slow = survival([0.6] * 8), survival([0.9, 0.9]), [0.5], survival([0.9] * 4)
    found = surplus(
        choices(wide, sure, short, slow, draft_ms=[0.0, 0.0, 0.0, 50.0]), Price(0.1, 0.05)
    )
    assert found[1] > found[0] > found[2] > found[3]
    assert found[2] == pytest.approx(0.45)


def test_uniform_lengths_respect_caps_and_share_the_room() -> None:
    found = choices([0.5, 0.25], [0.5, 0.25, 0.1])
    costs = np.array([1.0, 1.1, 1.2, 1.3, 1.4, 1.5])
    assert uniform(costs, 2.0, found, (1, 3), 5) == [
        pytest.approx((3.0, 1.2)),
        pytest.approx((3.6, 1.5)),
    ]
    assert uniform(costs[:3], 2.0, found, (3,), 2) == [pytest.approx((2.0 + 1.6 * 2 / 5, 1.2))]


@pytest.mark.parametrize("count", [1, 2, 7])
def test_positions_of_a_tail_count_by_how_often_they_are_drafted(count: int) -> None:
    """In tokens and in rows: of all cuts in order of survival the best one is found."""
    random = np.random.default_rng(count)
    tails = 0
    for _ in range(20):
        found = with_tail(random, count)
        size = int(found.longest.sum())
        costs = 10.0 + np.append(0.0, np.cumsum(random.choice([0.01, 0.1, 0.4], size)))
        best = allocate(costs, float(count), found)
        assert expected(costs, float(count), found, best.lengths) == pytest.approx(
            (best.tokens, best.ms)
        )
        order = np.argsort(-found.survival, axis=None)[:size] // found.survival.shape[1]
        cuts = [expected(costs, float(count), found, best.lengths * 0)]
        for m in range(1, size + 1):
            given = np.bincount(order[:m], minlength=count)
            cuts.append(expected(costs, float(count), found, given))
        goodput = max(tokens / ms for tokens, ms in cuts)
        plain = count / costs.item(0)
        assert best.goodput == pytest.approx(goodput if goodput > plain * 1.01 else plain)
        tails += bool((best.lengths > 2).any())
    assert tails >= 5


def with_tail(random: np.random.Generator, count: int) -> Choices:
    """A model's drafts of depth 2 for so many requests, continued by a tail."""
    survival = np.multiply.accumulate(random.uniform(0.5, 0.99, (count, 4)), axis=1)
    price, who = DraftPrice(0.1, 0.0, 0.3), np.zeros(count, np.intp)
    heads = Choices(np.arange(count), ("model",), who, survival, np.full(count, 4), [price])
    tail = Tail("suffix", np.multiply.accumulate(random.uniform(0.7, 0.99, 8)), np.full(8, 0.4))
    return chained(heads, Pass("model", 2, tail), np.full(count, 12))
