"""Switches of the controller page: mode, drafter, draft length, and their effect live."""

from __future__ import annotations

from html import escape
from typing import Any

import streamlit as st

from ui import answers, charts, chrome, palette, shaping
from ui.client import ApiError
from ui.panels import drafters, policies
from ui.policies import in_force

ANSWER = "switch"
SPAN_S = 120
MODES = {"auto": "Auto", "pinned": "Pinned", "off": "Off"}
MEANINGS = {
    "auto": "The controller chooses drafter and draft length for every request and step.",
    "pinned": "Every request uses the drafter you choose; requests with a wish of their own keep "
    "it.",
    "off": "Plain decoding for every request, whatever it asks for.",
}
NO_CONNECTION = "No data: the API does not answer."
NO_ENGINE = "The engine has not started yet."


def show() -> None:
    with st.container(key="controller"):
        left, right = st.columns([1, 1.9], gap="medium")
    with left:
        setting = _setting()
        if setting is None:
            _wait()
        else:
            _form(setting)
        drafters.show()
    with right:
        _live()
        if setting is not None:
            policies.show(setting)


def _setting() -> dict[str, Any] | None:
    """What is in force, None while the API or the engine does not tell it."""
    return (chrome.state() or {}).get("controller")


@st.fragment(run_every=2.0, key="switch-wait")
def _wait() -> None:
    """Stands in for the form until the API gives the setting."""
    if _setting() is None:
        why = NO_CONNECTION if chrome.state() is None else NO_ENGINE
        chrome.card("switch", "Mode", "", None, why, 360)
    else:
        st.rerun()


# Not refreshed by time: a refresh must not come between the operator's clicks. The widgets start
# from the setting in force when the page is opened.
@st.fragment(key="switch-form")
def _form(setting: dict[str, Any]) -> None:
    names = _enabled()
    longest = max(1, setting["max_draft_length"])
    wanted = setting.get("drafter") or next((name for name in names if name != "none"), "none")
    with st.container(border=True, key="card-switch"):
        st.html('<div class="pl-head">Mode</div>')
        mode = st.segmented_control(
            "Mode",
            list(MODES),
            format_func=lambda name: MODES[name],
            default=setting["mode"],
            key="switch_mode",
            label_visibility="collapsed",
            required=True,
            width="stretch",
        )
        st.html(f'<div class="pl-note" style="min-height:2.4rem">{MEANINGS[mode or "auto"]}</div>')
        pinned = mode == "pinned"
        drafter = st.selectbox(
            "Drafter",
            names,
            index=names.index(wanted) if wanted in names else 0,
            key="switch_drafter",
            disabled=not pinned,
        )
        drafting = pinned and drafter != "none"
        fixed = st.toggle(
            "Fixed draft length",
            value=setting.get("draft_length") is not None,
            key="switch_fixed",
            disabled=not drafting,
        )
        chosen = st.slider(
            "Draft length D (tokens)",
            0,
            longest,
            value=setting.get("draft_length") or min(4, longest),
            key="switch_length",
            disabled=not (drafting and fixed),
            help="Drafted tokens per request and step; otherwise the controller chooses",
        )
        off = mode == "off"
        most = _whole_limit(
            setting,
            "max_drafting_requests",
            "Draft while at most … requests decode",
            100_000,
            off,
            "While more requests decode, all decode plainly; empty for no limit",
        )
        left, right = st.columns(2)
        with left:
            target = _target(setting, off)
        with right:
            budget = _whole_limit(
                setting,
                "draft_budget",
                "Draft budget (tokens)",
                1_000_000,
                off,
                "Most drafted tokens of a step, over all requests, pins and wishes too; empty or 0 "
                "for none",
            )
        if st.button("Apply", type="primary", key="switch_apply", width="stretch"):
            draft_length = chosen if fixed else None
            _apply(
                str(mode),
                drafter,
                draft_length if drafter != "none" else 0,
                max_drafting_requests=most,
                tpot_target_ms=target,
                draft_budget=budget,
            )
        with st.container(key="switch-answer"):
            if not answers.show(ANSWER):  # keeps the place, so that the answer moves nothing
                st.html("&nbsp;")


def _whole_limit(
    setting: dict[str, Any], field: str, label: str, largest: int, off: bool, meaning: str
) -> int | None:
    # Seeded this way an input can be emptied; with a first value of its own it would return to it.
    st.session_state.setdefault(f"switch_{field}", setting.get(field))
    return st.number_input(
        label,
        min_value=0,
        max_value=largest,
        value=None,
        placeholder="none",
        key=f"switch_{field}",
        disabled=off,
        help=meaning,
    )


def _target(setting: dict[str, Any], off: bool) -> float | None:
    st.session_state.setdefault("switch_tpot_target_ms", setting.get("tpot_target_ms"))
    return st.number_input(
        "TPOT target (ms)",
        min_value=0.0,
        max_value=600_000.0,
        value=None,
        step=1.0,
        format="%g",
        placeholder="none",
        key="switch_tpot_target_ms",
        disabled=off,
        help="Time per output token that drafting keeps for every request of a step, where it can; "
        "empty or 0 for none",
    )


def _enabled() -> list[str]:
    """Names of the drafters that can be pinned, as last seen."""
    try:
        names = [item["name"] for item in chrome.client().drafters() if item["enabled"]]
        st.session_state["switch_names"] = names or ["none"]
    except ApiError:
        pass  # the banner says why
    return st.session_state.get("switch_names", ["none"])


def _apply(
    mode: str, drafter: str | None, draft_length: int | None, **limits: float | None
) -> None:
    try:
        setting = chrome.client().set_controller(mode, drafter, draft_length, **limits)
    except ApiError as error:
        answers.keep(ANSWER, error.message, good=False)
        return
    answers.keep(ANSWER, shaping.setting_sentence(setting), good=True)


def _in_force(setting: dict[str, Any], live: dict[str, Any]) -> None:
    drafter = shaping.main_drafter(live)
    now = (
        f"{chrome.pill(drafter)} D {shaping.length(live.get('draft_length_mean'))}"
        if drafter
        else "nothing decodes"
    )
    policy = in_force(setting)
    by = escape(str(setting.get("set_by") or "default"))
    at = f" at {shaping.clock(setting['set_at'])} UTC" if setting.get("set_at") else ""
    text = escape(shaping.setting_sentence(setting))
    st.html(
        f'<div class="pl-head" role="status">In force: {text}</div>'
        f'<div class="pl-note">Policy {escape(policy)}. Set by {by}{at}. Now: {now}, '
        f"{shaping.number(live.get('tokens_per_s'))} tokens/s.</div>"
    )


def _note(text: str) -> str:
    return f'<div class="pl-note">{escape(text)}</div>'


@st.fragment(run_every=1.0, key="switch-live")
def _live() -> None:
    state = chrome.state()
    setting = (state or {}).get("controller") or {}
    rows = shaping.series(state or {}, SPAN_S)
    live = (state or {}).get("live") or {}
    with st.container(border=True, key="card-now"):
        if not setting:
            why = NO_CONNECTION if state is None else NO_ENGINE
            st.html(f'<div class="pl-head" role="status">In force: unknown</div>{_note(why)}')
        else:
            _in_force(setting, live)
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
