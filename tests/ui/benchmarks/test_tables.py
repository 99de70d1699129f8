"""The tables of a benchmark: what they hold, and that texts of others stay text."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests import measured
from ui import palette
from ui.benchmarks import tables

COLOURS = palette.arm_colours(measured.SPEEDS)


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    return measured.rows()


def cells(html: str) -> list[list[str]]:
    """The text of each body cell by line."""
    lines = re.findall(r"<tr[^>]*>(.*?)</tr>", html.split("<tbody>")[1], re.DOTALL)
    return [
        [re.sub(r"<[^>]+>", "", one) for one in re.findall(r"<td.*?</td>", x, re.DOTALL)]
        for x in lines
    ]


def heads(html: str) -> list[str]:
    return re.findall(r"<th[^>]*>(.*?)</th>", html, re.DOTALL)


def test_the_speed_table_has_a_row_per_category_and_arm(rows: list[dict[str, Any]]) -> None:
    html = tables.speed(rows, "none", COLOURS)
    found = cells(html)
    assert [line[:2] for line in found] == [
        [category if place == 0 else "", arm]
        for category in ("writing", "coding", "all together")
        for place, arm in enumerate(measured.SPEEDS)
    ]
    assert heads(html)[2:5] == [
        "Tokens/s",
        "Speed-up over none\n95 % interval",
        "Regret\n95 % interval",
    ]
    auto = dict(zip(heads(html), found[-1], strict=True))
    speedup = auto["Speed-up over none\n95 % interval"]
    assert re.fullmatch(r"1.53 ×\n1\.\d+ … 1\.\d+", speedup)
    assert auto["Best static"] == "ngram:4"
    regret = auto["Regret\n95 % interval"]
    assert re.fullmatch(r"-12.6 %\n-\d+\.\d % … -\d+\.\d %", regret)
    assert auto["Same text"] == "100 %"
    assert auto["Failed"] == "0"


def test_goodput_is_shown_where_a_target_was_set(rows: list[dict[str, Any]]) -> None:
    assert "Goodput\n(tokens/s)" in heads(tables.speed(rows, "none", COLOURS))
    without = [{**row, "goodput_per_s": None} for row in rows]
    assert "Goodput\n(tokens/s)" not in heads(tables.speed(without, "none", COLOURS))


def test_the_latency_table_has_the_quantiles(rows: list[dict[str, Any]]) -> None:
    html = tables.latency(rows, COLOURS)
    plain = dict(zip(heads(html), cells(html)[-3], strict=True))
    assert (plain["TTFT p50"], plain["TTFT p99"]) == ("40", "40")
    assert (plain["TPOT p50"], plain["TPOT p99"]) == ("24.0", "30.0")
    assert plain["ITL p50"] == "20.0"


def test_the_drafting_table_tells_who_drafted(rows: list[dict[str, Any]]) -> None:
    last = cells(tables.drafting(rows, COLOURS))[-1]
    assert last[2:] == ["1.90", "22 %", "ngram 80 %, none 20 %"]


def test_failures_are_told_by_kind() -> None:
    assert tables.failed({"failed": 3, "failures": {"cut": 2, "stalled": 1}}) == (
        "3 (cut 2, stalled 1)"
    )


def test_rows_of_another_program_are_dashes_and_their_texts_stay_text() -> None:
    rows = [{"mode": "<b>x</b>", "category": "<i>y</i>", "tokens_per_s": 5.5, "speedup": None}]
    for html in (
        tables.speed(rows, "<u>none</u>", {}),
        tables.latency(rows, {}),
        tables.drafting(rows, {}),
    ):
        assert "&lt;b&gt;x&lt;/b&gt;" in html
        assert "&lt;i&gt;y&lt;/i&gt;" in html
        assert not re.search(r"<[biu]>", html)
        assert "–" in html


def test_an_interval_needs_both_ends() -> None:
    assert tables.interval({"low": None, "high": None}, "{:.2f}") == "–"
    assert tables.interval({"low": -0.5, "high": 0.25}, "{:+.1%}") == "-50.0 % … +25.0 %"
