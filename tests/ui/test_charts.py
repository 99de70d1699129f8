"""Charts: units on the axes, one colour per drafter, and specifications that compile."""

from __future__ import annotations

from typing import Any

import pytest

from ui import charts, palette

SECONDS = [{"ago": -1.0, "tokens_per_s": 100.0}, {"ago": 0.0, "tokens_per_s": None}]
SHARES = [
    {"ago": 0.0, "drafter": "ngram", "share": 0.7},
    {"ago": 0.0, "drafter": "none", "share": 0.3},
]
POSITIONS = [
    {"drafter": "ngram", "position": 1, "rate": 0.8, "reached": 10},
    {"drafter": "ngram", "position": 2, "rate": 0.6, "reached": 8},
]
POINTS = [
    {"requests": 1, "rows": rows, "context_len": context, "ms": 10.0 + rows}
    for rows in (1, 2, 4)
    for context in (128, 1024)
]
CANDIDATES = [
    {"drafter": "none", "draft_length": 0, "goodput": 50.0, "low": 45.0, "high": 55.0},
    {"drafter": "ngram", "draft_length": 4, "goodput": 80.0, "low": 70.0, "high": 90.0},
]
LABELLED = [
    {**row, "label": f"{row['drafter']}, D {row['draft_length']}", "won": row["goodput"] > 60}
    for row in CANDIDATES
]


def axis_titles(spec: Any) -> set[str]:
    """All titles of x and y axes anywhere in a specification."""
    found: set[str] = set()
    if isinstance(spec, dict):
        for name, value in spec.items():
            if name in ("x", "y") and isinstance(value, dict) and value.get("title"):
                found.add(value["title"])
            found |= axis_titles(value)
    elif isinstance(spec, list):
        for value in spec:
            found |= axis_titles(value)
    return found


@pytest.mark.parametrize(
    ("chart", "titles"),
    [
        (
            charts.over_time(SECONDS, "tokens_per_s", "Tokens/s"),
            {"Seconds before now", "Tokens/s"},
        ),
        (
            charts.load([{"ago": 0.0, "state": "running", "requests": 2}]),
            {"Seconds before now", "Requests"},
        ),
        (charts.drafter_share(SHARES), {"Seconds before now", "Request-steps"}),
        (charts.acceptance(POSITIONS), {"Draft position", "Conditional acceptance"}),
        (charts.cost(POINTS), {"Rows of a step (1 + D per request)", "Verify step (ms)"}),
        (
            charts.what_if(CANDIDATES, CANDIDATES[1]),
            {"Draft length D (tokens)", "Goodput (tokens/s)"},
        ),
        (charts.candidates(LABELLED), {"Predicted goodput (tokens/s)"}),
    ],
    ids=["over_time", "load", "drafter_share", "acceptance", "cost", "what_if", "candidates"],
)
def test_every_axis_names_its_quantity_and_unit(chart: Any, titles: set[str]) -> None:
    assert axis_titles(chart.to_dict()) >= titles


@pytest.mark.parametrize("value", [0.0, None])
def test_a_line_at_zero_has_a_scale(value: float | None) -> None:
    chart = charts.over_time([{"ago": 0.0, "D": value}], "D", "Mean D (tokens)").to_dict()
    for layer in chart["layer"]:
        assert layer["encoding"]["y"]["scale"]["domain"] == [0, 1]
        assert layer["encoding"]["y"]["axis"]["values"] == [0, 1]


def test_a_drafter_has_the_same_colour_in_every_chart() -> None:
    for chart in (charts.drafter_share(SHARES), charts.what_if(CANDIDATES, None)):
        text = chart.to_json()
        assert palette.DRAFTER_COLOURS["none"] in text
        assert palette.DRAFTER_COLOURS["ngram"] in text


def test_an_unknown_drafter_gets_a_colour_that_stays() -> None:
    colour = palette.drafter_colour("lookahead")
    assert colour in palette.OTHER_COLOURS
    assert palette.drafter_colour("lookahead") == colour


def test_seconds_without_a_value_stay_gaps() -> None:
    chart = charts.over_time(SECONDS, "tokens_per_s", "Tokens/s").to_dict()
    (rows,) = chart["datasets"].values()
    assert [row["value"] for row in rows] == [100.0, None]


@pytest.mark.parametrize(
    ("values", "dots"),
    [
        ([3.0], [3.0]),
        ([None, 3.0, None, 4.0], [None, 3.0, None, 4.0]),
        ([3.0, 4.0, None, 0.0, None], [None, None, None, 0.0, None]),
        ([None, None], [None, None]),
    ],
)
def test_a_second_between_two_gaps_is_a_dot(
    values: list[float | None], dots: list[float | None]
) -> None:
    rows = [{"ago": float(at - len(values)), "D": value} for at, value in enumerate(values)]
    chart = charts.over_time(rows, "D", "Mean D (tokens)", step=True).to_dict()
    (layer,) = [one for one in chart["layer"] if one["mark"]["type"] == "circle"]
    field = layer["encoding"]["y"]["field"]
    (drawn,) = chart["datasets"].values()
    assert [row[field] for row in drawn] == dots
