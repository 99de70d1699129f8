"""The guidelines on the controller page: what each says with this server's numbers, and when each
drafter wins here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import altair as alt
import pandas as pd
import streamlit as st

from ui import chrome, palette
from ui.client import ApiError

Row = dict[str, Any]

NOT_YET = "Nothing to draw yet: the controller has no drafters, or has not planned a step."
NO_CONNECTION = "No data: the API does not answer."


@st.fragment(run_every=30.0, key="guidelines")
def show() -> None:
    """Charts and table, refreshed from the controller's report."""
    try:
        report = chrome.client().report()
    except ApiError:
        st.html(f'<div class="pl-empty" style="height:300px">{NO_CONNECTION}</div>')
        return
    curves, winners = speedup_rows(report), mechanism_rows(report)
    names = {row["drafter"] for row in [*curves, *winners]}
    st.html(chrome.legend_marks(chrome.drafter_legend(names)))
    left, right = st.columns(2, gap="medium")
    for place, rows, note, chart, alt_text in (
        (left, curves, speedup_note(report), speedup_chart, "Speed-up by draft length"),
        (right, winners, MECHANISM_NOTE, mechanism_chart, "Best speed-up by batch size"),
    ):
        if rows:
            place.html(f'<div class="pl-note">{escape(note)}</div>')
            place.altair_chart(chart(rows), key=f"chart-{alt_text}", alt=alt_text)
        else:
            place.html(f'<div class="pl-empty" style="height:300px">{NOT_YET}</div>')
    if rows := guideline_rows(report):
        st.html(guideline_table(rows))


MECHANISM_NOTE = (
    "Fifth guideline, choice of the mechanism: each drafter at its best D, by batch size, against "
    "plain decoding. A ring marks who wins."
)


def speedup_note(report: Mapping[str, Any]) -> str:
    """What the curves are of, with alpha and the ceiling."""
    found = report.get("guidelines") or {}
    alpha, batch = found.get("alpha") or 0.0, found.get("batch") or 1
    bound = f", so no curve exceeds 1 / alpha = {1.0 / alpha:.3g} ×" if alpha else ""
    return (
        "E[acc] / (T_draft / T_decode + 1 + alpha · N) with the acceptance and costs of now, "
        f"{batch} request{'s' if batch != 1 else ''}: alpha = {alpha:.3f}{bound}."
    )


def speedup_rows(report: Mapping[str, Any]) -> list[Row]:
    """drafter, draft_length, speedup, peak: the points of each drafter's curve."""
    curves = (report.get("guidelines") or {}).get("speedup") or {}
    return [
        {
            "drafter": name,
            "draft_length": length,
            "speedup": value,
            "peak": length == curve["peak"]["length"],
        }
        for name, curve in curves.items()
        for length, value in enumerate(curve["speedup"])
    ]


def mechanism_rows(report: Mapping[str, Any]) -> list[Row]:
    """The report's rows: drafter, requests, draft_length, acceptance_length, draft_ms, speedup and
    wins of each drafter at each batch size."""
    return [dict(row) for row in (report.get("mechanisms") or {}).get("rows") or ()]


def guideline_rows(report: Mapping[str, Any]) -> list[Row]:
    """One row per guideline; the fifth says for each drafter when it wins."""
    rows = [
        {"Guideline": one["title"], "Here": one["sentence"], "Source": one["source"]}
        for one in (report.get("guidelines") or {}).get("guidelines") or ()
    ]
    for name, sentence in ((report.get("mechanisms") or {}).get("when") or {}).items():
        rows.append(
            {
                "Guideline": f"Mechanism: {name}",
                "Here": sentence,
                "Source": "guideline 5, from the live models",
            }
        )
    return rows


