"""Switches of the controller page: mode, drafter, draft length, and their effect live."""

from __future__ import annotations

from html import escape
from typing import Any

import streamlit as st

from ui import charts, chrome, palette, shaping
from ui.panels import drafters, policies, setting
from ui.policies import in_force

SPAN_S = 120
NO_CONNECTION = "No data: the API does not answer."
NO_ENGINE = "The engine has not started yet."


def show() -> None:
    with st.container(key="controller"):
        left, right = st.columns([1, 1.9], gap="medium")
    now = setting.in_force()
    with left:
        if now is None:
            _wait()
        else:
            setting.show(now)
        drafters.show()
    with right:
        _live()
        if now is not None:
            policies.show(now)
            _follow()


@st.fragment(run_every=2.0, key="switch-wait")
def _wait() -> None:
    """Stands in for the form until the API gives the setting."""
    if setting.in_force() is None:
        why = NO_CONNECTION if chrome.state() is None else NO_ENGINE
        chrome.card("switch", "Mode", "", None, why, 360)
    else:
        st.rerun()


@st.fragment(run_every=2.0, key="switch-follow")
def _follow() -> None:
    """Has both forms drawn anew when another console, the API or a restart of the engine changed
    what they show."""
    now = setting.in_force()
    if now is not None and (setting.changed(now) or policies.changed(now)):
        st.rerun()


def _in_force(now: dict[str, Any], live: dict[str, Any]) -> None:
    drafter = shaping.main_drafter(live)
    drafting = (
        f"{chrome.pill(drafter)} D {shaping.length(live.get('draft_length_mean'))}"
        if drafter
        else "nothing decodes"
    )
    policy = in_force(now)
    by = escape(str(now.get("set_by") or "default"))
    at = f" at {shaping.clock(now['set_at'])} UTC" if now.get("set_at") else ""
    text = escape(shaping.setting_sentence(now))
    st.html(
        f'<div class="pl-head" role="status">In force: {text}</div>'
        f'<div class="pl-note">Policy {escape(policy)}. Set by {by}{at}. Now: {drafting}, '
        f"{shaping.number(live.get('tokens_per_s'))} tokens/s.</div>"
    )


def _note(text: str) -> str:
    return f'<div class="pl-note">{escape(text)}</div>'


@st.fragment(run_every=1.0, key="switch-live")
def _live() -> None:
    state = chrome.state()
    now = (state or {}).get("controller") or {}
    rows = shaping.series(state or {}, SPAN_S)
    live = (state or {}).get("live") or {}
    with st.container(border=True, key="card-now"):
        if not now:
            why = NO_CONNECTION if state is None else NO_ENGINE
            st.html(f'<div class="pl-head" role="status">In force: unknown</div>{_note(why)}')
        else:
            _in_force(now, live)
    idle = "Nothing decoded in the last 2 minutes: send a request from Chat or with curl."
    decoded = [row for row in rows if row.get("drafters")]
    if not decoded:
        rows = []
    lengths = [
        {**row, "D": row.get("draft_length_mean") if row.get("drafters") else None} for row in rows
    ]
    shares = shaping.drafter_series(rows)
    height = charts.HEIGHT + 16

    def draw_lengths() -> None:
        chart = charts.over_time(
            lengths, "D", "Mean D (tokens)", palette.ACCENT, span_s=SPAN_S, step=True
        )
        st.altair_chart(chart, key="chart-length", alt="Mean draft length over time")

    def draw_shares() -> None:
        chart = charts.drafter_share(shares, SPAN_S)
        st.altair_chart(chart, key="chart-share", alt="Share of request-steps by drafter")

    why = idle if state else NO_CONNECTION
    note = "Mean over all request-steps of each second"
    chrome.card("length", "Draft length", note, draw_lengths if decoded else None, why, height)
    note = "Share of request-steps by drafter"
    legend = chrome.drafter_legend(row["drafter"] for row in shares)
    chrome.card(
        "share", "Drafters in use", note, draw_shares if shares else None, why, height, legend
    )
