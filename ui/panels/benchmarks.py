"""The list of the benchmarks page, and which run of it is open."""

from __future__ import annotations

from typing import Any

import streamlit as st

from ui import answers, chrome
from ui.benchmarks import facts
from ui.client import ApiError
from ui.panels import benchmark, comparison

NO_CONNECTION = "No data: the API does not answer."
COMMAND = (
    "export PACELINE_API_KEY=…   # a key with the scope operate\n"
    "paceline bench --url {url} --prompts prompts.jsonl --limit 40 \\\n"
    "  --modes none,ngram:4,auto --concurrency 1,8 --positions --record"
)
RUN = "run"
"""The query parameter that holds the open run's id, so that a page can be linked to."""
LINES = 6
"""Runs that the list shows without scrolling."""
ROW_PX = 64
"""From 61 on, the table breaks lines in its cells."""


def show() -> None:
    _list()


@st.fragment(key="benchmarks")
def _list() -> None:
    try:
        found = chrome.client().benchmarks()
    except ApiError:
        _wait()
        return
    answers.show(benchmark.REFUSED)
    if not found:
        _empty()
        return
    names = [record["id"] for record in found]
    with st.container(border=True, key="card-benchmarks"):
        st.html(
            '<div class="pl-head">Runs</div><div class="pl-note">Newest first; select one to open '
            "it. The newest 200 are kept.</div>"
        )
        chosen = _table(found)
    if chosen is not None:
        st.query_params[RUN] = names[chosen]
    wanted = st.query_params.get(RUN, names[0])
    name = wanted if wanted in names else names[0]
    try:
        record = chrome.client().benchmark(name)
    except ApiError as error:
        chrome.card("benchmark", "Run", "", None, error.message, 200)
        return
    benchmark.show(record)
    comparison.show(record, [other for other in found if other["id"] != name])


@st.fragment(run_every=3.0, key="benchmarks-wait")
def _wait() -> None:
    """Stands in for the list until the API and its database give it."""
    try:
        chrome.client().benchmarks()
    except ApiError as error:
        why = NO_CONNECTION if error.unreachable else error.message
        chrome.card("benchmarks", "Runs", "", None, why, 200)
    else:
        st.rerun()


def _table(found: list[dict[str, Any]]) -> int | None:
    """The list; returns the index of the selected row. Its key holds what is listed, so that a
    selection never names the run that moved into its place."""
    event = st.dataframe(
        [facts.list_row(record) for record in found],
        key=f"benchmark_table_{found[0]['id']}_{len(found)}",
        hide_index=True,
        row_height=ROW_PX,
        height=ROW_PX * min(len(found), LINES) + 40,
        on_select="rerun",
        selection_mode="single-row",
        column_config={
            "Measured (UTC)": st.column_config.TextColumn(width=120),
            "Arms": st.column_config.TextColumn(width=150),
            "Workload": st.column_config.TextColumn(width=300),
            "Model": st.column_config.TextColumn(width=145),
            "Machine": st.column_config.TextColumn(width=200),
            "Kind": st.column_config.TextColumn(width=75),
        },
    )
    rows: list[int] = event["selection"]["rows"]
    return rows[0] if rows and rows[0] < len(found) else None


def _empty() -> None:
    with st.container(border=True, key="card-benchmarks"):
        st.html(
            '<div class="pl-head">No benchmark has been recorded yet</div><div class="pl-note">'
            "<code>paceline bench</code> sends prompts to this server, in several modes in turn, "
            "and with <code>--record</code> stores what it measured here. One prompt a line in a "
            ".txt file is enough; docs/benchmark.md lists the other layouts. <code>paceline bench "
            "record out.json</code> stores a result that was written with <code>--json</code>, "
            "also one of <code>paceline bench compare</code>.</div>"
        )
        st.code(COMMAND.format(url=chrome.public_api_url()), language="bash")
        st.button("Look again", key="benchmarks_again", icon=":material/refresh:")
