"""The open benchmark beside another one."""

from __future__ import annotations

from typing import Any

import streamlit as st

from ui import chrome, palette
from ui.benchmarks import compared, facts
from ui.client import ApiError
from ui.shaping import escape

NOTE = (
    "What this run has, in brackets what the other one had. Runs at different times are not "
    "paired: tokens/s also depend on what else the machine did. The speed-up over the base arm "
    "hardly does; it differs clearly where its two intervals do not meet."
)


def show(record: dict[str, Any], others: list[dict[str, Any]]) -> None:
    """record: with its rows; others: as the list has them."""
    with st.container(border=True, key="card-comparison"):
        st.html('<div class="pl-head">Compare with another run</div>')
        if not others:
            st.html('<div class="pl-note">There is no other run yet.</div>')
            return
        titles = {other["id"]: facts.title(other) for other in others}
        chosen = st.selectbox(
            "Other run",
            list(titles),
            index=None,
            format_func=lambda name: titles[name],
            placeholder="Choose a run",
            key=f"other-{record['id']}",
            label_visibility="collapsed",
        )
        if chosen is None:
            return
        try:
            other = chrome.client().benchmark(chosen)
        except ApiError as error:
            chrome.notice(error.message, good=False)
            return
        _compared(record, other)


def _compared(record: dict[str, Any], other: dict[str, Any]) -> None:
    if differ := facts.differences(record, other):
        items = "".join(f"<li>{escape(line)}</li>" for line in differ)
        st.html(f'<div class="pl-note">The runs differ in<ul>{items}</ul></div>')
    found = compared.pairs(record["rows"], other["rows"])
    if not found:
        why = "The runs have no load, category and arm in common."
        st.html(f'<div class="pl-empty" style="height:120px">{why}</div>')
        return
    colours = palette.arm_colours(dict.fromkeys(pair.arm for pair in found))
    st.html(
        f'<div class="pl-note">{escape(NOTE)}</div>'
        f"{compared.table(found, str(record['base']), colours)}"
    )
