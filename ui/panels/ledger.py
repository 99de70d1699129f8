"""The harm ledger: what serving took against plain decoding and the best static choice."""

from __future__ import annotations

import streamlit as st

from ui import chrome, ledger, shaping
from ui.client import ApiError

NO_CONNECTION = "No data: the API does not answer."
EMPTY = "No step has been entered yet: the adaptive controller enters those without prefill."
NOTE = (
    "Plain decoding's time for the same tokens is the clock of the calibrated costs. What static "
    "choices (one drafter at one D for everybody) would have saved is predicted from what the "
    "controller learned; at least: less one standard error."
)

MOST_ROWS = 8
ROW_PX, HEADER_PX = 35, 38


@st.fragment(run_every=10.0, key="model-ledger")
def show() -> None:
    try:
        report = chrome.client().report()
    except ApiError:
        _empty(NO_CONNECTION)
        return
    rows = ledger.ledger_rows(report)
    if not rows:
        _empty(EMPTY)
        return
    said = shaping.escape(ledger.sentence(report))
    st.html(f'<div data-testid="ledger">{said}</div><div class="pl-note">{NOTE}</div>')
    shares = ("Saved", "It saves at least", "Saves", "At least")
    columns = {name: st.column_config.NumberColumn(format="percent") for name in shares}
    seconds = ("Took (s)", "Plain decoding (s)")
    columns |= {name: st.column_config.NumberColumn(format="%.1f") for name in seconds}
    st.dataframe(rows, key="table-ledger", hide_index=True, column_config=columns)
    if static := ledger.static_rows(report):
        st.html('<div class="pl-head">Static choices over the recent steps</div>')
        height = min(len(static), MOST_ROWS) * ROW_PX + HEADER_PX
        st.dataframe(
            static, key="table-static", hide_index=True, height=height, column_config=columns
        )


def _empty(why: str) -> None:
    st.html(f'<div class="pl-empty" style="height:300px">{why}</div>')
