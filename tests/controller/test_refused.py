"""Drafts that ended before a token that a grammar ruled out: it counts as one that was rejected."""

from __future__ import annotations

import pytest

from controller.acceptance import Acceptance
from controller.contract import Features, Margins, Part, RequestOutcome
from controller.credit import Credit, Planned
from controller.guards import RequestGuard
from controller.mixing import FULL, TAIL, fill_key, tail_key

FOUND = Features(4, 1, "output")


def credited(*results: RequestOutcome, times: int = 200, tail: int = 0) -> Acceptance:
    """What is known after these outcomes again and again, each of another request."""
    model = Acceptance()
    credit = Credit(model, RequestGuard())
    for number in range(times):
        for result in results:
            planned = Planned(0.0, tails={result.request: tail} if tail else {})
            credit.step((result,), planned)
        if number % 20 == 0:
            model.rates(1, "ngram", FOUND, 4)
    return model


def rates(model: Acceptance, drafter: str, features: Features = FOUND) -> list[float]:
    return model.rates(99, drafter, features, 4)


def test_a_first_token_that_was_ruled_out_is_a_miss() -> None:
    ended = RequestOutcome(1, "none", 0, 0, 1, features=FOUND, refused="ngram")
    assert rates(credited(ended), "ngram")[0] < 0.1


def test_a_later_one_is_a_miss_at_its_place() -> None:
    ended = RequestOutcome(1, "ngram", 2, 2, 3, features=FOUND, refused="ngram")
    first, second, third, _ = rates(credited(ended), "ngram")
    assert min(first, second) > 0.9
    assert third < 0.1


def test_behind_a_wrong_token_it_was_not_reached() -> None:
    wrong = RequestOutcome(1, "ngram", 2, 1, 2, features=FOUND)
    ended = RequestOutcome(1, "ngram", 2, 1, 2, features=FOUND, refused="ngram")
    assert rates(credited(ended), "ngram") == rates(credited(wrong), "ngram")


def test_where_the_text_ended_it_was_not_reached_either() -> None:
    cut = RequestOutcome(1, "ngram", 2, 2, 2, cut=True, features=FOUND)
    ended = RequestOutcome(1, "ngram", 2, 2, 2, cut=True, features=FOUND, refused="ngram")
    assert rates(credited(ended), "ngram") == rates(credited(cut), "ngram")


def test_chances_of_what_was_verified_stay_and_its_own_is_none() -> None:
    ended = RequestOutcome(1, "ngram", 1, 1, 2, features=FOUND, chances=(0.5,), refused="ngram")
    first, second, *_ = rates(credited(ended), "ngram")
    assert first == pytest.approx(0.5, abs=0.05)
    assert second < 0.1


def test_a_head_that_ended_so_says_nothing_of_its_tail() -> None:
    parts = Part("mtp", 2, 2), Part("ngram", 0, 0)
    ended = RequestOutcome(1, "mtp", 2, 2, 3, parts=parts, refused="mtp")
    model, fresh = credited(ended, tail=3), Acceptance()
    assert rates(model, "mtp", Features())[2] < 0.1
    for key, features in ((fill_key("ngram"), FULL), (tail_key("ngram"), TAIL)):
        assert rates(model, key, features) == pytest.approx(rates(fresh, key, features))


def test_a_tail_that_ended_so_was_filled_and_missed() -> None:
    parts = Part("mtp", 2, 2), Part("ngram", 1, 1)
    ended = RequestOutcome(1, "mtp", 3, 3, 4, parts=parts, refused="ngram")
    model = credited(ended, tail=2)
    assert min(rates(model, "mtp", Features())[:2]) > 0.9
    first, second, *_ = rates(model, tail_key("ngram"), TAIL)
    assert first > 0.9
    assert second < 0.1
    assert min(rates(model, fill_key("ngram"), FULL)[:2]) > 0.9


def test_a_models_margin_there_promised_too_much() -> None:
    """It is no token that a bar kept out, whose chance would be the predicted one."""
    credit = Credit(Acceptance(), RequestGuard())
    margins = Margins("mtp", False, (5.0, 5.0))
    for _ in range(400):
        credit.step((RequestOutcome(1, "none", 0, 0, 1, margins=margins, refused="mtp"),), None)
    (bar,) = credit.promises.bars(1, 0.5).values()
    assert bar.length((5.0,)) == 0
