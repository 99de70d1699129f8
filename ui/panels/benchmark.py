"""One benchmark: where and how it was measured, its tables and charts, download and removal."""

from __future__ import annotations

import shlex
from typing import Any

import streamlit as st

from ui import answers, chrome, palette
from ui.benchmarks import facts, plots, tables
from ui.client import ApiError
from ui.kept import kept
from ui.markdown import plain
from ui.shaping import day_and_clock, escape, number

REFUSED = "benchmark-refused"
"""Where it is said why a run could not be removed."""
PAGE = "benchmark_page"
"""The name and the page of the run that was looked at last."""

SPEED_NOTE = (
    "Speed of the same prompts over {base}, paired, with its 95 % interval; none with fewer than "
    "five prompts."
)
REGRET_NOTE = (
    "What is missing to the speed of the best static arm (none, or a drafter with a fixed D), with "
    "its 95 % interval; negative: it was beaten."
)
TABLE_NOTES = {
    "Speed": "Tokens/s: output tokens over wall time, prefill included. Goodput: of the requests "
    "that kept the TPOT target. * Stream events were counted, the server counts no tokens.",
    "Latency": "Milliseconds. TTFT: until the first token; TPOT: per token after it; ITL: gaps "
    "between stream events; E2E: the whole answer.",
    "Drafting": "Acceptance length: tokens committed per verify step. Acceptance rate: accepted "
    "of the really drafted tokens.",
}


def show(record: dict[str, Any]) -> None:
    """Its facts, then the charts and tables of one load."""
    rows: list[dict[str, Any]] = record["rows"]
    with st.container(border=True, key="card-benchmark"):
        _facts(record)
        if not rows:
            st.html('<div class="pl-empty" style="height:120px">Nothing was measured.</div>')
            return
        found = facts.loads(rows)
        load = found[0]
        if len(found) > 1:
            load = st.segmented_control(
                "Load",
                found,
                format_func=plain,
                default=found[0],
                key=f"load-{record['id']}",
                required=True,
            )
        part = [row for row in rows if facts.load_label(row) == load]
        colours = palette.arm_colours(dict.fromkeys(str(row.get("mode")) for row in rows))
        base = str(record["base"])
        _ratios(part, base, colours)
        _tables(part, base, colours, found)
        _acceptance(part, colours)


def _facts(record: dict[str, Any]) -> None:
    lines = {
        "Model": record["model"],
        "Machine": facts.machine(record),
        "Versions": facts.versions(record),
        "Workload": facts.workload(record),
        "Recorded": f"{day_and_clock(record['ts'])} UTC by {record['created_by']}",
    }
    body = "".join(
        f"<span>{name}</span><span>{escape(text)}</span>" for name, text in lines.items()
    )
    left, right = st.columns([3, 1], gap="medium")
    with left:
        target = (record.get("settings") or {}).get("tpot_ms")
        goal = f", TPOT target {number(target, 0, ' ms')}" if target else ""
        st.html(
            f'<div class="pl-head">{escape(facts.began(record))} UTC, {escape(record["kind"])}, '
            f'base {escape(record["base"])}{escape(goal)}</div><div class="pl-pairs">{body}</div>'
        )
    with right:
        _files(record)
    if record["command"]:
        st.code(shlex.join(record["command"]), language="bash", wrap_lines=True)


def _files(record: dict[str, Any]) -> None:
    name = record["id"]
    # Both are made now: a file made at the click may be gone before a slow browser asks for it.
    st.download_button(
        "JSON",
        facts.document(record),
        f"{name}.json",
        "application/json",
        key=f"json-{name}",
        icon=":material/download:",
        on_click="ignore",
        width="stretch",
        help="paceline bench record FILE stores it in another server",
    )
    st.download_button(
        "HTML page",
        _page(name),
        f"{name}.html",
        "text/html",
        key=f"html-{name}",
        icon=":material/download:",
        on_click="ignore",
        width="stretch",
        help="One file with charts that needs no network",
    )
    with st.popover("Remove", key=f"ask-remove-{name}", width="stretch"):
        st.html('<div class="pl-note">The run is forgotten for good.</div>')
        st.button(
            "Remove this run",
            key=f"remove-{name}",
            type="primary",
            on_click=_remove,
            args=(name,),
        )


def _page(name: str) -> str:
    """The page, or in its place why there is none."""
    try:
        return kept(PAGE, name, chrome.client().benchmark_page)
    except ApiError as error:
        return f"<!doctype html><title>Paceline</title><p>{escape(error.message)}</p>"


def _remove(name: str) -> None:
    try:
        chrome.client().remove_benchmark(name)
    except ApiError as error:
        answers.keep(REFUSED, error.message, good=False)
    else:
        answers.drop(REFUSED)
        st.query_params.clear()


def _ratios(rows: list[dict[str, Any]], base: str, colours: dict[str, str]) -> None:
    left, right = st.columns(2, gap="medium")
    for place, found, note, title, mark, share, why in (
        (
            left,
            plots.ratio_rows(rows, "speedup", base),
            SPEED_NOTE.format(base=base),
            f"Speed-up over {base} (×)",
            1.0,
            False,
            f"No prompt was answered by {base} and by another arm.",
        ),
        (
            right,
            plots.ratio_rows(rows, "regret"),
            REGRET_NOTE,
            "Regret against the best static arm",
            0.0,
            True,
            "No regret: it needs a static arm and another one.",
        ),
    ):
        name = "speedup" if place is left else "regret"
        with place:
            # As high as the longer note, so that both charts begin at the same height.
            st.html(f'<div class="pl-note" style="min-height:2.4rem">{escape(note)}</div>')
            if found:
                chart = plots.ratios(found, colours, title, mark, share=share)
                st.altair_chart(chart, key=f"chart-bench-{name}", alt=f"{title} by category")
            else:
                st.html(f'<div class="pl-empty" style="height:120px">{escape(why)}</div>')


def _tables(
    rows: list[dict[str, Any]], base: str, colours: dict[str, str], loads: list[str]
) -> None:
    contents = {
        "Speed": tables.speed(rows, base, colours),
        "Latency": tables.latency(rows, colours),
        "Drafting": tables.drafting(rows, colours),
    }
    several = f" This load only; {len(loads)} were measured." if len(loads) > 1 else ""
    for tab, (name, content) in zip(st.tabs(list(contents)), contents.items(), strict=True):
        with tab:
            st.html(f'<div class="pl-note">{escape(TABLE_NOTES[name] + several)}</div>{content}')


def _acceptance(rows: list[dict[str, Any]], colours: dict[str, str]) -> None:
    left, right = st.columns(2, gap="medium")
    with left:
        st.html(
            '<div class="pl-head">Acceptance by position</div><div class="pl-note">Accepted, of '
            "the drafts accepted up to there; all categories.</div>"
        )
        if found := plots.position_rows(rows):
            st.altair_chart(
                plots.positions(found), key="chart-bench-positions", alt="Acceptance by position"
            )
        else:
            why = "Not measured: it is asked for with --positions and known of our server alone."
            st.html(f'<div class="pl-empty" style="height:120px">{why}</div>')
    with right:
        st.html(
            '<div class="pl-head">Accepted tokens per verify step</div><div class="pl-note">1 plus '
            "the sum of a line is the acceptance length.</div>"
        )
        if found := plots.joint_rows(rows):
            st.altair_chart(
                plots.joint(found, colours), key="chart-bench-joint", alt="Accepted tokens per step"
            )
        else:
            why = "No server told how many drafted tokens its steps accepted."
            st.html(f'<div class="pl-empty" style="height:120px">{why}</div>')
