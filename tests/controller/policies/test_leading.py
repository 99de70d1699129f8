"""The most used drafter and the mean D of plans that differ from request to request."""

from __future__ import annotations

from typing import Any

from controller.contract import NONE, Allotment
from controller.policies.leading import Leading
from tests.controller.policies.stage import Stage, people, policy


def drafts(name: str, length: int = 4, of: int = 1) -> list[Allotment]:
    """One of so many requests drafts."""
    return [Allotment(0, name, length), *[Allotment(i, NONE, 0) for i in range(1, of)]]


def test_it_follows_a_drafter_that_clearly_took_over() -> None:
    leading = Leading()
    leading.add(drafts("ngram"))
    assert (leading.drafter, leading.length) == ("ngram", 4.0)
    for _ in range(200):
        leading.add(drafts("mtp", 8))
    assert leading.drafter == "mtp"
    assert 4.0 < leading.length <= 8.0


def test_a_step_without_requests_of_ones_own_changes_nothing() -> None:
    leading = Leading()
    leading.add(drafts("ngram"))
    before = leading.describe()
    leading.add([])
    assert leading.describe() == before


def test_one_of_very_many_is_counted_and_one_that_is_used_no_more_is_dropped() -> None:
    leading = Leading()
    leading.add(drafts("ngram"))
    for _ in range(1000):
        leading.add(drafts("mtp", of=500))
    shares: Any = leading.describe()["shares"]
    assert shares == {"mtp": 0.002}


def test_a_drafter_that_left_leads_no_more() -> None:
    leading = Leading()
    leading.add(drafts("ngram"))
    leading.forget("ngram")
    assert (leading.drafter, leading.length) == (NONE, 0.0)
    assert leading.describe()["shares"] == {}
    for name in ("ngram_else_model", "margin_verify"):
        subject = policy(name)
        stage = Stage(subject)
        for _ in range(20):
            stage.step(2)
        subject.remove_drafter("ngram")
        stage.plan(people(2), [])
        assert subject.take_decisions()[-1].drafter == NONE
