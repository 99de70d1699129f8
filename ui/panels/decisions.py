"""The decisions table of the controller page: filter, page, and look into one decision."""

from __future__ import annotations

from typing import Any

import streamlit as st

from ui import charts, chrome, inputs, shaping
from ui.client import ApiError

PAGE = 50
ROW_PX = 64
"""From 61 on, the table breaks lines in its cells, so that sentences are whole."""
ANY = "any"
EMPTY = "No decision yet: the controller decides when requests decode in mode auto."
NO_MATCH = "No decision matches this filter."


def show() -> None:
    _load()
    _view()


def _load(before: str | None = None) -> None:
    """Fetch a page of decisions. It stays as it is until the next load, so that the rows do not
    move under the selection."""
    reason = st.session_state.get("decision_reason", ANY)
    drafter = st.session_state.get("decision_drafter", ANY)
    page: dict[str, Any] = {"decisions": [], "next": None, "error": ""}
    try:
        page |= chrome.client().decisions(
            PAGE,
            None if reason == ANY else reason,
            None if drafter == ANY else drafter,
            before,
        )
    except ApiError as error:
        page["error"] = error.message
    old = st.session_state.get("decision_page", {})
    seen = set(old.get("reasons", ())) | {str(item["reason"]) for item in page["decisions"]}
    page |= {
        "reasons": sorted(seen),
        "version": old.get("version", 0) + 1,
        "filtered": (reason, drafter) != (ANY, ANY),
    }
    st.session_state["decision_page"] = page


@st.fragment(key="decisions")
def _view() -> None:
    page = st.session_state["decision_page"]
    with st.container(border=True, key="card-decisions"):
        st.html(
            '<div class="pl-head">Decisions</div><div class="pl-note">Each change of plan with '
            "its reason, the goodput predicted for it (tokens/s) and what was measured. Select a "
            "row for its inputs and candidates.</div>"
        )
        with st.container(horizontal=True, vertical_alignment="bottom", key="decision-filters"):
            reasons, names = [ANY, *page["reasons"]], [ANY, *_names()]
            st.selectbox("Reason", reasons, key="decision_reason", on_change=_load, width=240)
            st.selectbox("Drafter", names, key="decision_drafter", on_change=_load, width=180)
            st.button("Newest", key="decision_newest", icon=":material/refresh:", on_click=_load)
            st.button(
                "Older",
                key="decision_older",
                icon=":material/history:",
                on_click=_load,
                args=(page["next"],),
                disabled=page["next"] is None,
            )
        found = page["decisions"]
        if not found:
            why = page["error"] or (NO_MATCH if page["filtered"] else EMPTY)
            st.html(f'<div class="pl-empty" style="height:120px">{shaping.escape(why)}</div>')
            return
        chosen = _table(found, page["version"])
        if chosen is not None:
            _details(found[chosen])


def _names() -> list[str]:
    """Names of the drafters, as last seen: a filter whose choice is gone would forget it."""
    try:
        names = [item["name"] for item in chrome.client().drafters()]
        st.session_state["decision_drafters"] = names
    except ApiError:
        pass  # the banner says why
    return st.session_state.get("decision_drafters", [])


def _table(found: list[dict[str, Any]], version: int) -> int | None:
    """The table; returns the index of the selected row."""
    event = st.dataframe(
        shaping.decision_rows(found),
        key=f"decision_table_{version}",
        hide_index=True,
        row_height=ROW_PX,
        height=min(6, len(found)) * ROW_PX + 40,
        on_select="rerun",
        selection_mode="single-row",
        column_config={
            "Time (UTC)": st.column_config.TextColumn(width=80),
            "Change": st.column_config.TextColumn(width=170),
            "Why": st.column_config.TextColumn(width=345),
            "Reason": st.column_config.TextColumn(width=130),
            "Predicted": st.column_config.NumberColumn(
                "Predicted (tok/s)", format="%.0f", width=110
            ),
            "Measured": st.column_config.NumberColumn("Measured (tok/s)", format="%.0f", width=110),
            "Difference": st.column_config.TextColumn(width=80),
        },
    )
    rows: list[int] = event["selection"]["rows"]
    return rows[0] if rows and rows[0] < len(found) else None


def _details(decision: dict[str, Any]) -> None:
    st.html(f'<div class="pl-head">{shaping.escape(decision.get("sentence"))}</div>')
    guard = decision.get("guard")
    st.html(
        f'<div class="pl-note">{chrome.pill(decision.get("previous_drafter"))} → '
        f"{chrome.pill(decision.get('drafter'))} &nbsp; step {decision.get('step')}, reason "
        f"<code>{shaping.escape(decision.get('reason'))}</code>, guard "
        f"<code>{shaping.escape(guard or 'none')}</code>, margin "
        f"{shaping.percent(decision.get('margin'), 1)}, decision "
        f"<code>{shaping.escape(decision.get('id'))}</code></div>"
    )
    left, right = st.columns([1.5, 1], gap="medium")
    rows = shaping.candidate_rows(decision)
    with left:
        st.html('<div class="pl-head">Predicted and measured</div>')
        st.dataframe(
            shaping.step_rows(decision),
            key="table-steps",
            hide_index=True,
            column_config={
                name: st.column_config.NumberColumn(format="%.2f")
                for name in ("Predicted", "Measured")
            },
        )
        st.html('<div class="pl-head">Candidates</div>')
        if rows:
            st.altair_chart(
                charts.candidates(rows), key="chart-candidates", alt="Goodput of the candidates"
            )
            st.dataframe(
                [{name: row[key] for name, key in COLUMNS.items()} for row in rows],
                key="table-candidates",
                hide_index=True,
                column_config={
                    name: st.column_config.NumberColumn(format="%.1f") for name in list(COLUMNS)[1:]
                },
            )
        else:
            st.html('<div class="pl-note">This decision compared no candidates.</div>')
    with right:
        st.html('<div class="pl-head">Inputs</div>')
        st.html(
            '<div class="pl-note">Means over about 64 steps before the decision.</div>'
            f"{inputs.table(decision.get('inputs') or {})}"
        )


COLUMNS = {
    "Candidate": "label",
    "Tokens per step": "predicted_tokens",
    "Step (ms)": "predicted_ms",
    "Goodput (tokens/s)": "goodput",
    "Low": "low",
    "High": "high",
}
