"""A benchmark's result as one HTML file: charts and a table, no script, nothing from a network."""

from __future__ import annotations

import time
from collections.abc import Sequence
from html import escape

from app.bench import colours, svg
from app.bench.report import ALL, Row
from app.bench.result import Result
from app.bench.table import cells, interval, ratio

STYLE = """
body { font: 14px system-ui, sans-serif; color: #1b2333; max-width: 1400px; margin: 2em auto;
       padding: 0 1em; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; display: block;
        overflow-x: auto; }
td, th { padding: 3px 9px; text-align: right; border-bottom: 1px solid #dfe4ec;
         white-space: nowrap; }
td:nth-child(-n+3), th:nth-child(-n+3) { text-align: left; }
tr.all td { font-weight: 600; border-bottom: 2px solid #8a8f98; }
code { background: #f3f5f9; padding: 2px 5px; overflow-wrap: anywhere; }
.key span { display: inline-block; width: 12px; height: 12px; margin: 0 5px 0 14px; }
svg { max-width: 100%; height: auto; }
"""


def page(result: Result) -> str:
    """The whole document."""
    rows = result.rows
    made = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(result.time))
    machine = result.machine
    where = f"{machine.get('processor')}, {machine.get('cores')} cores"
    if machine.get("gpu"):
        where += f", {machine['gpu']}"
    sections = [
        ("Speed against " + result.base, speeds(rows, result.base)),
        ("Output tokens per second over the load", over_load(rows)),
        ("Time per output token", latencies(rows)),
        ("Acceptance by position", positions(rows)),
        ("Accepted tokens per verify step", joint(rows)),
        ("Drafters", drafters(rows)),
    ]
    body = "".join(f"<h2>{escape(title)}</h2>{content}" for title, content in sections)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Paceline bench</title>'
        f"<style>{STYLE}</style></head><body><h1>Paceline bench</h1>"
        f"<p>{escape(made)} · {escape(where)}</p>"
        f"<p><code>{escape(' '.join(result.command))}</code></p>"
        f"{body}<h2>All rows</h2>{table(rows, result.base)}</body></html>\n"
    )


def totals(rows: Sequence[Row]) -> list[Row]:
    """The rows of all categories together."""
    return [row for row in rows if row.category == ALL]


def label(row: Row) -> str:
    return " ".join(part for part in (row.load.label, row.category, row.mode) if part != ALL)


def speeds(rows: Sequence[Row], base: str) -> str:
    found = [
        svg.Bar(
            label(row),
            colours.arm_colour(row.mode),
            row.speedup.value,
            row.speedup.low,
            row.speedup.high,
            ratio(row.speedup),
        )
        for row in rows
        if row.speedup is not None and row.mode != base
    ]
    if not found:
        return f"<p>No prompt was answered by {escape(base)} and by another arm.</p>"
    title = f"speed of the same prompts over {base}, with 95 % interval"
    return svg.bars(found, title, mark=1.0)


def over_load(rows: Sequence[Row]) -> str:
    """Lines over the concurrency or the rate; phases and single loads are bars. An arm of which
    every chunk was cut has no throughput to show."""
    timed = [row for row in totals(rows) if row.wall_s]
    found = [row for row in timed if not row.phase]
    arms = list(dict.fromkeys(row.mode for row in found))
    dashes = colours.dashes({arm: colours.arm_colour(arm) for arm in arms})
    open_loop = any(row.rate for row in found)
    series = [
        svg.Line(
            arm,
            colours.arm_colour(arm),
            dashes[arm],
            [(row.rate or row.concurrency, row.tokens_per_s) for row in found if row.mode == arm],
        )
        for arm in arms
    ]
    if any(len(line.points) > 1 for line in series):
        axis = "arrivals, requests/s" if open_loop else "requests at once"
        return svg.lines(series, axis, "output tokens/s")
    single = [svg.Bar(label(row), colours.arm_colour(row.mode), row.tokens_per_s) for row in timed]
    return svg.bars(single, "output tokens/s") if single else "<p>Nothing was measured.</p>"


def latencies(rows: Sequence[Row]) -> str:
    found = [
        svg.Bar(f"{label(row)} {quantile}", colours.arm_colour(row.mode), row.tpot_ms[quantile])
        for row in totals(rows)
        for quantile in ("p50", "p99")
        if quantile in row.tpot_ms
    ]
    if not found:
        return "<p>No answer had a second token.</p>"
    return svg.bars(found, "milliseconds per output token after the first")


def positions(rows: Sequence[Row]) -> str:
    found = [
        (f"{label(row)}, {drafter}", colours.drafter_colour(drafter), entries)
        for row in totals(rows)
        for drafter, entries in row.conditional.items()
        if entries
    ]
    if not found:
        return "<p>Not asked for (--positions), or the servers do not tell.</p>"
    dashes = colours.dashes({name: colour for name, colour, _ in found})
    series = [
        svg.Line(name, colour, dashes[name], [(one.position, one.rate) for one in entries])
        for name, colour, entries in found
    ]
    return svg.lines(series, "position in the draft", "accepted, of those accepted up to there")


def joint(rows: Sequence[Row]) -> str:
    found = [row for row in totals(rows) if row.joint]
    dashes = colours.dashes({label(row): colours.arm_colour(row.mode) for row in found})
    series = [
        svg.Line(
            label(row),
            colours.arm_colour(row.mode),
            dashes[label(row)],
            list(enumerate(row.joint, 1)),
        )
        for row in found
    ]
    if not series:
        return "<p>No server told how many drafted tokens its steps accepted.</p>"
    return svg.lines(series, "at least so many accepted tokens", "share of verify steps")


def drafters(rows: Sequence[Row]) -> str:
    found = [
        (
            label(row),
            [
                svg.Bar(name, colours.drafter_colour(name), share)
                for name, share in row.shares.items()
            ],
        )
        for row in totals(rows)
        if row.shares
    ]
    if not found:
        return "<p>No server told who drafted.</p>"
    names = dict.fromkeys(share.name for _, shares in found for share in shares)
    key = "".join(
        f'<span style="background:{colours.drafter_colour(name)}"></span>{escape(name)}'
        for name in names
    )
    return f'<p class="key">{key}</p>' + svg.stacked(found, "share of verify steps by drafter")


def table(rows: Sequence[Row], base: str) -> str:
    if not rows:
        return "<p>Nothing was measured.</p>"
    with_goodput = any(row.goodput_per_s is not None for row in rows)
    shown = [
        {**cells(row, base, with_goodput), "regret 95 %": regret_interval(row)} for row in rows
    ]
    head = "".join(f"<th>{escape(name)}</th>" for name in shown[0])
    lines = "".join(
        f"<tr{' class=all' if row.category == ALL else ''}>"
        + "".join(f"<td>{escape(cell)}</td>" for cell in line.values())
        + "</tr>"
        for row, line in zip(rows, shown, strict=True)
    )
    return f"<table><tr>{head}</tr>{lines}</table>"


def regret_interval(row: Row) -> str:
    return interval(row.regret)
