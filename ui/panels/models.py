"""What the controller has learned: acceptance, costs, and what it would predict elsewhere."""

from __future__ import annotations

import streamlit as st

from ui import charts, chrome, shaping
from ui.client import ApiError
from ui.markdown import plain
from ui.panels import guidelines, ledger, steps

NO_CONNECTION = "No data: the API does not answer."
CONTEXTS = (64, 128, 256, 512, 1024, 2048, 4096)
FIRST_CONTEXT = 256
"""What-if asks about one of the first that are below the model's context, to begin with this one
or the largest below it. In tokens."""


@st.fragment(key="models")
def show() -> None:
    """Only the open tab is drawn and refreshed, so that the others cost the server nothing."""
    with st.container(border=True, key="card-models"):
        st.html('<div class="pl-head">What the controller knows</div>')
        panels = {
            "Acceptance": _acceptance,
            "Cost": _cost,
            "What if": _what_if,
            "Guidelines": guidelines.show,
            "Ledger": ledger.show,
            "Steps": steps.show,
        }
        tabs = st.tabs(list(panels), key="models-tab", on_change="rerun")
        for tab, draw in zip(tabs, panels.values(), strict=True):
            if tab.open:
                with tab:
                    draw()


def _report() -> dict[str, object] | None:
    try:
        return chrome.client().report()
    except ApiError:
        return None


def _empty(report: dict[str, object] | None, why: str) -> None:
    text = why if report is not None else NO_CONNECTION
    st.html(f'<div class="pl-empty" style="height:300px">{text}</div>')


@st.fragment(run_every=10.0, key="model-acceptance")
def _acceptance() -> None:
    report = _report()
    rows = shaping.acceptance_rows(report or {})
    if not rows:
        _empty(report, "Nothing was drafted yet: acceptance is learned from verified drafts.")
        return
    left, right = st.columns([1.5, 1], gap="medium")
    note = (
        "Conditional acceptance: kept, given that all positions before were. Older steps weigh "
        f"less. Pale: reached fewer than {charts.RARE} times."
    )
    marks = chrome.legend_marks(chrome.drafter_legend(row["drafter"] for row in rows))
    left.html(f'<div class="pl-note">{note}</div>{marks}')
    left.altair_chart(charts.acceptance(rows), key="chart-learned", alt="Acceptance by position")
    table = [
        {
            "Drafter": row["drafter"],
            "Position": row["position"],
            "Acceptance": round(row["rate"], 2),
            "Reached (weighted)": row["reached"],
        }
        for row in rows
    ]
    right.dataframe(
        table,
        key="table-learned",
        hide_index=True,
        height=245,
        column_config={
            "Acceptance": st.column_config.NumberColumn(format="percent"),
            "Reached (weighted)": st.column_config.NumberColumn(format="%.0f"),
        },
    )


@st.fragment(run_every=30.0, key="model-cost")
def _cost() -> None:
    report = _report()
    rows = shaping.cost_rows(report or {})
    if not rows:
        _empty(report, "The engine has not measured its costs yet.")
        return
    st.html(
        '<div class="pl-note">Median time of a verify step as measured at start. '
        f"{shaping.cost_sentence(report or {})}</div>"
    )
    st.altair_chart(charts.cost(rows), key="chart-cost", alt="Verify step time by rows")


def _limits() -> tuple[int, int]:
    """The model's largest batch and its context, as last seen: with another end of its scale a
    slider forgets what was chosen."""
    model = (chrome.state() or {}).get("model") or {}
    if model:
        limits = (model.get("max_batch") or 32, model.get("context_length") or 8192)
        st.session_state["what_if_limits"] = limits
    return st.session_state.get("what_if_limits", (32, 8192))


def _batch(largest: int) -> int:
    label = "Batch size (requests)"
    if largest == 1:  # a slider wants two ends
        return _only(label, 1)
    return st.slider(label, 1, largest, 1, key="what_if_batch")


def _context(longest: int) -> int:
    label = "Context (tokens per request)"
    sizes = [size for size in CONTEXTS if size < longest] or [longest]
    if len(sizes) == 1:
        return _only(label, sizes[0])
    first = max(size for size in sizes if size <= FIRST_CONTEXT)
    return st.select_slider(label, sizes, value=first, key="what_if_context")


def _only(label: str, value: int) -> int:
    """The only value that there is, said in place of a slider."""
    st.html(f'<div class="pl-note">{label}: {value}</div>')
    return value


@st.fragment(key="model-what-if")
def _what_if() -> None:
    largest, longest = _limits()
    left, right = st.columns([1, 3], gap="medium")
    with left:
        batch, context = _batch(largest), _context(longest)
        try:
            found = chrome.client().what_if(batch, context)
        except ApiError as error:
            right.html(
                f'<div class="pl-empty" style="height:320px">{shaping.escape(error.message)}</div>'
            )
            return
        best = found["best"]
        undrafted = next((c for c in found["candidates"] if c["draft_length"] == 0), None)
        st.metric(
            "Best",
            plain(f"{best['drafter']}, D {shaping.length(best['draft_length'])}"),
            help="Candidate with the highest predicted goodput",
        )
        st.metric(
            "Against plain decoding",
            shaping.number(best["goodput"] / undrafted["goodput"], 2, " ×")
            if undrafted and undrafted["goodput"]
            else shaping.MISSING,
            help="Predicted goodput of the best candidate over that of D = 0",
        )
    marks = chrome.drafter_legend(one["drafter"] for one in found["candidates"])
    right.html(
        '<div class="pl-note">Predicted goodput from what was measured so far, with its interval. '
        f"The ring marks the best candidate.</div>{chrome.legend_marks(marks)}"
    )
    right.altair_chart(
        charts.what_if(found["candidates"], best), key="chart-what-if", alt="Goodput by D"
    )
