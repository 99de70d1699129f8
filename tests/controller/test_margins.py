"""Margins of models' drafts: what they promise, and how a draft is cut by it without bias."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.acceptance import Acceptance
from controller.contract import Bar, Features, Margins, RequestOutcome
from controller.credit import Credit
from controller.guards import RequestGuard
from controller.margins import KNOWN, MOST_MARGIN, MarginModel
from controller.promises import WHOLE_EVERY, Promises

NEW = 10**6


def sigmoid(x: float) -> float:
    return 1.0 / (1.0 + math.exp(-x))


def truth(margin: float, first: bool) -> float:
    return sigmoid(-1.0 + 0.8 * margin - (0.0 if first else 0.5))


def taught(observations: int = 3000, seed: int = 1) -> MarginModel:
    model, rng = MarginModel(), random.Random(seed)
    for i in range(observations):
        margin, first = rng.expovariate(0.4), i % 2 == 0
        model.add(margin, first, float(rng.random() < truth(min(margin, MOST_MARGIN), first)))
    return model


# --- the logistic --------------------------------------------------------------------------------


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("margin", [0.1, 1.0, 3.0, 7.0])
def test_it_finds_how_acceptance_grows_with_the_margin(margin: float, first: bool) -> None:
    assert taught().chance(margin, first) == pytest.approx(truth(margin, first), abs=0.06)


def test_chances_teach_it_like_what_came_of_them() -> None:
    model, rng = MarginModel(), random.Random(2)
    for i in range(1500):
        margin, first = rng.expovariate(0.4), i % 2 == 0
        model.add(margin, first, truth(min(margin, MOST_MARGIN), first))
    assert model.chance(2.0, True) == pytest.approx(truth(2.0, True), abs=0.03)


def test_it_follows_a_drafter_that_changes_within_its_memory() -> None:
    model = taught()
    for _ in range(2000):
        model.add(3.0, True, 0.0)
    assert model.chance(3.0, True) < 0.1


def test_a_margin_that_tells_the_wrong_way_round_tells_nothing() -> None:
    model, rng = MarginModel(), random.Random(3)
    for _ in range(2000):
        margin = rng.uniform(0.0, 8.0)
        model.add(margin, True, float(rng.random() < sigmoid(2.0 - margin)))
    assert model.bar(0.1).slope == 0.0


@given(
    st.lists(
        st.tuples(st.floats(allow_nan=True, allow_infinity=True), st.booleans(), st.floats(0, 1)),
        max_size=200,
    )
)
def test_it_stays_a_probability_whatever_it_is_told(told: list[tuple[float, bool, float]]) -> None:
    model = MarginModel()
    for margin, first, hit in told:
        model.add(margin, first, hit)
    for margin in (-5.0, 0.0, 2.0, 1e9, math.inf, math.nan):
        assert 0.0 <= model.chance(margin, True) <= 1.0


# --- bars ----------------------------------------------------------------------------------------

BAR = Bar(0.3, -1.0, 1.0, -0.5, MOST_MARGIN)


def test_a_draft_ends_before_the_first_token_that_promises_too_little() -> None:
    assert BAR.length([5.0, 5.0, 5.0]) == 3
    assert BAR.length([5.0, 0.0, 5.0]) == 1
    assert BAR.length([0.0, 9.0, 9.0]) == 0
    assert BAR.length([]) == 0
    assert BAR.length([math.nan, 9.0]) == 0


def test_what_a_draft_promises_is_the_product_of_its_chances() -> None:
    chances = [sigmoid(-1.0 + 2.0), sigmoid(-1.5 + 2.0), sigmoid(-1.5 + 2.0)]
    survival = [chances[0], chances[0] * chances[1], math.prod(chances)]
    for place, value in enumerate(survival):
        low = Bar(value - 1e-9, -1.0, 1.0, -0.5, MOST_MARGIN).length([2.0] * 3)
        high = Bar(value + 1e-9, -1.0, 1.0, -0.5, MOST_MARGIN).length([2.0] * 3)
        assert (high, low) == (place, place + 1)


@given(st.lists(st.floats(0.0, 12.0), min_size=1, max_size=8), st.integers(0, 7), st.floats(0, 12))
def test_no_later_margin_changes_whether_a_token_is_verified(
    margins: list[float], place: int, other: float
) -> None:
    """A later margin depends on the token itself: it must not say whether that is verified."""
    place = min(place, len(margins) - 1)
    changed = [*margins[: place + 1], *[other] * (len(margins) - place - 1)]
    assert (BAR.length(margins) > place) == (BAR.length(changed) > place)


# --- what is learned from outcomes ---------------------------------------------------------------


def outcome(
    margins: tuple[float, ...],
    verified: int,
    accepted: int,
    *,
    cut: bool = False,
    chances: tuple[float, ...] = (),
    request: int = 1,
) -> RequestOutcome:
    return RequestOutcome(
        request,
        "mtp" if verified else "none",
        verified,
        accepted,
        accepted + 1,
        cut,
        chances=chances,
        margins=Margins("mtp", bool(chances), margins),
    )


def learn(promises: Promises, result: RequestOutcome) -> float | None:
    assert result.margins is not None
    return promises.learn(result, result.margins)


def test_a_token_that_was_reached_and_kept_out_has_its_chance() -> None:
    promises = Promises()
    chance = learn(promises, outcome((4.0, 0.1, 3.0), verified=1, accepted=1))
    assert chance == pytest.approx(sigmoid(-0.5 + 0.05))
    assert learn(promises, outcome((0.1,), verified=0, accepted=0)) == pytest.approx(
        sigmoid(-0.5 + 0.05)
    )


def test_what_was_not_reached_has_none() -> None:
    promises = Promises()
    assert learn(promises, outcome((4.0, 4.0, 0.1), verified=2, accepted=1)) is None
    assert learn(promises, outcome((4.0, 4.0, 0.1), verified=2, accepted=1, cut=True)) is None
    assert learn(promises, outcome((4.0, 4.0), verified=2, accepted=2)) is None


def test_bars_stand_once_enough_is_known_and_not_in_every_step() -> None:
    promises = Promises()
    step = 1
    while not promises.bars(step, 0.2):
        learn(promises, outcome((2.0, 2.0), verified=2, accepted=1))
        step += 2  # never one without bars
        assert step < 10 * KNOWN
    assert promises.tells("mtp")
    assert promises.bars(step, 0.0) == {}
    assert set(promises.bars(step, 0.2)) == {("mtp", False)}
    without = [n for n in range(4 * WHOLE_EVERY) if not promises.bars(n, 0.2)]
    assert len(without) == 4
    promises.forget("mtp")
    assert not promises.tells("mtp")


def test_sampled_and_greedy_requests_are_told_apart() -> None:
    promises = Promises()
    for _ in range(300):
        learn(promises, outcome((2.0,), verified=1, accepted=1))
        learn(promises, outcome((2.0,), verified=1, accepted=0, chances=(0.1,)))
    bars = promises.bars(1, 0.5)
    assert bars["mtp", False].length([2.0]) == 1
    assert bars["mtp", True].length([2.0]) == 0


@pytest.mark.parametrize("barred", [False, True], ids=["whole", "barred"])
def test_acceptance_is_that_of_all_drafts_although_only_promising_ones_are_verified(
    barred: bool,
) -> None:
    """Without the chances of those kept out, it would be that of the others."""
    rng, model = random.Random(5), Acceptance()
    credit = Credit(model, RequestGuard())
    total, count = 0.0, 0
    for step in range(1, 3000):
        margin = rng.expovariate(0.5)
        chance = truth(min(margin, MOST_MARGIN), True)
        bars = credit.promises.bars(step, 0.6) if barred else {}
        bar = bars.get(("mtp", False))
        verified = 1 if bar is None else bar.length([margin])
        accepted = int(verified and rng.random() < chance)
        credit.step((outcome((margin,), verified, accepted, request=step % 8),), None)
        rate = model.rates(NEW, "mtp", Features(), 1)[0]
        if step > 1000:
            total, count = total + rate, count + 1
    expected = sum(truth(min(rng.expovariate(0.5), MOST_MARGIN), True) for _ in range(4000)) / 4000
    assert total / count == pytest.approx(expected, abs=0.05)
