"""The last thing that was fetched of a kind, kept in the session: for what does not change."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import streamlit as st

T = TypeVar("T")


def kept(kind: str, name: str, fetch: Callable[[str], T]) -> T:
    """What `fetch` gave for this name, fetched only when another name was asked for before. What it
    raises is not kept."""
    found: tuple[str, T] | None = st.session_state.get(kind)
    if found is None or found[0] != name:
        found = (name, fetch(name))
        st.session_state[kind] = found
    return found[1]
