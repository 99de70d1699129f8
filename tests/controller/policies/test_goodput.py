"""TurboSpec's goodput: one acceptance rate, offline tables, and what that misses."""

from __future__ import annotations

from typing import Any

import pytest

from controller.policies.goodput import Goodput, expected_tokens
from tests.controller.policies.stage import Stage, at_most, everything, nothing, policy
from tests.controller.simulated_engine import offer

FLAT = {1: 10.0, 64: 10.0}
"""ms by rows: drafted rows cost nothing."""
STEEP = {1: 10.0, 2: 20.0, 64: 640.0}
"""Every row costs a whole step."""


def made(**options: Any) -> Goodput:
    subject = policy("goodput", **options)
    assert isinstance(subject, Goodput)
    return subject


@pytest.mark.parametrize(
    ("rate", "length", "tokens"), [(0.7, 0, 1.0), (0.5, 1, 1.5), (0.5, 2, 1.75), (0.8, 3, 2.952)]
)
def test_expected_tokens_are_the_geometric_sum(rate: float, length: int, tokens: float) -> None:
    assert expected_tokens(rate, length) == pytest.approx(tokens)


def test_free_rows_are_drafted_as_far_as_the_limit_goes() -> None:
    assert Stage(made(costs=FLAT)).lengths(3) == [16, 16, 16]
    assert Stage(made(costs=FLAT, max_draft_length=5)).lengths(3) == [5, 5, 5]


def test_rows_that_cost_a_whole_step_are_not_drafted() -> None:
    assert Stage(made(costs=STEEP)).lengths(50) == [0] * 50


def test_plain_decoding_counts_a_tenth_more() -> None:
    """D = 1 gives 1.7 tokens at a = 0.7: it must beat 1.1, not 1.0, tokens per plain step."""
    just = {1: 10.0, 2: 10.0 * 1.7 / 1.1 - 0.01, 3: 1000.0}
    over = {1: 10.0, 2: 10.0 * 1.7 / 1.1 + 0.01, 3: 1000.0}
    assert Stage(made(costs=just)).lengths(1) == [1]
    assert Stage(made(costs=over)).lengths(1) == [0]


def test_d_is_chosen_again_every_twenty_steps() -> None:
    stage = Stage(made())
    lengths = stage.lengths(60, accept=everything)
    assert len(set(lengths[:20])) == len(set(lengths[20:40])) == len(set(lengths[40:])) == 1
    assert lengths[0] < lengths[20] <= lengths[40]


def test_a_rate_below_three_tenths_is_put_back() -> None:
    subject = made(costs=FLAT)
    stage = Stage(subject)
    seen: list[object] = []
    for _ in range(12):
        stage.step(accept=nothing)
        seen.append(subject.describe()["acceptance_rate"])
    assert seen[:5] == [pytest.approx(0.7 * 0.85**n, abs=1e-3) for n in range(1, 6)]
    assert seen[5] == 0.65
    assert seen[6] == pytest.approx(0.65 * 0.85)


def test_a_full_accept_and_a_first_rejection_move_the_one_rate_alike() -> None:
    subject = made(costs=FLAT)
    Stage(subject).step(accept=at_most(3))  # three accepted of four that were reached
    assert subject.describe()["acceptance_rate"] == pytest.approx(0.85 * 0.7 + 0.15 * 0.75)


def test_nothing_is_learned_while_it_is_off() -> None:
    subject = made(costs=STEEP)
    Stage(subject).lengths(100, accept=everything)
    assert subject.describe()["acceptance_rate"] == 0.7


def test_requests_without_a_draft_count_as_plain_in_the_batch() -> None:
    """One row is nearly free and four are not: a single request of four may draft, not all."""
    costs = {4: 10.0, 5: 10.4, 6: 15.0, 8: 20.0, 64: 400.0}
    plan = Stage(made(costs=costs, requests=(4,))).step(4, everything)
    assert [one.length for one in plan.allotments] == [0, 0, 0, 0]
    plan = Stage(made(costs=costs, requests=(4,))).step(4, everything, offers=[offer(2)])
    assert [one.length for one in plan.allotments] == [0, 0, 1, 0]


def test_the_sentence_gives_the_rate_it_was_chosen_at() -> None:
    stage = Stage(made())
    stage.lengths(120, accept=everything)
    told = [one.sentence for one in stage.opened]
    assert "acceptance rate of 0.70" in told[0]
    assert stage.opened[-1].reason == "GOODPUT"
    assert f"D = {stage.step().allotments[0].length} had the highest goodput" in told[-1]
