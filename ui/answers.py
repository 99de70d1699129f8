"""What became of an operator's last change in one place of a page. It stands there until the next
change, however often the page is drawn in between."""

from __future__ import annotations

import streamlit as st

from ui import chrome


def keep(place: str, text: str, *, good: bool) -> None:
    """What is to be read in this place from now on."""
    st.session_state[_key(place)] = (good, text)


def drop(place: str) -> None:
    """Nothing is to be read there any more."""
    st.session_state.pop(_key(place), None)


def show(place: str) -> bool:
    """Draw it. Whether there was something to draw."""
    good, text = st.session_state.get(_key(place), (True, ""))
    if text:
        chrome.notice(text, good=good)
    return bool(text)


def refused(place: str) -> bool:
    """Whether the last change there was refused."""
    return not st.session_state.get(_key(place), (True, ""))[0]


def _key(place: str) -> str:
    return f"answer-{place}"
