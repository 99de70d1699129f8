"""Sampled steps: what each was predicted to give and what it gave, and the errors in sum."""

from __future__ import annotations

import streamlit as st

from ui import chrome, shaping, steps
from ui.client import ApiError

NEWEST = 500
EMPTY = "No step was sampled yet: of the adaptive controller's steps one in 256 is, at random."
NOTE = (
    "One step in 256, drawn at random, as it was predicted when it was planned and as it was "
    "measured. Tokens of a single step are a matter of luck; their sum is not. Of steps with "
    "prefill the time is the decoding requests' share, and not compared."
)


@st.fragment(run_every=10.0, key="model-steps")
def show() -> None:
    try:
        page = chrome.client().step_records(NEWEST)
    except ApiError as error:
        _empty(error.message)
        return
    rows = steps.record_rows(page["step_records"])
    if not rows:
        _empty(EMPTY)
        return
    said = shaping.escape(steps.calibration_sentence(page["calibration"]))
    st.html(f'<div data-testid="calibration">{said}</div><div class="pl-note">{NOTE}</div>')
    st.dataframe(
        rows,
        key="table-step-records",
        hide_index=True,
        height=300,
        column_config={
            "Context": st.column_config.NumberColumn(format="%.0f"),
            "Tokens, predicted": st.column_config.NumberColumn(format="%.2f"),
            "ms, predicted": st.column_config.NumberColumn(format="%.2f"),
            "ms": st.column_config.NumberColumn(format="%.2f"),
            "Price of a row (tokens)": st.column_config.NumberColumn(format="%.3f"),
        },
    )


def _empty(why: str) -> None:
    st.html(f'<div class="pl-empty" style="height:300px">{shaping.escape(why)}</div>')
