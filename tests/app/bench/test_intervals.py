"""Quantiles on known values, speed-ups on planted ones, and what the intervals promise."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.bench.intervals import LEAST_PAIRS, Pair, quantiles, speedup, widening


def test_quantiles_are_nearest_ranks() -> None:
    assert quantiles(float(n) for n in range(100, 0, -1)) == {"p50": 50, "p90": 90, "p99": 99}
    assert quantiles([3.0]) == {"p50": 3, "p90": 3, "p99": 3}
    assert quantiles([]) == {}


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=300))
def test_a_quantile_is_a_value_that_so_many_do_not_exceed(values: list[float]) -> None:
    for name, value in quantiles(values).items():
        share = int(name[1:]) / 100
        assert value in values
        assert sum(other <= value for other in values) >= share * len(values) - 1e-9
        assert sum(other < value for other in values) < share * len(values)


def drawn(random: np.random.Generator, count: int, ratio: float) -> list[Pair]:
    """Prompts that differ far more from one another than the arms do: lengths, speeds, noise."""
    tokens = random.integers(20, 200, count)
    base_ms = tokens * random.lognormal(2.0, 0.6, count)
    gain = ratio * random.lognormal(0.0, 0.25, count)
    return [
        Pair(float(n), ms / g, float(n), ms) for n, ms, g in zip(tokens, base_ms, gain, strict=True)
    ]


def true_ratio(ratio: float) -> float:
    """The ratio of sums in the limit: tokens cancel, and times divide by the gain."""
    return ratio / math.exp(0.25**2 / 2)


def test_a_speedup_is_the_ratio_of_tokens_per_request_time() -> None:
    pairs = [Pair(100, 500, 100, 1000), Pair(50, 500, 100, 2000)]
    found = speedup(pairs)
    assert found is not None
    assert found.value == pytest.approx((150 / 1000) / (200 / 3000))
    assert (found.low, found.high, found.pairs) == (None, None, 2)


def test_pairs_without_a_difference_have_an_interval_of_no_width() -> None:
    found = speedup([Pair(n, 10.0 * n, n, 20.0 * n) for n in range(1, 30)])
    assert found is not None
    assert (found.value, found.low, found.high) == pytest.approx((2, 2, 2))


def test_pairing_takes_the_differences_between_prompts_out() -> None:
    pairs = drawn(np.random.default_rng(3), 60, 1.2)
    paired, shuffled = (
        speedup(pairs),
        speedup([Pair(*a[:2], *b[2:]) for a, b in zip(pairs, pairs[1:] + pairs[:1], strict=True)]),
    )
    assert paired is not None
    assert shuffled is not None
    assert paired.low is not None
    assert paired.high is not None
    assert shuffled.low is not None
    assert shuffled.high is not None
    assert paired.high / paired.low < 0.7 * (shuffled.high / shuffled.low)


@pytest.mark.parametrize("count", [8, 30])
def test_the_interval_covers_the_truth_as_often_as_it_says(count: int) -> None:
    random = np.random.default_rng(7)
    truth, runs, inside = true_ratio(1.3), 400, 0
    for seed in range(runs):
        found = speedup(drawn(random, count, 1.3), seed=seed, resamples=400)
        assert found is not None
        assert found.low is not None
        assert found.high is not None
        inside += found.low <= truth <= found.high
    assert 0.915 <= inside / runs <= 0.985


def test_few_pairs_have_a_ratio_but_no_interval() -> None:
    pairs = drawn(np.random.default_rng(1), LEAST_PAIRS, 1.5)
    few, enough = speedup(pairs[1:]), speedup(pairs)
    assert few is not None
    assert few.low is None
    assert enough is not None
    assert enough.low is not None


def test_an_arm_without_tokens_has_no_speedup() -> None:
    assert speedup([]) is None
    assert speedup([Pair(0, 100, 10, 100)] * 9) is None


@given(st.lists(st.tuples(*[st.integers(0, 1000)] * 2, *[st.integers(0, 1000)] * 2), max_size=40))
def test_any_counts_give_an_ordered_interval_or_none(rows: list[tuple[int, int, int, int]]) -> None:
    found = speedup([Pair(*map(float, row)) for row in rows], resamples=50)
    if found is not None and found.low is not None:
        assert found.high is not None
        assert 0 < found.low <= found.value * (1 + 1e-9)
        assert found.value <= found.high * (1 + 1e-9)
        assert math.isfinite(found.high)


def test_the_same_data_give_the_same_interval() -> None:
    pairs = drawn(np.random.default_rng(2), 20, 1.1)
    assert speedup(pairs) == speedup(pairs)


def test_the_widening_is_that_of_the_t_distribution() -> None:
    # t(0.975) of 4, 9, 29 degrees of freedom: 2.776, 2.262, 2.045; z: 1.960
    for count, t in ((5, 2.7764), (10, 2.2622), (30, 2.0452)):
        expected = t / 1.95996 * math.sqrt(count / (count - 1))
        assert widening(count) == pytest.approx(expected, rel=0.01)
