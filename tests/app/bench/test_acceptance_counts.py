"""Acceptance by position, joint curve and shares, from planted steps."""

from __future__ import annotations

import random

import pytest

from app.bench.acceptance import Step, conditional, joint, merged, positions, shares


def test_a_position_is_judged_when_all_before_it_were_accepted() -> None:
    counts = positions(
        [
            Step("ngram", 4, 2, False),  # 1 and 2 accepted, 3 rejected, 4 not judged
            Step("ngram", 4, 4, False),
            Step("ngram", 1, 0, False),
            Step("none", 0, 0, False),
        ]
    )
    assert counts == {"ngram": [(3, 2), (2, 2), (2, 1), (1, 1)]}


def test_what_the_end_of_an_answer_cut_off_is_not_judged() -> None:
    assert positions([Step("ngram", 4, 2, True)]) == {"ngram": [(1, 1), (1, 1)]}
    assert positions([Step("ngram", 4, 0, True)]) == {}


def test_conditional_acceptance_is_found_whatever_lengths_were_drafted() -> None:
    random_ = random.Random(4)
    rates = (0.8, 0.6, 0.9)
    steps = []
    for _ in range(20_000):
        drafted = random_.choice((1, 2, 3))
        accepted = 0
        while accepted < drafted and random_.random() < rates[accepted]:
            accepted += 1
        steps.append(Step("mtp", drafted, accepted, False))
    found = conditional(positions(steps))["mtp"]
    assert [one.rate for one in found] == pytest.approx(rates, abs=0.015)
    assert [one.position for one in found] == [1, 2, 3]


def test_counts_of_answers_add_up() -> None:
    first, second = {"a": [(2, 1)]}, {"a": [(3, 3), (3, 1)], "b": [(1, 0)]}
    assert merged([first, second]) == {"a": [(5, 4), (3, 1)], "b": [(1, 0)]}
    assert first == {"a": [(2, 1)]}


def test_the_joint_curve_adds_up_to_the_acceptance_length() -> None:
    histograms = [[5, 3, 2], [1, 0, 0, 1]]
    steps, accepted = 12, 3 * 1 + 2 * 2 + 1 * 3
    curve = joint(histograms)
    assert curve == pytest.approx([6 / 12, 3 / 12, 1 / 12])
    assert 1 + sum(curve) == pytest.approx(1 + accepted / steps)
    assert joint([]) == joint([[7]]) == []


def test_shares_are_of_all_steps() -> None:
    found = shares([{"none": 5, "ngram": 24}, {"ngram": 6, "mtp": 5, "x": 0}])
    assert found == {"ngram": 30 / 40, "none": 5 / 40, "mtp": 5 / 40}
    assert next(iter(found)) == "ngram"
    assert shares([{}]) == {}
