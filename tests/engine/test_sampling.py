"""Filters and noise: the right survivors, the right law, the same draw for the same seed."""

from __future__ import annotations

import math
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.device import Device
from engine.draw import Draw
from engine.sampling import choose, filtered, keep_top, law, seeded_noise

CPU = Device(torch.device("cpu"), torch.float32)


def generator() -> torch.Generator:
    made = torch.Generator()
    made.manual_seed(3)
    return made


def survivors(row: list[float], top_k: int, top_p: float) -> set[int]:
    """Plain definition: the k most likely, then the smallest set with mass >= p; what equals the
    last one stays with it."""
    values = sorted(row, reverse=True)
    values = [value for value in values if value >= values[: top_k or len(row)][-1]]
    weights = [math.exp(value) for value in values]
    last, mass = values[-1], 0.0
    for value, weight in zip(values, weights, strict=True):
        mass += weight / sum(weights)
        if mass >= top_p - 1e-7:
            last = value
            break
    return {token for token in range(len(row)) if row[token] >= last}


@settings(max_examples=200, deadline=None)
@given(
    rows=st.lists(
        st.tuples(
            st.permutations([-3.0, -1.5, -0.2, 0.4, 1.1, 2.0, 2.9])
            | st.lists(st.sampled_from([-1.0, 0.5, 2.0]), min_size=7, max_size=7),
            st.integers(0, 8),
            st.sampled_from([1.0, 0.999, 0.9, 0.53, 0.11, 0.01]),
        ),
        min_size=1,
        max_size=4,
    )
)
def test_filters_keep_exactly_what_their_definition_says(
    rows: list[tuple[list[float], int, float]],
) -> None:
    scores = torch.tensor([row for row, _, _ in rows])
    draws = [Draw(1.0, top_k, top_p) for _, top_k, top_p in rows]
    kept = keep_top(scores, draws, CPU)
    for place, (row, top_k, top_p) in enumerate(rows):
        got = {token for token in range(len(row)) if kept[place, token] > float("-inf")}
        assert got == survivors(row, top_k, top_p)


@settings(max_examples=100, deadline=None)
@given(
    rows=st.lists(
        st.tuples(
            st.permutations([-3.0, -1.5, -0.2, 0.4, 1.1, 2.0, 2.9]),
            st.sampled_from([0.0, 0.01, 0.1, 0.5, 1.0]),
            st.sampled_from([0.5, 1.0, 1.7]),
        ),
        min_size=1,
        max_size=4,
    )
)
def test_min_p_keeps_what_is_likely_enough_beside_the_likeliest(
    rows: list[tuple[list[float], float, float]],
) -> None:
    draws = [Draw(temperature, min_p=min_p) for _, min_p, temperature in rows]
    kept = filtered(torch.tensor([row for row, _, _ in rows]), draws, CPU)
    for place, (row, min_p, temperature) in enumerate(rows):
        weights = [math.exp(value / temperature) for value in row]
        wanted = {t for t, w in enumerate(weights) if w >= min_p * max(weights) * (1 - 1e-6)}
        assert {t for t in range(len(row)) if kept[place, t] > float("-inf")} == wanted


def test_equal_scores_are_kept_together() -> None:
    row = torch.tensor([[1.0, 2.0, 1.0, 1.0, 0.0, 1.0]])
    for filters in (Draw(1.0, top_k=3), Draw(1.0, top_p=0.6), Draw(1.0, top_k=2, top_p=0.99)):
        kept = keep_top(row, [filters], CPU)
        assert torch.isfinite(kept)[0].tolist() == [True, True, True, True, False, True]


def test_what_is_kept_of_a_row_does_not_depend_on_its_neighbours() -> None:
    """Scores in the 8 bits that a bfloat16 model gives: the row is full of equals."""
    made = torch.Generator().manual_seed(5)
    scores = (torch.randn(24, 5000, generator=made) * 2).to(torch.bfloat16).float()
    scores[:4] = 0.0  # all the same: the sum meets top_p exactly
    chance = random.Random(5)
    draws = [
        Draw(1.0, chance.choice([0, 1, 7, 40, 900]), chance.choice([0.125, 0.5, 0.9, 1.0]), seed=1)
        for _ in range(len(scores))
    ]
    together = keep_top(scores, draws, CPU)
    drawn, *_ = choose(scores, draws, range(len(draws)), CPU, generator())
    for place, draw in enumerate(draws):
        row = scores[place : place + 1]
        assert torch.equal(keep_top(row, [draw], CPU)[0], together[place])
        assert choose(row, [draw], [place], CPU, generator())[0].tolist() == [int(drawn[place])]


def test_filters_come_one_after_another() -> None:
    """min_p before top_k before top_p, whose mass is that of what the others left."""
    row = torch.tensor([[0.4, 0.3, 0.2, 0.06, 0.04]]).log()
    assert law(row, [Draw(1.0, top_k=3, top_p=0.75)], CPU)[0].tolist() == pytest.approx(
        [4 / 7, 3 / 7, 0, 0, 0]
    )
    assert law(row, [Draw(1.0, top_p=0.95, min_p=0.12)], CPU)[0].tolist() == pytest.approx(
        [4 / 9.6, 3 / 9.6, 2 / 9.6, 0.6 / 9.6, 0], abs=1e-6
    )
    assert law(row, [Draw(1.0, top_k=4, min_p=0.6)], CPU)[0].tolist() == pytest.approx(
        [4 / 7, 3 / 7, 0, 0, 0]
    )


@pytest.mark.parametrize("seeded", [True, False])
def test_the_drawn_law_is_the_softmax(seeded: bool) -> None:
    total = 40_000
    row = torch.tensor([0.0, 1.0, -1.0, 2.0, float("-inf"), 0.5])
    draws = [Draw(0.8, seed=7 if seeded else None)] * total
    tokens, sound, _ = choose(row.expand(total, -1), draws, range(total), CPU, generator())
    counts = torch.bincount(tokens, minlength=6).double()
    expected = (row / 0.8).softmax(0).double() * total
    assert counts[4] == 0
    assert bool(sound.all())
    kept = expected > 0
    statistic = float((((counts - expected) ** 2)[kept] / expected[kept]).sum())
    assert statistic < 30.9  # chi-square, 4 degrees of freedom: 99.9997 %


def test_seeded_noise_depends_on_seed_position_and_token_alone() -> None:
    one = seeded_noise([(1, 5), (2, 5), (1, 6)], 1000, CPU)
    two = seeded_noise([(1, 6), (1, 5)], 500, CPU)
    assert torch.equal(one[2, :500], two[0])
    assert torch.equal(one[0, :500], two[1])
    for other in (one[1], one[2]):
        assert float(torch.corrcoef(torch.stack((one[0], other)))[0, 1]) < 0.12
    assert bool(torch.isfinite(one).all())


def test_greedy_and_sampled_rows_share_a_batch() -> None:
    logits = torch.tensor([[0.0, 3.0, 1.0]] * 3)
    tokens, *_ = choose(logits, [Draw(), Draw(2.0, top_k=1), Draw()], [1, 2, 3], CPU, generator())
    assert tokens.tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    ("row", "sound"),
    [
        ([0.0, 1.0], True),
        ([float("-inf"), 1.0], True),
        ([float("nan"), 1.0], False),
        ([float("-inf")] * 2, False),
        ([float("inf"), 1.0], False),
    ],
)
def test_unsound_logits_are_flagged(row: list[float], sound: bool) -> None:
    for draw in (Draw(), Draw(1.0)):
        assert choose(torch.tensor([row]), [draw], [1], CPU, generator())[1].tolist() == [sound]
