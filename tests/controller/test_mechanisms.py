"""The report on mechanisms and the guidelines with live numbers."""

from __future__ import annotations

import json

import pytest

from controller.acceptance import Acceptance
from controller.advice import advice
from controller.contract import CostPoint, Features
from controller.controller import AdaptiveController
from controller.cost import CostModel
from controller.mechanisms import Mechanism, mechanisms, when
from controller.outlook import Outlook

SERIAL, FREE = "draft_model", "ngram"


def models(row_ms: float = 0.05) -> tuple[CostModel, Acceptance]:
    """Plain steps of 10 ms; rows beyond 64 cost ten times as much. The model is right nine times in
    ten at .5 ms a token, the n-grams half of the time for nothing."""
    points = [
        CostPoint(n, rows, 128, 10.0 + row_ms * min(rows, 64) + 10 * row_ms * max(rows - 64, 0))
        for n in (1, 8, 64, 128)
        for rows in (n, n + 8, 64, 65, 200, 2000)
        if rows >= n
    ]
    cost, acceptance = CostModel(points), Acceptance()
    cost.expect(SERIAL, 0.05)
    for i in range(200):
        acceptance.learn(1, SERIAL, Features(), 8, 0 if i % 10 == 0 else 8)
        acceptance.learn(1, FREE, Features(4, 1, "prompt"), 8, 0 if i % 2 else 2)
    return cost, acceptance


def report(found: list[Mechanism]) -> dict[tuple[str, int], Mechanism]:
    return {(one.drafter, one.requests): one for one in found}


def test_the_mechanism_changes_with_the_batch() -> None:
    cost, acceptance = models()
    found = mechanisms([SERIAL, FREE], 16, 128, Outlook(cost, acceptance, lambda name: 1.0))
    by = report(found)
    assert by[SERIAL, 1].wins
    assert by[SERIAL, 1].draft_length > by[FREE, 1].draft_length
    assert by[SERIAL, 1].draft_ms > by[FREE, 1].draft_ms == 0.0
    assert not by[SERIAL, 128].wins
    assert not by[FREE, 128].wins
    for size in {one.requests for one in found}:
        assert sum(one.wins for one in found if one.requests == size) <= 1
        best = max((one for one in found if one.requests == size), key=lambda one: one.speedup)
        assert best.wins == (best.speedup > 1.01)


def test_a_drafter_with_few_drafts_to_offer_counts_for_little() -> None:
    cost, acceptance = models()
    often, rarely = (
        report(
            mechanisms([FREE], 16, 128, Outlook(cost, acceptance, lambda name, share=share: share))
        )
        for share in (1.0, 0.1)
    )
    assert 1.0 < rarely[FREE, 8].speedup < often[FREE, 8].speedup
    assert rarely[FREE, 8].acceptance_length == pytest.approx(often[FREE, 8].acceptance_length, 0.5)


def test_the_sentences_say_where_each_wins_and_what_rests_on_priors() -> None:
    cost, acceptance = models()
    names = [SERIAL, FREE, "unseen"]
    found = mechanisms(names, 16, 128, Outlook(cost, acceptance, lambda name: 1.0))
    said = when(found, {name: acceptance.evidence(name) for name in names})
    assert said[SERIAL].startswith("Wins at 1 to ")
    assert "of drafting" in said[SERIAL]
    assert said[FREE].startswith("Wins at no batch size here")
    assert said["unseen"].endswith("this rests on priors.")
    assert "priors" not in said[SERIAL]
    assert said["none"].endswith("128 requests.")


def test_without_drafters_or_lengths_there_is_nothing_to_report() -> None:
    cost, acceptance = models()
    outlook = Outlook(cost, acceptance, lambda name: 1.0)
    assert mechanisms([], 16, 128, outlook) == []
    assert mechanisms([FREE], 0, 128, outlook) == []
    assert when([], {}) == {}


def test_the_guidelines_carry_the_live_numbers() -> None:
    cost, acceptance = models()
    found = advice([SERIAL, FREE], 4, 128, 3, cost, acceptance)
    rules = {one["code"]: one for one in found["guidelines"]}  # type: ignore[union-attr,index]
    assert set(rules) == {"knee", "attention", "tiles", "latency", "speedup"}
    assert "3 query heads" in rules["attention"]["sentence"]
    assert rules["tiles"]["numbers"]["edges"] == [41, 84]
    assert rules["latency"]["numbers"]["rho"][SERIAL] == pytest.approx(0.05, rel=0.02)
    curves = found["speedup"]
    assert isinstance(curves, dict)
    for curve in curves.values():
        assert curve["speedup"][0] == 1.0
        assert max(curve["speedup"]) == pytest.approx(curve["peak"]["speedup"], abs=1e-4)
        assert curve["ceiling"] >= max(curve["speedup"])
    json.dumps(found)


def test_a_slower_machine_moves_the_knee() -> None:
    knees = []
    for row_ms in (0.02, 0.2):
        cost, acceptance = models(row_ms)
        found = advice([], 1, 128, None, cost, acceptance)
        knees.append(found["guidelines"][0]["numbers"]["knee_rows"])  # type: ignore[index]
        assert len(found["guidelines"]) == 2  # type: ignore[arg-type]
    assert knees[0] > 5 * knees[1]


def test_the_report_of_a_controller_that_saw_nothing_is_complete() -> None:
    found = AdaptiveController([FREE], CostModel(), group=8).report()
    text = json.dumps(found["guidelines"])
    assert "31 for G = 4" not in text
    assert "= 15" in text
    assert json.dumps(found["mechanisms"])
