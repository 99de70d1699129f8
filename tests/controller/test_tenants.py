"""Acceptance by tenant: where a new request starts, and that nothing grows or is mixed up."""

from __future__ import annotations

import random

import pytest

from controller.acceptance import Acceptance
from controller.contract import Features, RequestView
from controller.request_odds import MAX_REQUESTS, MAX_TENANTS, RequestOdds

MATCH = Features(4, 1, "output")


def view(number: int, tenant: str) -> RequestView:
    return RequestView(number, tenant, 100, 100, 0.0, False)


def rate(model: Acceptance, number: int, drafter: str = "suffix") -> float:
    return model.rates(number, drafter, MATCH, 1)[0]


def taught(rates: dict[str, float], drafts: int = 40) -> Acceptance:
    """After ten requests of each tenant, whose drafts are accepted at the tenant's rate."""
    model, rng = Acceptance(), random.Random(3)
    names = list(rates)
    for number in range(10 * len(names)):
        tenant = names[number % len(names)]
        model.meet([view(number, tenant)])
        for _ in range(drafts):
            hit = rng.random() < rates[tenant]
            model.learn(number, "suffix", MATCH, 3, 3 if hit else 0)
        model.forget(number)
    return model


def test_a_new_request_starts_as_its_tenants_others_did() -> None:
    model = taught({"code": 0.8, "chat": 0.1})
    model.meet([view(100, "code"), view(101, "chat"), view(102, "new")])
    assert rate(model, 100) == pytest.approx(0.8, abs=0.1)
    assert rate(model, 101) == pytest.approx(0.1, abs=0.07)
    assert 0.3 < rate(model, 102) < 0.6
    assert 0.3 < rate(model, 103) < 0.6  # nobody said whose it is


def test_a_request_that_differs_from_its_tenant_is_learned_by_itself() -> None:
    model = taught({"code": 0.8, "chat": 0.1})
    model.meet([view(100, "code"), view(101, "code")])
    for _ in range(40):
        model.learn(100, "suffix", MATCH, 3, 0)
    assert rate(model, 100) < 0.35
    assert rate(model, 101) > rate(model, 100) + 0.2


def test_one_tenant_alone_is_no_level_of_its_own() -> None:
    known, unknown, rng = Acceptance(), Acceptance(), random.Random(5)
    for number in range(20):
        known.meet([view(number, "only")])
        for _ in range(10):
            accepted = rng.randrange(4)
            for model in (known, unknown):
                model.learn(number, "suffix", MATCH, 3, accepted)
        assert known.rates(number, "suffix", MATCH, 6) == unknown.rates(number, "suffix", MATCH, 6)


def test_chances_teach_a_tenant_too() -> None:
    model = Acceptance()
    for number in range(40):
        tenant, chance = (("a", 0.9), ("b", 0.1))[number % 2]
        model.meet([view(number, tenant)])
        for _ in range(20):
            model.learn(number, "mtp", Features(), 2, 1, chances=(chance, chance))
        model.forget(number)
    model.meet([view(100, "a"), view(101, "b")])
    ours, theirs = (model.rates(number, "mtp", Features(), 2) for number in (100, 101))
    assert ours[0] > theirs[0] + 0.4
    assert ours[1] > theirs[1] + 0.4


def test_a_drafter_that_goes_takes_what_tenants_taught_of_it_along() -> None:
    model = taught({"code": 0.8, "chat": 0.1})
    model.forget_drafter("suffix")
    model.meet([view(100, "code"), view(101, "chat")])
    assert rate(model, 100) == rate(model, 101)


def test_every_pair_has_a_slot_of_its_own_whatever_comes_and_goes() -> None:
    odds, rng = RequestOdds(), random.Random(9)
    for number in range(30_000):
        tenant = f"tenant {rng.randrange(2 * MAX_TENANTS)}"
        drafter = rng.choice(("ngram", "suffix"))
        odds.meet([view(number, tenant)])
        odds.learn(number, drafter, [0.5, 0.5], rng.randrange(3), 2)
        if rng.random() < 0.7:
            odds.forget(number)
        if number % 9000 == 8999:
            odds.forget_drafter("ngram")
    used = [slot for name in ("ngram", "suffix") for slot in odds.slots(name).values()]
    used += [slot for name in ("ngram", "suffix") for slot in odds.slots(name).tenants.values()]
    assert len(set(used)) == len(used)
    assert 0 not in used
    assert len(odds) <= MAX_REQUESTS
    assert MAX_TENANTS // 2 < len(used) - len(odds) <= MAX_TENANTS
    free = set(range(len(odds.table[0]))) - set(used)
    assert {odds.table[0][slot] for slot in free} == {1.0}
    assert {odds.table[1][slot] for slot in free} == {1.0}
