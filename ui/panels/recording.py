"""One recording: its file, the command that replays it, and its removal."""

from __future__ import annotations

from typing import Any

import streamlit as st

from ui import answers, chrome, recordings, shaping
from ui.client import ApiError
from ui.kept import kept

FILE = "recording_file"
"""The name and the content of the file that was fetched last."""
REFUSED = "recording-refused"
"""Where it is said why one could not be removed."""


def show(one: dict[str, Any]) -> None:
    """one: a recording that has ended."""
    name = one["name"]
    st.html(
        f'<div class="pl-head">{shaping.day_and_clock(one["began"])} UTC</div>'
        '<div class="pl-note">Fetch the file, then replay it where Paceline is installed; no model '
        "and no device is needed. Other machines than a CPU, and models under a name of their own, "
        "are told with --hardware and --model.</div>"
    )
    left, right = st.columns([3, 1], gap="medium")
    with left:
        if one["bytes"] > recordings.MOST_BYTES:
            st.code(recordings.fetch(name, chrome.public_api_url()), language="bash")
        st.code(recordings.replay(name), language="bash")
    with right:
        if one["bytes"] <= recordings.MOST_BYTES:
            _download(one)
        else:
            st.html(
                f'<div class="pl-note">{shaping.size(one["bytes"])}: too large to come through the '
                "console; the first command takes it from the API.</div>"
            )
        with st.popover("Remove", key=f"ask-remove-recording-{name}", width="stretch"):
            st.html('<div class="pl-note">The recording is gone for good.</div>')
            st.button(
                "Remove this recording",
                key=f"remove-recording-{name}",
                type="primary",
                on_click=_remove,
                args=(name,),
            )
        answers.show(REFUSED)


def _download(one: dict[str, Any]) -> None:
    name = one["name"]
    try:
        # Fetched now: a file made at the click may be gone before a slow browser asks for it.
        content = kept(FILE, name, chrome.client().recording_file)
    except ApiError as error:
        chrome.notice(error.message, good=False)
        return
    st.download_button(
        f"File, {shaping.size(one['bytes'])}",
        content,
        f"{name}.jsonl",
        "application/x-ndjson",
        key=f"file-recording-{name}",
        icon=":material/download:",
        on_click="ignore",
        width="stretch",
        help="JSON lines; docs/simulate.md has the format",
    )


def _remove(name: str) -> None:
    try:
        chrome.client().remove_recording(name)
    except ApiError as error:
        answers.keep(REFUSED, error.message, good=False)
    else:
        answers.drop(REFUSED)
        st.session_state.pop(FILE, None)
