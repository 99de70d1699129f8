"""Widgets that begin from the server's value and take it over when it changes elsewhere.

A value that is set into a widget may cross with a message of a busy page, which says of every
widget what it shows. The old value in it would be taken for the operator's, and written to the
server. So another value makes another widget; what is still said of the old one has no effect.
A form whose values the server takes together has one key, of which its widgets' keys are made."""

from __future__ import annotations

from collections.abc import Mapping

import streamlit as st

Value = bool | int | float | Mapping[str, object]
"""A widget's value, or those of a form by name."""


def key(name: str, value: Value) -> str:
    """The key of the widget, or form, for a value of this name that the server now holds as
    `value`."""
    held, turn = _held(name)
    if held != value:
        st.session_state[name] = (value, turn + 1)
    return _key(name)


def changed(name: str, value: Value) -> bool:
    """Whether the server now holds another value than the widget was drawn with."""
    held, _ = _held(name)
    return held is not None and held != value


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
