"""The guidelines' worked examples, and what holds for all of them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller import guidelines
from controller.guidelines import (
    ceiling,
    constant_survival,
    deeper_pays,
    expected_tokens,
    free_attention_length,
    knee_length,
    knee_rows,
    low_latency_speedup,
    measured_knee_rows,
    peak,
    snap,
    speedup,
    speedups,
    tile_end,
    tiles,
)


@pytest.mark.parametrize(
    ("device", "teraflops", "terabytes", "rows"),
    [
        ("A100", 312, 2.039, 153),
        ("H200", 989, 4.8, 206),
        ("H100", 989, 3.35, 295),
        ("B200", 2250, 8.0, 281),
        ("L4", 121, 0.3, 403),
        ("L40S", 362, 0.864, 419),
    ],
)
def test_the_knee_of_known_devices_in_bfloat16(
    device: str, teraflops: float, terabytes: float, rows: int
) -> None:
    assert round(knee_rows(1e12 * teraflops, 1e12 * terabytes)) == rows, device


def test_weights_and_compute_of_eight_bits_leave_the_knee_where_it_is() -> None:
    assert knee_rows(2 * 989e12, 4.8e12, 1.0) == pytest.approx(knee_rows(989e12, 4.8e12, 2.0))


def test_the_measured_knee_of_a_linear_step() -> None:
    """5.886 ms + 21 us a row: 280 rows, near the 295 of the H100's data sheet."""
    assert measured_knee_rows(5.886 + 0.021, 0.021) == pytest.approx(280.3, abs=0.1)
    assert measured_knee_rows(5.0, 0.0) == math.inf


@pytest.mark.parametrize(("batch", "length"), [(1, 205), (32, 5), (64, 2), (128, 0), (512, 0)])
def test_the_knee_leaves_less_room_to_larger_batches(batch: int, length: int) -> None:
    """An H200: D about 5 at 32 requests, 2 at 64, none at 128."""
    assert knee_length(206, batch) == length


@pytest.mark.parametrize(
    ("group", "length"), [(4, 31), (8, 15), (16, 7), (32, 3), (128, 0), (256, 0), (1, 127)]
)
def test_attention_is_free_up_to_the_end_of_its_tile(group: int, length: int) -> None:
    assert free_attention_length(group) == length
    assert tile_end(0, group) == max(length, 0)


def test_a_group_that_does_not_divide_the_tile() -> None:
    assert free_attention_length(7) == pytest.approx(17.29, abs=0.01)
    assert tile_end(0, 7) == 17


@pytest.mark.parametrize(
    ("length", "group", "snapped"), [(31, 4, 31), (32, 4, 31), (62, 4, 31), (63, 4, 63), (5, 4, 5)]
)
def test_a_length_just_past_a_tile_goes_back_to_its_edge(
    length: int, group: int, snapped: int
) -> None:
    assert snap(length, group) == snapped


@given(st.integers(0, 300), st.integers(1, 128))
def test_tiles_are_filled_to_their_end_and_never_beyond(length: int, group: int) -> None:
    end = tile_end(length, group)
    assert end >= length
    assert tiles(end, group) == tiles(length, group) < tiles(end + 1, group)
    back = snap(length, group)
    assert 0 <= back <= length
    assert back == length or tiles(back, group) < tiles(length, group)


def test_latency_of_the_draft_bounds_its_length() -> None:
    """Acceptance .8 and drafts that cost a tenth of a step each."""
    survival, rho = constant_survival(0.8, 30), 0.1
    found = [
        low_latency_speedup(expected_tokens(survival[:length]), length, rho) for length in range(31)
    ]
    best = max(range(31), key=found.__getitem__)
    assert best == 6
    grows = [
        deeper_pays(survival[length], expected_tokens(survival[:length]), length, rho)
        for length in range(30)
    ]
    assert grows == [length < best for length in range(30)]


def test_more_tokens_than_were_drafted_are_refused() -> None:
    with pytest.raises(ValueError, match="1 to 1 \\+ D = 5"):
        low_latency_speedup(5.5, 4, 0.1)