def guideline_table(rows: Sequence[Row]) -> str:
    """HTML of the rows, of which there is one at least, with every sentence whole."""
    names = list(rows[0])
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in names)
    body = "".join(
        f'<tr><td class="nowrap"><b>{escape(row[names[0]])}</b></td>'
        + "".join(f"<td>{escape(row[name])}</td>" for name in names[1:-1])
        + f'<td class="pl-note">{escape(row[names[-1]])}</td></tr>'
        for row in rows
    )
    return (
        f'<table class="pl-table pl-guidelines"><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table>"
    )


def speedup_chart(rows: Sequence[Row]) -> alt.LayerChart | alt.FacetChart:
    """The speed-up by draft length; a ring marks each peak."""
    base = _base(rows)
    x = alt.X("draft_length:Q", title="Draft length D (tokens)", axis=alt.Axis(tickMinStep=1))
    y = alt.Y("speedup:Q", title="Speed-up over plain decoding (×)", scale=alt.Scale(zero=False))
    tooltip = [
        alt.Tooltip("drafter:N", title="Drafter"),
        alt.Tooltip("draft_length:Q", title="D"),
        alt.Tooltip("speedup:Q", title="Speed-up", format=".2f"),
    ]
    line = base.mark_line(strokeWidth=2).encode(x=x, y=y, color=_colour(rows), tooltip=tooltip)
    return _with_plain(line, _ring(rows, "peak").encode(x=x, y=y, tooltip=tooltip))


def mechanism_chart(rows: Sequence[Row]) -> alt.LayerChart | alt.FacetChart:
    """The best speed-up of each drafter by batch size; a ring marks the winner."""
    x = alt.X(
        "requests:Q",
        title="Decoding requests",
        scale=alt.Scale(type="log", base=2),
        axis=alt.Axis(values=sorted({row["requests"] for row in rows})),
    )
    y = alt.Y("speedup:Q", title="Speed-up over plain decoding (×)", scale=alt.Scale(zero=False))
    tooltip = [
        alt.Tooltip("drafter:N", title="Drafter"),
        alt.Tooltip("requests:Q", title="Requests"),
        alt.Tooltip("draft_length:Q", title="Best D"),
        alt.Tooltip("acceptance_length:Q", title="Acceptance length (tokens)", format=".2f"),
        alt.Tooltip("draft_ms:Q", title="Drafting (ms per step)", format=".2f"),
        alt.Tooltip("speedup:Q", title="Speed-up", format=".2f"),
    ]
    points = alt.OverlayMarkDef(size=35)
    line = _base(rows).mark_line(strokeWidth=2, point=points)
    line = line.encode(x=x, y=y, color=_colour(rows), tooltip=tooltip)
    return _with_plain(line, _ring(rows, "wins").encode(x=x, y=y, tooltip=tooltip))


def _base(rows: Sequence[Row]) -> alt.Chart:
    return alt.Chart(pd.DataFrame(list(rows)))


def _ring(rows: Sequence[Row], field: str) -> alt.Chart:
    marked = [row for row in rows if row[field]]
    data = pd.DataFrame(marked, columns=list(rows[0]))
    return alt.Chart(data).mark_point(
        size=200, strokeWidth=2, filled=False, color=palette.INK, shape="circle"
    )


def _with_plain(line: alt.Chart, ring: alt.Chart) -> alt.LayerChart | alt.FacetChart:
    """The layers over a dashed line at 1, plain decoding."""
    plain = alt.Chart(pd.DataFrame([{"speedup": 1.0}])).mark_rule(
        color=palette.MUTED, strokeDash=[4, 4]
    )
    padding = {"left": 4, "right": 8, "top": 6, "bottom": 2}
    return alt.layer(plain.encode(y="speedup:Q"), line, ring, height=300, padding=padding)


def _colour(rows: Sequence[Row]) -> alt.Color:
    names = sorted({row["drafter"] for row in rows})
    colours = [palette.drafter_colour(name) for name in names]
    scale = alt.Scale(domain=names, range=colours)
    return alt.Color("drafter:N", scale=scale, legend=None)  # one above serves both charts
