"""A match where there is one, else the model."""

from __future__ import annotations

from typing import Any

from controller.contract import Features, Offer, Wish
from tests.controller.policies.stage import Stage, nothing, people, policy
from tests.controller.simulated_engine import request

NAMES = ("ngram", "suffix", "mtp")


def match(number: int, drafter: str, tokens: int) -> Offer:
    return Offer(number, drafter, 16, Features(tokens, 0, "prompt"))


def model(number: int) -> Offer:
    return Offer(number, "mtp", 16)


def picked(*offers: Offer, size: int = 1, **options: Any) -> list[tuple[str, int]]:
    stage = Stage(policy("ngram_else_model", NAMES, models=("mtp",), **options))
    plan = stage.plan(people(size), offers)
    return [(one.drafter, one.length) for one in plan.allotments]


def test_a_match_drafts_and_the_model_where_there_is_none() -> None:
    found = picked(model(0), match(0, "ngram", 3), model(1), size=3)
    assert found == [("ngram", 8), ("mtp", 3), ("none", 0)]


def test_the_first_drafter_with_a_match_goes_before_the_others() -> None:
    assert picked(match(0, "suffix", 9), match(0, "ngram", 3)) == [("ngram", 8)]
    assert picked(match(0, "suffix", 9), match(0, "ngram", 3), matcher="suffix") == [("suffix", 8)]


def test_a_match_must_be_long_enough() -> None:
    offers = (model(0), match(0, "ngram", 3), match(0, "suffix", 4))
    assert picked(*offers, least_match=4) == [("suffix", 8)]
    assert picked(*offers, least_match=5) == [("mtp", 3)]


def test_a_model_that_is_not_loaded_leaves_plain_decoding() -> None:
    assert picked(match(0, "ngram", 3), least_match=4) == [("none", 0)]
    assert picked(model(0), model="draft_model") == [("none", 0)]


def test_a_drafter_asked_for_without_d_gets_the_policys() -> None:
    stage = Stage(policy("ngram_else_model", NAMES, models=("mtp",)))
    asks = request(0, wish=Wish(drafter="mtp"))
    plan = stage.plan([asks], [match(0, "ngram", 9), model(0)])
    assert (plan.allotments[0].drafter, plan.allotments[0].length) == ("mtp", 3)


def test_decisions_follow_whoever_drafts_most() -> None:
    stage = Stage(policy("ngram_else_model", NAMES, models=("mtp",)))
    for _ in range(60):
        stage.step(2, nothing, offers=[match(0, "ngram", 3), match(1, "ngram", 3), model(0)])
    for _ in range(400):
        stage.step(2, nothing, offers=[model(0), model(1)])
    assert [one.drafter for one in stage.opened] == ["ngram", "mtp"]
    assert "lately most drafts are by mtp" in stage.opened[-1].sentence