COSTS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5)
BEST = {
    0.3: [(3, 1.38), (3, 1.34), (2, 1.26), (1, 1.18), (1, 1.08), (0, 1.0), (0, 1.0)],
    0.5: [(5, 1.88), (4, 1.79), (3, 1.63), (2, 1.46), (1, 1.25), (1, 1.15), (0, 1.0)],
    0.7: [(9, 2.97), (8, 2.76), (6, 2.35), (4, 1.98), (3, 1.58), (2, 1.37), (1, 1.13)],
    0.8: [(14, 4.23), (11, 3.82), (8, 3.09), (6, 2.47), (4, 1.87), (3, 1.55), (2, 1.22)],
    0.9: [(24, 7.49), (19, 6.37), (13, 4.67), (10, 3.43), (7, 2.37), (5, 1.87), (3, 1.38)],
}
"""Best D and its speed-up by acceptance rate and by what a position costs of a step."""


@pytest.mark.parametrize("rate", BEST)
def test_the_peaks_of_the_speed_up(rate: float) -> None:
    survival = constant_survival(rate, 64)
    for cost, (length, factor) in zip(COSTS, BEST[rate], strict=True):
        for alpha, rho in ((cost, 0.0), (0.0, cost), (cost / 2, cost / 2)):
            found = peak(survival, alpha, rho)
            assert found.speedup == pytest.approx(factor, abs=0.006)
            # Two lengths in a row may be equally good.
            assert speedups(survival, alpha, rho)[length] == pytest.approx(found.speedup)
            assert abs(found.length - length) <= 1


@given(
    st.lists(st.floats(0.0, 1.0), max_size=24),
    st.floats(0.001, 2.0),
    st.floats(0.0, 1.0),
    st.floats(0.0, 1.0),
)
def test_no_draft_beats_the_ceiling_and_the_peak_is_never_below_plain(
    rates: list[float], alpha: float, rho: float, fixed: float
) -> None:
    survival, value = [], 1.0
    for rate in rates:
        value *= rate
        survival.append(value)
    found = peak(survival, alpha, rho, fixed)
    assert 1.0 <= found.speedup <= ceiling(alpha, rho) * (1 + 1e-12)
    assert found.speedup == max(speedups(survival, alpha, rho, fixed))


def test_perfect_drafts_come_close_to_the_ceiling() -> None:
    assert ceiling(0.05) == pytest.approx(20.0)
    assert speedup(1001, 0.0, 1000, 0.05) == pytest.approx(20.0, rel=0.02)
    assert ceiling(0.0) == math.inf


@given(st.floats(0.0, 0.99), st.floats(0.0, 0.5), st.floats(0.0, 0.5))
def test_peaks_rise_with_acceptance_and_fall_with_cost(
    rate: float, alpha: float, more: float
) -> None:
    base = peak(constant_survival(rate, 40), alpha)
    assert peak(constant_survival(rate, 40), alpha + more).length <= base.length
    assert peak(constant_survival(min(rate + 0.01, 1.0), 40), alpha).length >= base.length


@pytest.mark.parametrize(
    "call",
    [
        lambda: knee_rows(0.0, 1.0),
        lambda: knee_rows(1.0, float("nan")),
        lambda: measured_knee_rows(-1.0, 0.1),
        lambda: knee_length(206, 0),
        lambda: free_attention_length(0),
        lambda: snap(3, 0),
    ],
)
def test_impossible_numbers_are_refused(call: object) -> None:
    assert callable(call)
    with pytest.raises(ValueError, match=r"must be"):
        call()


def test_every_guideline_names_its_source() -> None:
    named = [
        knee_rows,
        measured_knee_rows,
        knee_length,
        free_attention_length,
        tiles,
        tile_end,
        snap,
        low_latency_speedup,
        deeper_pays,
        speedup,
        ceiling,
        expected_tokens,
        peak,
    ]
    for function in named:
        assert "Source: " in (function.__doc__ or ""), function.__name__
    assert guidelines.__doc__ is not None
    assert all(f"[{mark}]" in guidelines.__doc__ for mark in "NRO")
