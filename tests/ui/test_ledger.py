"""The harm ledger of the controller's report as the console tells it."""

from __future__ import annotations

from typing import Any

import pytest

from ui import ledger

PLAIN = {"drafter": "none", "draft_length": 0, "saved_s": 0.0, "low_s": 0.0}
NGRAM = {"drafter": "ngram", "draft_length": 4, "saved_s": 3.0, "low_s": 2.5}


def account(**changes: Any) -> dict[str, Any]:
    return {
        "steps": 8192,
        "tokens": 20000,
        "real_s": 60.0,
        "plain_s": 100.0,
        "saved_s": 40.0,
        "best_static": {**NGRAM, "saved_s": 36.0, "low_s": 30.0},
        "static": [{**NGRAM, "saved_s": 36.0, "low_s": 30.0}, PLAIN],
        **changes,
    }


def test_each_span_with_steps_has_a_row_of_seconds_and_shares() -> None:
    empty = account(steps=0, plain_s=0.0)
    (row,) = ledger.ledger_rows({"ledger": {"window": empty, "total": account()}})
    assert row["Steps"] == "Since the start: 8,192"
    assert (row["Took (s)"], row["Plain decoding (s)"]) == (60.0, 100.0)
    assert (row["Saved"], row["It saves at least"]) == (0.4, 0.3)
    assert row["Best static choice"] == "ngram, D 4"


def test_static_choices_of_the_recent_steps_are_shares_of_plain_decoding() -> None:
    rows = ledger.static_rows({"ledger": {"window": account(), "total": account()}})
    assert [tuple(row.values()) for row in rows] == [
        ("ngram, D 4", 0.36, 0.3),
        ("plain decoding", 0.0, 0.0),
    ]
    assert ledger.static_rows({"ledger": {"window": account(steps=0), "total": account()}}) == []


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "saved 40.0 % against plain decoding (100.0 s)"),
        ({}, "The best static choice, ngram, D 4, would have saved 30.0 % at least."),
        ({"saved_s": -2.0}, "lost 2.0 % against plain"),
        ({"best_static": PLAIN}, "No static choice is sure to have saved anything."),
    ],
)
def test_the_sentence_says_what_was_saved_or_lost(changes: dict[str, Any], said: str) -> None:
    assert said in ledger.sentence({"ledger": {"window": account(**changes)}})


@pytest.mark.parametrize("report", [{}, {"ledger": {}}, {"ledger": {"total": {"steps": 0}}}])
def test_a_report_without_a_ledger_says_nothing(report: dict[str, Any]) -> None:
    assert ledger.sentence(report) == ""
    assert ledger.ledger_rows(report) == ledger.static_rows(report) == []
