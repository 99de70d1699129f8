"""The charts of a benchmark: their rows, and specifications that compile with titled axes."""

from __future__ import annotations

from typing import Any

import pytest

from tests import measured
from ui import palette
from ui.benchmarks import plots

COLOURS = palette.arm_colours(measured.SPEEDS)


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    return measured.rows()


def test_the_base_arm_is_no_dot_of_the_speed_ups(rows: list[dict[str, Any]]) -> None:
    found = plots.ratio_rows(rows, "speedup", "none")
    assert [row["arm"] for row in found] == ["ngram:4", "auto"] * 3
    assert [row["category"] for row in found[::2]] == ["writing", "coding", plots.TOGETHER]
    assert all(row["low"] <= row["value"] <= row["high"] for row in found)
    text = plots.ratios(found, COLOURS, "Speed-up over none (×)", 1.0).to_json()
    assert "Speed-up over none (×)" in text
    assert palette.INK in text  # auto


def test_the_best_static_arm_has_no_regret(rows: list[dict[str, Any]]) -> None:
    assert {row["arm"] for row in plots.ratio_rows(rows, "regret")} == {"none", "auto"}


def test_without_an_interval_the_whisker_has_no_length() -> None:
    row = {"mode": "auto", "category": "all", "speedup": {"value": 1.5, "low": None, "high": None}}
    assert plots.ratio_rows([row], "speedup")[0] == {
        "category": plots.TOGETHER, "arm": "auto", "value": 1.5, "low": 1.5, "high": 1.5,
    }  # fmt: skip


def test_acceptance_by_position_is_of_all_categories_together(rows: list[dict[str, Any]]) -> None:
    found = plots.position_rows(rows)
    assert [(row["arm"], row["position"], row["rate"]) for row in found] == [
        ("ngram:4", 1, 0.75), ("ngram:4", 2, 0.5), ("auto", 1, 0.75), ("auto", 2, 0.5),
    ]  # fmt: skip
    assert "Conditional acceptance" in plots.positions(found).to_json()


def test_the_joint_curve_sums_to_the_acceptance_length(rows: list[dict[str, Any]]) -> None:
    found = [row for row in plots.joint_rows(rows) if row["arm"] == "auto"]
    assert 1 + sum(row["share"] for row in found) == pytest.approx(1.9)
    assert "At least so many accepted tokens" in plots.joint(found, COLOURS).to_json()


def test_rows_of_another_program_give_nothing_to_draw() -> None:
    rows = [{"mode": "auto", "tokens_per_s": 5.5, "category": "all"}]
    assert plots.ratio_rows(rows, "speedup") == []
    assert plots.position_rows(rows) == plots.joint_rows(rows) == []
