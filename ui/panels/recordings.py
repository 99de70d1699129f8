"""The recordings of the benchmarks page: start and stop one, the list, and which is open."""

from __future__ import annotations

from html import escape
from typing import Any

import streamlit as st

from ui import answers, chrome, recordings, shaping
from ui.client import ApiError
from ui.panels import recording

ANSWER = "recording"
OPEN = "recording_open"
"""Name of the one that is open."""
SECONDS, MEGABYTES = "recording_seconds", "recording_megabytes"
"""Keys of the bounds of the next one, which the API takes up to these values."""
MOST_SECONDS, MOST_MEGABYTES = 86_400, 1024
NO_CONNECTION = "No data: the API does not answer."
NONE = "Nothing has been recorded."
SHOWN = 5
"""Rows that the list shows without scrolling."""
ROW_PX = 74


# Not refreshed by time: a refresh must not come between the operator's clicks.
@st.fragment(key="recordings")
def show() -> None:
    with st.container(border=True, key="card-recordings"):
        st.html(
            '<div class="pl-head">Recordings</div><div class="pl-note">What the steps of this '
            "server gave: counts and times of all requests, no text. The simulator replays one "
            "under another policy. One runs at a time, 32 are kept.</div>"
        )
        found, why = _found()
        _watch(why or recordings.signature(found))
        if why:
            st.html(f'<div class="pl-empty" style="height:120px">{escape(why)}</div>')
            return
        left, right = st.columns([1.9, 1], gap="medium")
        with left:
            _list(found)
        running = next((one for one in found if one["running"]), None)
        # One block for each: else a busy page shows what is left of one below the other.
        with right, st.container(key="recording-idle" if running is None else "recording-runs"):
            _controls(running)
        name = st.session_state.get(OPEN)
        one = next((one for one in found if one["name"] == name and not one["running"]), None)
        if one is not None:
            recording.show(one)


def _found() -> tuple[list[dict[str, Any]], str]:
    """(recordings, ""), or why there are none to show."""
    try:
        return chrome.client().recordings(), ""
    except ApiError as error:
        return [], NO_CONNECTION if error.unreachable else error.message


@st.fragment(run_every=2.0, key="recordings-watch")
def _watch(drawn: str) -> None:
    """How far the one is that runs. The list is drawn anew when one began, ended or was removed.
    drawn: what it shows."""
    found, why = _found()
    if (why or recordings.signature(found)) != drawn:
        st.rerun()
    one = next((one for one in found if one["running"]), None)
    if one is not None:
        st.progress(
            recordings.progress(one),
            text=f"Recording: {recordings.facts(one)}; it ends by itself after "
            f"{shaping.duration(one['limit_seconds'])} or at {shaping.size(one['limit_bytes'])}",
        )


def _list(found: list[dict[str, Any]]) -> None:
    if not found:
        st.html(f'<div class="pl-empty" style="height:120px">{NONE}</div>')
        return
    height = ROW_PX * SHOWN if len(found) > SHOWN else "content"
    with st.container(height=height, border=False, key="recordings-list", gap="xsmall"):
        for one in found:
            _row(one)


def _row(one: dict[str, Any]) -> None:
    name = one["name"]
    word, colour = recordings.state(one)
    note = "" if one["running"] else f"{recordings.facts(one)}. {one['reason']}"
    with st.container(
        horizontal=True, vertical_alignment="center", key=f"row-recording-{name}", gap="small"
    ):
        st.html(
            f'<span class="pl-pill" style="--c:{colour}">{word}</span> '
            f"<b>{shaping.day_and_clock(one['began'])} UTC</b>"
            f'<div class="pl-note">{escape(note)}</div>',
            width="stretch",
        )
        if not one["running"]:
            is_open = st.session_state.get(OPEN) == name
            st.button(
                "Close" if is_open else "Open",
                key=f"open-recording-{name}",
                on_click=_open,
                args=("" if is_open else name,),
            )


def _controls(running: dict[str, Any] | None) -> None:
    if running is not None:
        st.button(
            "Stop recording",
            key="recording_stop",
            type="primary",
            icon=":material/stop_circle:",
            width="stretch",
            on_click=_stop,
        )
    else:
        st.number_input("Seconds, at most", 1, MOST_SECONDS, 60, key=SECONDS)
        st.number_input("MiB, at most", 1, MOST_MEGABYTES, 64, key=MEGABYTES)
        st.button(
            "Start recording",
            key="recording_start",
            type="primary",
            icon=":material/fiber_manual_record:",
            width="stretch",
            on_click=_start,
        )
    answers.show(ANSWER)


def _start() -> None:
    try:
        chrome.client().start_recording(st.session_state[SECONDS], st.session_state[MEGABYTES])
    except ApiError as error:
        answers.keep(ANSWER, error.message, good=False)
    else:
        answers.drop(ANSWER)


def _stop() -> None:
    try:
        one = chrome.client().stop_recording()
    except ApiError as error:
        answers.keep(ANSWER, error.message, good=False)
    else:
        st.session_state[OPEN] = one["name"]
        text = f"Stopped after {shaping.counted(one['steps'], 'step')}."
        answers.keep(ANSWER, text, good=True)


def _open(name: str) -> None:
    st.session_state[OPEN] = name
    answers.drop(ANSWER)
