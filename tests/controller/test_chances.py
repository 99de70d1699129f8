"""Chances of acceptance instead of what came of them: the same mean, less variance, real tokens."""

from __future__ import annotations

import random
from statistics import fmean, pvariance

import pytest

from controller.acceptance import Acceptance
from controller.contract import Features, Part, RequestOutcome
from controller.credit import Credit, Planned
from controller.guards import RequestGuard
from controller.mixing import tail_key

MATCH = Features(3, 0, "prompt")
NEW = 10**6


def learned(seed: int, told: bool, drafts: int = 60) -> list[float]:
    """Rates after drafts whose tokens have a chance of .9 or .3 each, evenly."""
    model, rng = Acceptance(), random.Random(seed)
    for i in range(drafts):
        chances: list[float] = []
        accepted = 0
        for _ in range(3):
            chances.append(rng.choice((0.9, 0.3)))
            if rng.random() >= chances[-1]:
                break
            accepted += 1
        model.learn(i, "ngram", MATCH, 3, accepted, chances=chances if told else ())
    return model.rates(NEW, "ngram", MATCH, 3)


def test_chances_give_the_same_mean_with_less_variance() -> None:
    told, plain = [[learned(seed, known) for seed in range(60)] for known in (True, False)]
    for k in range(3):
        one, other = [rates[k] for rates in told], [rates[k] for rates in plain]
        assert fmean(one) == pytest.approx(fmean(other), abs=0.03)
        assert pvariance(one) < 0.7 * pvariance(other)


def test_a_chance_of_one_or_nothing_counts_like_what_came_of_it() -> None:
    one, other = Acceptance(), Acceptance()
    for i in range(200):
        accepted = i % 4
        chances = [1.0] * accepted + [0.0] * (accepted < 3)
        one.learn(i % 5, "ngram", MATCH, 3, accepted)
        other.learn(i % 5, "ngram", MATCH, 3, accepted, chances=chances)
        if i % 10 == 0:
            one.rates(NEW, "ngram", MATCH, 3)
            other.rates(NEW, "ngram", MATCH, 3)
    for request in (0, NEW):
        expected = one.rates(request, "ngram", MATCH, 3)
        assert other.rates(request, "ngram", MATCH, 3) == pytest.approx(expected, abs=0.02)
    assert other.typical("ngram", 3) == pytest.approx(one.typical("ngram", 3), abs=0.02)


def test_a_change_of_content_is_noticed_in_chances_too() -> None:
    model = Acceptance()
    for i in range(2000):
        model.learn(i % 8, "ngram", MATCH, 1, 1, chances=[0.8 if i < 1900 else 0.1])
        if i % 8 == 7:
            model.rates(NEW, "ngram", MATCH, 1)
    assert model.rates(NEW, "ngram", MATCH, 1)[0] < 0.25


def test_more_verified_positions_than_chances_fall_back_to_what_came_of_them() -> None:
    model, other = Acceptance(), Acceptance()
    model.learn(1, "ngram", MATCH, 3, 2, chances=[0.1])
    other.learn(1, "ngram", MATCH, 3, 2)
    assert model.rates(1, "ngram", MATCH, 3) == other.rates(1, "ngram", MATCH, 3)


def test_a_chain_credits_each_part_with_its_own_chances() -> None:
    model = Acceptance()
    credit = Credit(model, RequestGuard())
    parts = (Part("mtp", 2, 2, chances=(0.9, 0.9)), Part("ngram", 2, 0, chances=(0.05,)))
    for step in range(300):
        result = RequestOutcome(step, "mtp", 4, 2, 3, parts=parts, chances=(0.9, 0.9, 0.05))
        credit.step((result,), Planned(0.1, tails={step: 2}))
        model.rates(NEW, "mtp", Features(), 2)
    assert model.rates(NEW, "mtp", Features(), 2) == pytest.approx([0.9, 0.9], abs=0.03)
    assert model.typical(tail_key("ngram"), 1)[0] < 0.15


def test_the_request_guard_counts_real_tokens() -> None:
    """Whoever is lucky pays nothing, whatever the chances were."""
    guards = RequestGuard(), RequestGuard()
    for guard, accepted, chance in ((guards[0], 4, 0.0), (guards[1], 0, 1.0)):
        credit = Credit(Acceptance(), guard)
        for _ in range(8):
            seen = accepted + (accepted < 4)
            result = RequestOutcome(1, "ngram", 4, accepted, accepted + 1, chances=(chance,) * seen)
            credit.step((result,), Planned(0.4))
    assert guards[0].down == set()
    assert guards[1].down == {1}
