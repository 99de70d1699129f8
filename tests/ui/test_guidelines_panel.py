"""The guidelines panel: rows and charts from a controller's own report."""

from __future__ import annotations

from html import escape

import pytest

from tests.controller.mixed_engine import MixedWorld
from ui.panels import guidelines


@pytest.fixture(scope="module")
def report() -> dict[str, object]:
    return MixedWorld(size=4, suffix=lambda request: (0.4, 0.8)).run(60).controller.report()


def test_every_guideline_has_a_row_with_its_numbers_and_source(report: dict[str, object]) -> None:
    rows = guidelines.guideline_rows(report)
    titles = [row["Guideline"] for row in rows]
    assert titles[:2] == ["Compute-bound knee", "Free attention"]
    assert "Speed-up and its ceiling" in titles
    assert {"Mechanism: suffix", "Mechanism: draft_model"} <= set(titles)
    assert all(row["Here"] and row["Source"] for row in rows)


def test_the_table_has_every_sentence_whole(report: dict[str, object]) -> None:
    rows = guidelines.guideline_rows(report)
    table = guidelines.guideline_table(rows)
    assert all(escape(row["Here"]) in table and escape(row["Source"]) in table for row in rows)


def test_the_charts_mark_each_peak_and_each_winner(report: dict[str, object]) -> None:
    curves, winners = guidelines.speedup_rows(report), guidelines.mechanism_rows(report)
    assert sum(row["peak"] for row in curves) == 2
    best = {row["requests"]: row for row in winners if row["wins"]}
    assert best
    for size, row in best.items():
        assert row["speedup"] == max(r["speedup"] for r in winners if r["requests"] == size)
    for chart in (guidelines.speedup_chart(curves), guidelines.mechanism_chart(winners)):
        text = chart.to_json()
        assert "Speed-up over plain decoding" in text


def test_the_note_names_the_ceiling(report: dict[str, object]) -> None:
    assert "1 / alpha = " in guidelines.speedup_note(report)
    assert "1 / alpha" not in guidelines.speedup_note({})


def test_a_report_of_an_older_server_gives_nothing_to_draw() -> None:
    assert guidelines.speedup_rows({}) == guidelines.mechanism_rows({}) == []
    assert guidelines.guideline_rows({}) == []


def test_without_a_winner_the_chart_has_no_ring(report: dict[str, object]) -> None:
    losers = [{**row, "wins": False} for row in guidelines.mechanism_rows(report)]
    assert guidelines.mechanism_chart(losers).to_json()
