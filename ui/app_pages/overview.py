"""Overview page: what the server does now, the last five minutes and the last decisions."""

from __future__ import annotations

from typing import Any

import streamlit as st

from ui import charts, chrome, palette, shaping
from ui.client import ApiError
from ui.markdown import plain
from ui.shaping import escape

IDLE = "No requests in the last minute: send one from Chat or with curl."
NO_CONNECTION = "No data: the API does not answer."


def numbers(state: dict[str, Any] | None) -> None:
    live = (state or {}).get("live") or {}
    pages = shaping.pages_used(live)
    drafter = shaping.main_drafter(live)
    tiles = [
        (
            "Output",
            shaping.number(live.get("tokens_per_s"), 0, " tok/s"),
            "Output tokens per second, all requests together",
        ),
        (
            "TPOT",
            shaping.number(live.get("tpot_ms"), 1, " ms"),
            "Time per output token of one request, mean over the last second",
        ),
        (
            "Batch",
            shaping.number(live.get("running")),
            "Requests that are being served now",
        ),
        ("Queue", shaping.number(live.get("waiting")), "Requests that wait for a place"),
        (
            "Drafter",
            shaping.drafter_now(live),
            "What drafted in the last second and for which share of request-steps; the rest, and "
            "none, is plain decoding",
        ),
        (
            "Draft length D",
            shaping.length(live.get("draft_length_mean")) if drafter else shaping.MISSING,
            "Drafted tokens per request and step, mean over the last second",
        ),
        (
            "Drafted output",
            shaping.percent(live.get("drafted_share")),
            "Share of the output tokens that were drafted and accepted",
        ),
        (
            "KV pages",
            shaping.percent(pages[0] / pages[1]) if pages else shaping.MISSING,
            f"{pages[0]:,} of {pages[1]:,} pages in use" if pages else "Pages of the KV cache",
        ),
    ]
    for row in (tiles[:4], tiles[4:]):
        for column, (label, value, meaning) in zip(st.columns(4), row, strict=True):
            column.metric(label, plain(value), help=meaning, border=True)


def plots(state: dict[str, Any] | None) -> None:
    rows = shaping.series(state or {})
    live = (state or {}).get("live") or {}
    empty = "Nothing decoded in the last 5 minutes." if state else NO_CONNECTION

    def plot(
        key: str,
        head: str,
        note: str,
        chart: Any,
        why: str = empty,
        legend: dict[str, str] | None = None,
    ) -> None:
        def draw() -> None:
            st.altair_chart(chart, key=f"chart-{key}", alt=f"{head}. {note}")

        height = charts.HEIGHT + 16
        chrome.card(key, head, note, draw if chart is not None else None, why, height, legend)

    left, right = st.columns(2)
    with left:
        busy = shaping.has_values(rows, "tokens_per_s")
        plot(
            "output",
            "Output",
            "All requests together",
            charts.over_time(rows, "tokens_per_s", "Tokens/s") if busy else None,
        )
        loaded = any(shaping.has_values(rows, name) for name in ("running", "waiting"))
        plot(
            "load",
            "Load",
            "Requests running and waiting",
            charts.load(shaping.load_series(rows)) if loaded else None,
            "No requests in the last 5 minutes." if state else NO_CONNECTION,
            charts.LOAD_COLOURS,
        )
        bars = live.get("acceptance_by_position") or []
        plot(
            "acceptance",
            "Acceptance by position, last 60 s",
            f"Kept, given that all before were. Pale: fewer than {charts.RARE} drafts",
            charts.acceptance(bars) if bars else None,
            "Nothing was drafted in the last minute." if state else NO_CONNECTION,
            chrome.drafter_legend(bar["drafter"] for bar in bars),
        )
    with right:
        timed = shaping.has_values(rows, "tpot_ms")
        plot(
            "tpot",
            "Time per output token",
            "Per request, mean of each second",
            charts.over_time(rows, "tpot_ms", "TPOT (ms)", palette.GOOD) if timed else None,
        )
        drafted = busy and any(row.get("drafted_share") is not None for row in rows)
        plot(
            "drafted",
            "Drafted output",
            "Share of output tokens that were drafted and accepted",
            charts.over_time(rows, "drafted_share", "Share of output", share=True)
            if drafted
            else None,
        )
        shares = shaping.drafter_series(rows)
        plot(
            "drafters",
            "Drafters in use",
            "Share of request-steps by drafter",
            charts.drafter_share(shares) if shares else None,
            legend=chrome.drafter_legend(row["drafter"] for row in shares),
        )


def decisions(connected: bool) -> None:
    try:
        found = chrome.client().decisions(limit=6)["decisions"] if connected else []
    except ApiError:
        found, connected = [], False
    why = (
        "No decision yet: the controller decides when requests decode in mode auto."
        if connected
        else NO_CONNECTION
    )
    chrome.card(
        "decisions",
        "Last decisions",
        "Why the plan changed, the goodput predicted for it and what was measured",
        (lambda: st.html(decision_table(found))) if found else None,
        why,
        120,
    )


def decision_table(found: list[dict[str, Any]]) -> str:
    """HTML of the newest decisions."""
    lines = []
    for item in found:
        before = chrome.pill(item.get("previous_drafter"))
        after = chrome.pill(item.get("drafter"))
        old = shaping.length(item.get("previous_draft_length"))
        new = shaping.length(item.get("draft_length"))
        lines.append(
            f'<tr><td class="nowrap">{shaping.clock(item.get("time"))}</td>'
            f'<td class="nowrap">{before} D {old} → {after} D {new}</td>'
            f"<td>{escape(item.get('sentence') or '')}</td>"
            f'<td class="num">{shaping.number(item.get("predicted_goodput"))}</td>'
            f'<td class="num">{shaping.number(shaping.realised_goodput(item))}</td>'
            f'<td class="num">{shaping.outcome(item)}</td></tr>'
        )
    head = (
        '<tr><th scope="col">Time (UTC)</th><th scope="col">Change</th><th scope="col">Why</th>'
        '<th scope="col" class="num">Predicted (tok/s)</th>'
        '<th scope="col" class="num">Measured (tok/s)</th>'
        '<th scope="col" class="num">Difference</th></tr>'
    )
    return f'<table class="pl-table"><thead>{head}</thead><tbody>{"".join(lines)}</tbody></table>'


@st.fragment(run_every=1.0, key="overview-live")
def live() -> None:
    state = chrome.state()
    numbers(state)
    if state is None:
        note = NO_CONNECTION
    elif shaping.idle(shaping.series(state)):
        note = IDLE
    else:
        note = "Updated every second. Charts show the last 5 minutes."
    st.html(f'<div class="pl-note" role="status">{escape(note)}</div>')
    if ended := shaping.last_death(state or {}):
        st.html(f'<div class="pl-note" data-testid="last-death">{escape(ended)}</div>')
    plots(state)
    decisions(state is not None)


chrome.title("Overview", "What the server does now and why")
live()
