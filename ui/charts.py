"""Charts of the console: Altair, axis titles with units, one colour per drafter everywhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt
import pandas as pd

from ui import palette

Row = dict[str, Any]

HEIGHT = 200
"""Pixels of every chart in a card."""

RARE = 10
"""A rate over fewer drafts than this says little."""

PADDING = 8
"""Pixels between axis labels and axis title."""

LOAD_COLOURS = {"running": palette.ACCENT, "waiting": palette.BONUS}


def over_time(
    rows: Sequence[Row],
    field: str,
    title: str,
    colour: str = palette.ACCENT,
    *,
    share: bool = False,
    step: bool = False,
    span_s: int = 300,
) -> alt.Chart | alt.LayerChart:
    """A line with a shaded area over the last seconds, a dot for a second between two gaps. rows
    have `ago`, in its order, and the field; a None leaves a gap. share: the values are 0..1, shown
    in percent. step: draw steps, not a curve."""
    interpolate = "step-after" if step else "monotone"
    values = [row.get(field) for row in rows]
    data = [
        {"ago": row["ago"], "value": value, "alone": value if alone else None}
        for row, value, alone in zip(rows, values, _alone(values), strict=True)
    ]
    flat = not any(row["value"] for row in data)  # without a domain its labels would be NaN
    scale = alt.Scale(domain=[0, 1]) if share or flat else alt.Scale(zero=True, nice=True)
    axis = percent_axis() if share else alt.Axis(format="~s", tickCount=4, titlePadding=PADDING)
    if flat and not share:
        axis = alt.Axis(values=[0, 1], titlePadding=PADDING)
    base = frame(data, "ago", "value", "alone").encode(
        x=_ago(span_s),
        y=alt.Y("value:Q", title=title, scale=scale, axis=axis),
        tooltip=[
            alt.Tooltip("ago:Q", title="Seconds ago", format=".0f"),
            alt.Tooltip("value:Q", title=title, format=".1%" if share else ",.1f"),
        ],
    )
    area = base.mark_area(color=colour, opacity=0.13, interpolate=interpolate)
    line = base.mark_line(color=colour, strokeWidth=2, interpolate=interpolate)
    dots = base.mark_circle(color=colour, size=20, opacity=1).encode(
        y=alt.Y("alone:Q", title=title, scale=scale, axis=axis)
    )
    return sized(area + line + dots)


def load(rows: Sequence[Row], span_s: int = 300) -> alt.Chart | alt.LayerChart:
    """Requests running and waiting. rows: ago, state, requests."""
    chart = (
        frame(rows, "ago", "state", "requests")
        .mark_area(interpolate="step-after", opacity=0.75)
        .encode(
            x=_ago(span_s),
            y=alt.Y(
                "requests:Q",
                title="Requests",
                axis=alt.Axis(tickMinStep=1, tickCount=4, titlePadding=PADDING),
            ),
            color=alt.Color(
                "state:N",
                scale=alt.Scale(domain=list(LOAD_COLOURS), range=list(LOAD_COLOURS.values())),
                legend=None,
            ),
            order=alt.Order("state:N"),
            tooltip=[
                alt.Tooltip("ago:Q", title="Seconds ago", format=".0f"),
                alt.Tooltip("state:N", title="State"),
                alt.Tooltip("requests:Q", title="Requests"),
            ],
        )
    )
    return sized(chart)


def drafter_share(rows: Sequence[Row], span_s: int = 300) -> alt.Chart | alt.LayerChart:
    """Share of request-steps by drafter, stacked to 100 %. rows: ago, drafter, share."""
    chart = (
        frame(rows, "ago", "drafter", "share")
        .mark_bar(size=2.4 * 300 / span_s)
        .encode(
            x=_ago(span_s),
            y=alt.Y(
                "share:Q",
                title="Request-steps",
                stack="normalize",
                axis=percent_axis(),
            ),
            color=_by_drafter(rows),
            tooltip=[
                alt.Tooltip("ago:Q", title="Seconds ago", format=".0f"),
                alt.Tooltip("drafter:N", title="Drafter"),
                alt.Tooltip("share:Q", title="Share", format=".0%"),
            ],
        )
    )
    return sized(chart)


def acceptance(rows: Sequence[Row]) -> alt.Chart | alt.LayerChart:
    """Conditional acceptance by draft position, bars side by side per drafter, pale where a
    position was reached fewer than RARE times. rows: drafter, position, rate, reached,
    accepted."""
    chart = (
        frame(rows, "drafter", "position", "rate", "reached")
        .mark_bar(cornerRadiusTopLeft=3, cornerRadiusTopRight=3)
        .encode(
            x=alt.X(
                "position:O",
                title="Draft position",
                axis=alt.Axis(labelAngle=0, titlePadding=PADDING),
            ),
            xOffset=alt.XOffset("drafter:N"),
            y=alt.Y(
                "rate:Q",
                title="Conditional acceptance",
                scale=alt.Scale(domain=[0, 1]),
                axis=percent_axis(),
            ),
            color=_by_drafter(rows),
            opacity=alt.condition(f"datum.reached < {RARE}", alt.value(0.35), alt.value(1.0)),
            tooltip=[
                alt.Tooltip("drafter:N", title="Drafter"),
                alt.Tooltip("position:O", title="Position"),
                alt.Tooltip("rate:Q", title="Accepted", format=".1%"),
                alt.Tooltip("reached:Q", title="Times reached", format=",.0f"),
            ],
        )
    )
    return sized(chart)


def cost(rows: Sequence[Row]) -> alt.Chart | alt.LayerChart:
    """Measured time of a verify step by its rows. rows: requests, context_len, rows, ms."""
    encoding: dict[str, Any] = {
        "x": alt.X(
            "rows:Q",
            title="Rows of a step (1 + D per request)",
            scale=alt.Scale(type="symlog", constant=1, nice=False),
            axis=alt.Axis(values=[1, 2, 4, 8, 16, 32, 64, 128, 256, 512], titlePadding=PADDING),
        ),
        "y": _y("ms:Q", "Verify step (ms)", scale=alt.Scale(zero=True)),
        "color": alt.Color(
            "requests:O",
            title="Requests",
            scale=alt.Scale(scheme="viridis"),
            legend=legend(title="Requests"),
        ),
        "tooltip": [
            alt.Tooltip("requests:O", title="Requests"),
            alt.Tooltip("rows:Q", title="Rows"),
            alt.Tooltip("context_len:Q", title="Context (tokens)", format=",.0f"),
            alt.Tooltip("ms:Q", title="Step (ms)", format=".2f"),
        ],
    }
    if len({row["context_len"] for row in rows}) > 1:
        encoding["strokeDash"] = alt.StrokeDash(
            "context_len:O", title="Context", legend=legend(title="Context (tokens)")
        )
    base = frame(rows, "requests", "rows", "context_len", "ms")
    chart = base.mark_line(point=alt.OverlayMarkDef(size=35)).encode(**encoding)
    return sized(chart, 300)


def what_if(rows: Sequence[Row], best: Row | None) -> alt.Chart | alt.LayerChart:
    """Predicted goodput by draft length with its interval; a ring marks the best candidate.
    rows: drafter, draft_length, goodput, low, high (tokens/s)."""
    x = alt.X(
        "draft_length:Q",
        title="Draft length D (tokens)",
        axis=alt.Axis(tickMinStep=1, titlePadding=PADDING),
    )
    tooltip = [
        alt.Tooltip("drafter:N", title="Drafter"),
        alt.Tooltip("draft_length:Q", title="D"),
        alt.Tooltip("goodput:Q", title="Goodput (tokens/s)", format=",.0f"),
        alt.Tooltip("low:Q", title="Low", format=",.0f"),
        alt.Tooltip("high:Q", title="High", format=",.0f"),
    ]
    colour = _by_drafter(rows)
    fields = ("drafter", "draft_length", "goodput", "low", "high")
    base = frame(rows, *fields)
    band = base.mark_errorbar(thickness=1.5, opacity=0.45, ticks=True).encode(
        x=x, y=_y("low:Q", "Goodput (tokens/s)"), y2="high:Q", color=colour
    )
    line = base.mark_line(strokeWidth=2).encode(
        x=x, y=_y("goodput:Q", "Goodput (tokens/s)"), color=colour
    )
    points = base.mark_circle(size=60, opacity=1).encode(
        x=x, y="goodput:Q", color=colour, tooltip=tooltip
    )
    layers = band + line + points
    if best:
        ring = frame([best], *fields).mark_point(
            size=260, strokeWidth=2, filled=False, color=palette.INK, shape="circle"
        )
        layers = layers + ring.encode(x=x, y="goodput:Q", tooltip=tooltip)
    return sized(layers, 320)


def candidates(rows: Sequence[Row]) -> alt.Chart | alt.LayerChart:
    """Predicted goodput of a decision's candidates with intervals; the winner stands out.
    rows: label, drafter, goodput, low, high (tokens/s), won."""
    y = alt.Y("label:N", title=None, sort=[row["label"] for row in rows])
    base = frame(rows, "label", "drafter", "goodput", "low", "high", "won")
    bars = base.mark_bar(height=14, cornerRadius=3).encode(
        y=y,
        x=alt.X(
            "goodput:Q",
            title="Predicted goodput (tokens/s)",
            axis=alt.Axis(titlePadding=PADDING),
        ),
        color=_by_drafter(rows),
        opacity=alt.condition("datum.won", alt.value(1.0), alt.value(0.5)),
        tooltip=[
            alt.Tooltip("label:N", title="Candidate"),
            alt.Tooltip("goodput:Q", title="Goodput (tokens/s)", format=",.0f"),
            alt.Tooltip("low:Q", title="Low", format=",.0f"),
            alt.Tooltip("high:Q", title="High", format=",.0f"),
        ],
    )
    interval = base.mark_rule(color=palette.INK, strokeWidth=1.5).encode(
        y=y, x="low:Q", x2="high:Q"
    )
    return sized(bars + interval, max(110, 24 * len(rows) + 80))


def _alone(values: Sequence[float | None]) -> list[bool]:
    """Which values have no other beside them: a line through one point shows nothing."""
    padded = [None, *values, None]
    return [
        value is not None and before is None and after is None
        for before, value, after in zip(padded, values, padded[2:], strict=False)
    ]


def frame(rows: Sequence[Row], *fields: str) -> alt.Chart:
    """A chart over these fields of the rows."""
    # A data frame and not inline values: then only the data travels at each refresh and the
    # browser updates the plot in place.
    return alt.Chart(pd.DataFrame([{name: row.get(name) for name in fields} for row in rows]))


def sized(chart: Any, height: int = HEIGHT) -> Any:
    """The chart with its height in pixels and the margins of every card."""
    return chart.properties(height=height, padding={"left": 4, "right": 8, "top": 6, "bottom": 2})


def _ago(span_s: int) -> alt.X:
    return alt.X(
        "ago:Q",
        title="Seconds before now",
        scale=alt.Scale(domain=[-span_s, 0], nice=False, clamp=True),
        axis=alt.Axis(
            tickCount=6,
            grid=False,
            labelExpr="datum.value == 0 ? 'now' : replace(datum.label, '\u2212', '')",
            titlePadding=PADDING,
        ),
    )


def _y(field: str, title: str, **options: Any) -> alt.Y:
    options.setdefault("axis", alt.Axis(tickCount=4, titlePadding=PADDING))
    return alt.Y(field, title=title, **options)


def percent_axis() -> alt.Axis:
    """For shares 0..1."""
    return alt.Axis(format="%", values=[0, 0.25, 0.5, 0.75, 1], titlePadding=PADDING)


def _by_drafter(rows: Sequence[Row]) -> alt.Color:
    # No legend in the plot: the card above shows one, so the plot keeps its size.
    names = sorted({row["drafter"] for row in rows}, key=lambda name: (name != "none", name))
    colours = [palette.drafter_colour(name) for name in names]
    scale = alt.Scale(domain=names, range=colours)
    return alt.Color("drafter:N", scale=scale, legend=None)


def legend(title: str | None = None, dashed: bool = False) -> alt.Legend:
    """Above the plot, in one row. dashed: its lines are told apart by that."""
    # A fixed place above the plot, so that the plot keeps its width when a series appears.
    return alt.Legend(
        orient="top",
        title=title,
        direction="horizontal",
        offset=2,
        symbolSize=90,
        symbolType="stroke" if dashed else alt.Undefined,
    )
