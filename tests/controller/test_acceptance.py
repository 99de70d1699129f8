"""Acceptance: unbiased under a moving D, shrunk sensibly, bounded."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.acceptance import Acceptance
from controller.contract import Features
from controller.counts import POSITIONS, Counts
from controller.drafter_rates import MOST_WAITING

TRUE = (0.35, 0.8, 0.75, 0.7, 0.65, 0.6)
SHORT = Features(3, 0, "prompt")
NEW = 10**6


def draw(rng: random.Random, length: int, rates: tuple[float, ...] = TRUE) -> int:
    for k in range(length):
        if rng.random() >= rates[k]:
            return k
    return length


def test_estimates_match_the_truth_while_draft_length_varies_with_the_past() -> None:
    rng = random.Random(1)
    model = Acceptance()
    length, totals, seen = 6, [0.0] * 6, 0
    for i in range(8000):
        accepted = draw(rng, length)
        model.learn(i, "ngram", SHORT, length, accepted)
        # D follows the last outcome, which a plain accepted/drafted ratio would not survive.
        length = min(6, accepted + 1) if rng.random() < 0.8 else rng.randint(1, 6)
        if i >= 2000 and i % 20 == 0:
            seen += 1
            rates = model.rates(NEW, "ngram", SHORT, 6)
            totals = [t + a for t, a in zip(totals, rates, strict=True)]
    for total, true in zip(totals, TRUE, strict=True):
        assert total / seen == pytest.approx(true, abs=0.05)


def test_a_cut_draft_counts_its_accepted_positions_and_no_rejection() -> None:
    rng = random.Random(2)
    model = Acceptance()
    totals, seen = [0.0] * 3, 0
    for i in range(6000):
        accepted, end = draw(rng, 6), rng.randint(0, 8)
        cut = end < accepted
        model.learn(i, "ngram", SHORT, 6, min(accepted, end), censored=cut)
        if i >= 1000 and i % 20 == 0:
            seen += 1
            rates = model.rates(NEW, "ngram", SHORT, 3)
            totals = [t + a for t, a in zip(totals, rates, strict=True)]
    for total, true in zip(totals, TRUE, strict=False):
        assert total / seen == pytest.approx(true, abs=0.05)


def test_counting_a_cut_as_a_rejection_would_be_visible() -> None:
    """The guard of the test above: the same data counted wrongly is far off."""
    rng = random.Random(2)
    model = Acceptance()
    for i in range(6000):
        accepted, end = draw(rng, 6), rng.randint(0, 3)
        model.learn(i, "ngram", SHORT, 6, min(accepted, end), censored=False)
    assert model.rates(NEW, "ngram", SHORT, 2)[1] < TRUE[1] - 0.1


def counted(counts: Counts, row: int) -> list[tuple[float, float]]:
    """(accepted, reached) of the positions that were reached."""
    accepted, reached = counts.tables()
    pairs = zip(accepted[row].tolist(), reached[row].tolist(), strict=True)
    return [pair for pair in pairs if pair[1]]


def test_full_accept_observes_only_the_drafted_positions() -> None:
    counts = Counts(memory=100)
    row = counts.add_row()
    counts.learn(row, accepted=3, seen=3)
    assert counted(counts, row) == [(1.0, 1.0)] * 3


def test_positions_after_the_first_rejection_stay_unobserved() -> None:
    counts = Counts(memory=100)
    row = counts.add_row()
    counts.learn(row, accepted=1, seen=2)
    assert counted(counts, row) == [(1.0, 1.0), (0.0, 1.0)]


@given(st.lists(st.tuples(st.integers(0, 8), st.booleans()), min_size=1, max_size=40))
def test_drafts_counted_together_count_like_one_after_the_other(
    drafts: list[tuple[int, bool]],
) -> None:
    counts = Counts(memory=1000)
    counts.add_row()
    apart, together = counts.add_row(), counts.add_row()
    accepted = [kept for kept, _ in drafts]
    seen = [kept + rejected for kept, rejected in drafts]
    for pair in zip(accepted, seen, strict=True):
        counts.learn(apart, *pair)
    counts.learn_many(together, accepted, seen)
    for one, other in zip(counted(counts, apart), counted(counts, together), strict=True):
        assert one[1] == pytest.approx(other[1])
        assert one[0] == pytest.approx(other[0], rel=0.03)
    assert counted(counts, 0) == []


def test_rows_added_later_leave_the_others_as_they_are() -> None:
    counts = Counts(memory=100)
    first = counts.add_row()
    counts.learn(first, accepted=2, seen=3)
    before = counted(counts, first)
    rows = [counts.add_row() for _ in range(100)]
    counts.learn(rows[-1], accepted=1, seen=1)
    assert counted(counts, first) == before
    assert [counted(counts, row) for row in rows[:-1]] == [[]] * 99


def test_ngram_prior_is_low_at_first_then_high_and_rises_with_the_match() -> None:
    model = Acceptance()
    short = model.rates(1, "ngram", Features(2), 3)
    long = model.rates(1, "ngram", Features(20), 3)
    assert short == pytest.approx([0.2, 0.8, 0.8])
    assert long[0] > 0.6


def test_unobserved_deep_positions_follow_the_position_before() -> None:
    model = Acceptance()
    for i in range(2000):
        model.learn(i, "ngram", SHORT, 2, 2 if i % 10 else 1)
    rates = model.rates(NEW, "ngram", SHORT, 6)
    assert rates[1] == pytest.approx(0.9, abs=0.02)
    assert rates[2:] == pytest.approx([rates[1]] * 4, abs=0.02)


def test_buckets_are_told_apart_by_match_streak_and_source() -> None:
    model = Acceptance()
    for i in range(400):
        model.learn(i, "ngram", Features(2, 0, "prompt"), 4, 0)
        model.learn(i, "ngram", Features(2, 5, "prompt"), 4, 4)
        model.learn(i, "ngram", Features(12, 0, "output"), 4, 4)
    assert model.rates(NEW, "ngram", Features(2, 0, "prompt"), 1)[0] < 0.1
    assert model.rates(NEW, "ngram", Features(2, 5, "prompt"), 1)[0] > 0.9
    assert model.rates(NEW, "ngram", Features(12, 0, "output"), 1)[0] > 0.9


def test_a_new_bucket_starts_from_what_the_drafter_does_elsewhere() -> None:
    good, bad = Acceptance(), Acceptance()
    for i in range(300):
        good.learn(i, "ngram", SHORT, 4, 4)
        bad.learn(i, "ngram", SHORT, 4, 0)
    unseen = Features(8, 3, "output")
    assert good.rates(NEW, "ngram", unseen, 1)[0] > bad.rates(NEW, "ngram", unseen, 1)[0] + 0.3


def test_a_request_that_differs_is_corrected_and_the_others_are_not() -> None:
    model = Acceptance()
    for i in range(300):
        model.learn(1000 + i % 20, "ngram", SHORT, 4, 4 if i % 2 else 0)
    for _ in range(10):
        model.learn(7, "ngram", SHORT, 4, 0)
    usual = model.rates(NEW, "ngram", SHORT, 1)[0]
    assert model.rates(7, "ngram", SHORT, 1)[0] < usual - 0.1
    model.forget(7)
    assert model.rates(7, "ngram", SHORT, 1)[0] == usual


def test_memory_is_discounted_so_a_change_of_content_is_followed() -> None:
    model = Acceptance()
    for i in range(2000):
        model.learn(i, "ngram", SHORT, 4, 4)
    for i in range(800):
        model.learn(i, "ngram", SHORT, 4, 0)
    assert model.rates(NEW, "ngram", SHORT, 1)[0] < 0.2


def test_memory_does_not_grow_with_requests_or_sources() -> None:
    model = Acceptance()
    for i in range(20_000):
        model.learn(i, "ngram", Features(i % 40, i % 9, f"source {i % 500}"), 4, i % 5)
    report = model.report()["ngram"]
    assert isinstance(report, dict)
    assert report["buckets"] <= 8 * 4 * 9
    assert len(model._odds) <= 4096


@given(
    st.lists(
        st.tuples(st.integers(0, 40), st.integers(0, 40), st.booleans(), st.integers(0, 30)),
        max_size=60,
    ),
    st.integers(1, 40),
)
def test_survival_is_a_falling_probability_whatever_was_observed(
    outcomes: list[tuple[int, int, bool, int]], length: int
) -> None:
    model = Acceptance()
    for drafted, accepted, cut, match in outcomes:
        features = Features(match, match % 5, "prompt")
        model.learn(1, "ngram", features, drafted, min(accepted, drafted), cut)
    survival = model.survival(1, "ngram", SHORT, length)
    assert len(survival) == length
    assert all(0.0 <= s <= 1.0 for s in survival)
    assert all(a >= b for a, b in pairwise(survival))
    assert len(model.typical("ngram", POSITIONS + 3)) == POSITIONS + 3


@pytest.mark.parametrize("drafted", [1, 3])
def test_news_that_no_plan_asks_for_do_not_pile_up(drafted: int) -> None:
    model, asked = Acceptance(), Acceptance()
    for number in range(5000):
        for one in (model, asked):
            one.learn(number % 7, "ngram", SHORT, drafted, number % 2)
        asked.rates(1, "ngram", SHORT, 3)
    drafters = model._drafters.values()
    assert max(len(known.rates.news) for known in drafters) < MOST_WAITING
    found, expected = (one.rates(99, "ngram", SHORT, 3) for one in (model, asked))
    assert found == pytest.approx(expected, abs=0.05)
