"""Charts of a benchmark's rows: speed-up and regret with intervals, acceptance by position."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import pandas as pd

from ui import charts, palette
from ui.benchmarks.facts import ALL

Json = Mapping[str, Any]
Row = dict[str, Any]

TOGETHER = "all together"
LINE_PX = 17
"""Pixels of one arm's line in a chart of intervals."""
FRAME_PX = 104
"""Pixels of its legend, axis and margins."""
DASHES = ([1, 0], [6, 3], [2, 3], [8, 3, 2, 3])


def ratio_rows(rows: Sequence[Json], field: str, without: str = "") -> list[Row]:
    """category, arm, value, low, high of a ratio of the rows (`speedup` or `regret`), without those
    of the arm that it is 1 for by definition."""
    found: list[Row] = []
    for row in rows:
        ratio = row.get(field)
        if not isinstance(ratio, Mapping) or row.get("mode") == without:
            continue
        value = ratio.get("value")
        low, high = ratio.get("low"), ratio.get("high")
        category = TOGETHER if row.get("category") == ALL else row.get("category")
        found.append(
            {
                "category": category,
                "arm": row.get("mode"),
                "value": value,
                "low": value if low is None else low,
                "high": value if high is None else high,
            }
        )
    return found


def ratios(
    rows: Sequence[Row], colours: Mapping[str, str], title: str, mark: float, *, share: bool = False
) -> alt.LayerChart:
    """A dot with its interval per category and arm, over a dashed line at `mark`. rows: as
    ratio_rows gives them. share: the values are shares, shown in percent."""
    arms = list(dict.fromkeys(row["arm"] for row in rows))
    categories = list(dict.fromkeys(row["category"] for row in rows))
    form = "+.1%" if share else ".2f"
    axis = alt.Axis(format="+%" if share else ".3~r", tickCount=6, titlePadding=charts.PADDING)
    x = alt.X("value:Q", title=title, scale=alt.Scale(zero=False, padding=10), axis=axis)
    y = alt.Y("category:N", title=None, sort=categories, axis=alt.Axis(labelLimit=160))
    offset = alt.YOffset("arm:N", sort=arms)
    scale = alt.Scale(domain=arms, range=[colours.get(arm, palette.MUTED) for arm in arms])
    colour = alt.Color("arm:N", scale=scale, legend=charts.legend())
    tooltip = [
        alt.Tooltip("category:N", title="Category"),
        alt.Tooltip("arm:N", title="Arm"),
        alt.Tooltip("value:Q", title=title, format=form),
        alt.Tooltip("low:Q", title="Low", format=form),
        alt.Tooltip("high:Q", title="High", format=form),
    ]
    base = charts.frame(rows, "category", "arm", "value", "low", "high")
    whisker = base.mark_rule(strokeWidth=2, opacity=1).encode(
        x=alt.X("low:Q", title=title, axis=axis),
        x2="high:Q",
        y=y,
        yOffset=offset,
        color=colour,
        tooltip=tooltip,
    )
    dot = base.mark_circle(size=80, opacity=1).encode(
        x=x, y=y, yOffset=offset, color=colour, tooltip=tooltip
    )
    zero = alt.Chart(pd.DataFrame([{"value": mark}])).mark_rule(
        color=palette.MUTED, strokeDash=[4, 4]
    )
    height = LINE_PX * len(arms) * len(categories) + FRAME_PX
    return charts.sized(zero.encode(x="value:Q") + whisker + dot, height)


def position_rows(rows: Sequence[Json]) -> list[Row]:
    """arm, drafter, position, rate, reached, accepted: conditional acceptance of each drafter in
    each arm, all categories together."""
    return [
        {"arm": row.get("mode"), "drafter": drafter, **place}
        for row in rows
        if row.get("category") == ALL
        for drafter, places in (row.get("conditional") or {}).items()
        for place in places
    ]


def positions(rows: Sequence[Row]) -> alt.Chart:
    """Conditional acceptance by draft position: colour is the drafter, the stroke the arm."""
    names = list(dict.fromkeys(row["drafter"] for row in rows))
    arms = list(dict.fromkeys(row["arm"] for row in rows))
    colours = [palette.drafter_colour(name) for name in names]
    dashes = [DASHES[place % len(DASHES)] for place in range(len(arms))]
    chart = charts.frame(rows, "arm", "drafter", "position", "rate", "reached")
    chart = chart.mark_line(strokeWidth=2, point=alt.OverlayMarkDef(size=35)).encode(
        x=_places("position", "Draft position"),
        y=_share("rate", "Conditional acceptance"),
        color=alt.Color(
            "drafter:N",
            scale=alt.Scale(domain=names, range=colours),
            legend=charts.legend("Drafter"),
        ),
        strokeDash=alt.StrokeDash(
            "arm:N",
            scale=alt.Scale(domain=arms, range=dashes),
            legend=charts.legend("Arm", dashed=True),
        ),
        tooltip=[
            alt.Tooltip("arm:N", title="Arm"),
            alt.Tooltip("drafter:N", title="Drafter"),
            alt.Tooltip("position:O", title="Position"),
            alt.Tooltip("rate:Q", title="Accepted", format=".1%"),
            alt.Tooltip("reached:Q", title="Times reached", format=",.0f"),
        ],
    )
    return charts.sized(chart, 260)


def _places(field: str, title: str) -> alt.X:
    """Small whole numbers, each with its label."""
    return alt.X(
        f"{field}:O", title=title, axis=alt.Axis(labelAngle=0, titlePadding=charts.PADDING)
    )


def _share(field: str, title: str) -> alt.Y:
    """From 0 to 100 %."""
    return alt.Y(
        f"{field}:Q", title=title, scale=alt.Scale(domain=[0, 1]), axis=charts.percent_axis()
    )


def joint_rows(rows: Sequence[Json]) -> list[Row]:
    """arm, accepted, share: share of verify steps that accepted at least so many tokens."""
    return [
        {"arm": row.get("mode"), "accepted": count, "share": share}
        for row in rows
        if row.get("category") == ALL
        for count, share in enumerate(row.get("joint") or (), 1)
    ]


def joint(rows: Sequence[Row], colours: Mapping[str, str]) -> alt.Chart:
    arms = list(dict.fromkeys(row["arm"] for row in rows))
    scale = alt.Scale(domain=arms, range=[colours.get(arm, palette.MUTED) for arm in arms])
    chart = charts.frame(rows, "arm", "accepted", "share")
    chart = chart.mark_line(strokeWidth=2, point=alt.OverlayMarkDef(size=35)).encode(
        x=_places("accepted", "At least so many accepted tokens"),
        y=_share("share", "Share of verify steps"),
        color=alt.Color("arm:N", scale=scale, legend=charts.legend("Arm")),
        tooltip=[
            alt.Tooltip("arm:N", title="Arm"),
            alt.Tooltip("accepted:O", title="At least"),
            alt.Tooltip("share:Q", title="Share", format=".1%"),
        ],
    )
    return charts.sized(chart, 260)
