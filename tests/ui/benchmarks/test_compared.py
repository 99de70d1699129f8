"""Two runs side by side."""

from __future__ import annotations

from typing import Any

import pytest

from tests import measured
from ui.benchmarks import compared


def with_speedup(low: float | None, high: float | None) -> dict[str, Any]:
    return {"speedup": {"value": 1.0, "low": low, "high": high}}


@pytest.mark.parametrize(
    ("one", "other", "said"),
    [
        ((1.3, 1.5), (1.0, 1.2), compared.FASTER),
        ((0.8, 0.9), (1.0, 1.2), compared.SLOWER),
        ((1.0, 1.3), (1.2, 1.5), compared.UNCLEAR),
        ((None, None), (1.0, 1.2), "–"),
    ],
)
def test_runs_differ_where_their_intervals_do_not_meet(
    one: tuple[float | None, float | None], other: tuple[float | None, float | None], said: str
) -> None:
    pair = compared.Pair("", "all", "auto", with_speedup(*one), with_speedup(*other))
    assert compared.verdict(pair) == said


def test_only_what_both_runs_have_is_compared() -> None:
    here, there = measured.rows((1, 4)), measured.rows((4,))
    found = compared.pairs(here, there)
    assert {pair.load for pair in found} == {"4 at once"}
    assert len(found) == len(there)
    assert compared.pairs(here, []) == []


def test_the_table_has_this_run_and_in_brackets_the_other_one() -> None:
    here = measured.rows()
    there = [{**row, "tokens_per_s": row["tokens_per_s"] / 2} for row in here]
    html = compared.table(compared.pairs(here, there), "none", {})
    assert '<td class="num">+100 %</td>' in html
    assert "1.53 × (1.53 ×)\n" in html
    assert "1.90 (1.90)" in html
    assert "no clear difference" in html
    assert "Load</th>" not in html
    several = compared.pairs(measured.rows((1, 4)), measured.rows((1, 4)))
    assert "Load</th>" in compared.table(several, "none", {})
