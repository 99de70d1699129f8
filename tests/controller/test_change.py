"""Changes of content: noticed within tens of drafts, hardly ever without one; what they reset."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.acceptance import Acceptance
from controller.change import LEVEL, REST, ChangeTest
from controller.contract import Features

SHORT = Features(3, 0, "prompt")
LONG = Features(12, 2, "output")
NEW = 10**6


def trained(rate: float, trials: int = 500) -> tuple[ChangeTest, random.Random]:
    """A test that has seen what it expected."""
    test, rng = ChangeTest(), random.Random(4)
    for _ in range(trials):
        assert test.add(1, rng.random() < rate, rate) is None
    return test, rng


@pytest.mark.parametrize(("before", "after"), [(0.8, 0.2), (0.2, 0.8), (0.5, 0.1), (0.4, 0.9)])
def test_a_break_is_noticed_within_tens_of_trials(before: float, after: float) -> None:
    test, rng = trained(before)
    changed, trials = None, 0
    while changed is None:
        changed = test.add(1, rng.random() < after, before)
        trials += 1
    assert trials <= 60
    assert changed.trials <= trials + 20
    assert changed.hits / changed.trials == pytest.approx(after, abs=0.15)


def test_what_a_change_says_is_of_the_time_since_it() -> None:
    test, _ = trained(0.8)
    changed = None
    while changed is None:
        changed = test.add(4, 1, 3.2)  # a quarter succeeds
    assert changed.hits == pytest.approx(changed.trials / 4, abs=2)


@settings(deadline=None, max_examples=8)
@given(st.floats(0.05, 0.95), st.integers(1, 16), st.integers(0, 10**6))
def test_steady_noise_raises_no_more_alarms_than_promised(
    rate: float, batch: int, seed: int
) -> None:
    test, rng = ChangeTest(), np.random.default_rng(seed)
    steps = 20_000
    for hits in rng.binomial(batch, rate, steps).tolist():
        test.add(batch, hits, rate * batch)
    promised = 2 * steps * batch / np.exp(LEVEL)
    assert test.alarms <= 1 + 3 * promised


def test_at_first_and_after_an_alarm_it_rests() -> None:
    test = ChangeTest()
    for _ in range(int(REST)):
        assert test.add(1, 0, 0.9) is None
    alarms = [trial for trial in range(200) if test.add(1, 0, 0.9) is not None]
    assert len(alarms) > 1
    assert alarms[1] - alarms[0] > REST


def feed(
    model: Acceptance, rng: random.Random, rate: float, drafts: int, deeper: float = 0.7
) -> None:
    """Drafts of eight requests, each step planned with what is known."""
    for i in range(drafts):
        features = LONG if i % 3 else SHORT
        accepted = 0
        while accepted < 4 and rng.random() < (deeper if accepted else rate):
            accepted += 1
        model.learn(i % 8, "ngram", features, 4, accepted)
        if i % 8 == 7:
            model.rates(NEW, "ngram", SHORT, 4)


def resets(model: Acceptance) -> int:
    found = model.report()["ngram"]
    assert isinstance(found, dict)
    return found["resets"]


def test_after_a_break_of_content_the_old_memory_is_gone() -> None:
    model, rng = Acceptance(), random.Random(5)
    feed(model, rng, 0.8, 3000)
    assert resets(model) == 0
    feed(model, rng, 0.2, 80)
    assert resets(model) == 1
    for features in (SHORT, LONG):
        assert model.rates(NEW, "ngram", features, 1)[0] < 0.45  # .7 with the old memory
    assert model.typical("ngram", 1)[0] < 0.4
    assert model.rates(NEW, "ngram", LONG, 2)[1] == pytest.approx(0.7, abs=0.08)


def test_a_break_of_deeper_positions_leaves_the_first_alone() -> None:
    model, rng = Acceptance(), random.Random(6)
    feed(model, rng, 0.7, 3000, deeper=0.9)
    feed(model, rng, 0.7, 80, deeper=0.2)
    assert resets(model) == 1
    rates = model.rates(NEW, "ngram", LONG, 3)
    assert rates[0] == pytest.approx(0.7, abs=0.1)
    assert rates[1] < 0.5
    assert rates[2] < 0.7


def test_requests_that_differ_are_no_change_of_content() -> None:
    model, rng = Acceptance(), random.Random(7)
    for i in range(12_000):
        request, rate = i // 400 * 8 + i % 8, 0.8 if i % 2 else 0.45
        accepted = 0
        while accepted < 4 and rng.random() < rate:
            accepted += 1
        model.learn(request, "ngram", SHORT, 4, accepted)
        if i % 8 == 7:
            model.rates(NEW, "ngram", SHORT, 4)
    assert resets(model) <= 1


def test_a_drafter_that_is_forgotten_has_had_no_change() -> None:
    model, rng = Acceptance(), random.Random(5)
    feed(model, rng, 0.8, 1000)
    feed(model, rng, 0.2, 80)
    model.forget_drafter("ngram")
    assert resets(model) == 0
