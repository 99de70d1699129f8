"""Widgets that begin from the server's value and take it over when it changes elsewhere.

A value that is set into a widget may cross with a message of a busy page, which says of every
widget what it shows. The old value in it would be taken for the operator's, and written to the
server. So another value makes another widget; what is still said of the old one has no effect."""

from __future__ import annotations

import streamlit as st

Value = bool | int | float


def key(name: str, value: Value) -> str:
    """The key of the widget for a value of this name that the server now holds as `value`."""
    held, turn = _held(name)
    if held != value:
        st.session_state[name] = (value, turn + 1)
    return _key(name)


def is_current(name: str, key: str) -> bool:
    """Whether this is still the key of the value's widget."""
    return key == _key(name)


def keep(name: str, value: Value) -> None:
    """The server took `value` from the widget, which stays."""
    st.session_state[name] = (value, _held(name)[1])


def put_back(name: str) -> None:
    """A new widget with the server's value takes this one's place."""
    st.session_state[name] = (None, _held(name)[1])


def _held(name: str) -> tuple[Value | None, int]:
    """The server's value as last known, and the widget's number."""
    return st.session_state.get(name, (None, 0))


def _key(name: str) -> str:
    return f"{name}-{_held(name)[1]}"
