"""The rows of a benchmark as HTML tables: speed, latency, drafting. Pure functions.

Every text of a row comes from whoever recorded it and is escaped."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ui.benchmarks.facts import ALL
from ui.shaping import MISSING, escape, number, percent

Json = Mapping[str, Any]
Cell = Callable[[Json], str]

QUANTILES = ("p50", "p90", "p99")


def speed(rows: Sequence[Json], base: str, colours: Mapping[str, str]) -> str:
    """Throughput, speed-up over the base arm and regret, with their intervals. In a cell, a line
    end stays one."""
    columns: dict[str, Cell] = {
        "Tokens/s": lambda row: number(row.get("tokens_per_s") or None, 1) + mark(row),
        f"Speed-up over {base}\n95 % interval": lambda row: lines(
            times(row.get("speedup")), interval(row.get("speedup"), "{:.2f}")
        ),
        "Regret\n95 % interval": lambda row: lines(
            signed(row.get("regret")), interval(row.get("regret"), "{:+.1%}")
        ),
        "Best static": lambda row: str(row.get("best_static") or MISSING),
    }
    if any(row.get("goodput_per_s") is not None for row in rows):
        columns["Goodput\n(tokens/s)"] = lambda row: number(row.get("goodput_per_s"), 1)
    columns["Same text"] = lambda row: percent(row.get("same_text"))
    columns["Failed"] = failed
    return table(rows, columns, colours)


def latency(rows: Sequence[Json], colours: Mapping[str, str]) -> str:
    """Quantiles of TTFT, TPOT, ITL and E2E in milliseconds."""
    columns = {
        f"{name} {quantile}": quantile_of(field, quantile, digits)
        for name, field, digits in (
            ("TTFT", "ttft_ms", 0),
            ("TPOT", "tpot_ms", 1),
            ("ITL", "itl_ms", 1),
            ("E2E", "e2e_ms", 0),
        )
        for quantile in (QUANTILES if name in ("TTFT", "TPOT") else ("p50", "p99"))
    }
    return table(rows, columns, colours)


def drafting(rows: Sequence[Json], colours: Mapping[str, str]) -> str:
    """Acceptance and who drafted."""
    columns: dict[str, Cell] = {
        "Acceptance length\n(tokens)": lambda row: number(row.get("acceptance_length"), 2),
        "Acceptance rate": lambda row: percent(row.get("acceptance_rate")),
        "Drafters (share of verify steps)": shares,
    }
    return table(rows, columns, colours, left=("Drafters (share of verify steps)",))


def table(
    rows: Sequence[Json],
    columns: Mapping[str, Cell],
    colours: Mapping[str, str],
    left: Sequence[str] = (),
) -> str:
    """HTML of a row per category and arm; a category is named in its first row only."""
    head = "".join(
        f'<th scope="col"{"" if name in left else " class=num"}>{escape(name)}</th>'
        for name in columns
    )
    body: list[str] = []
    before: object = None
    for row in rows:
        category, arm = row.get("category"), str(row.get("mode"))
        name = "" if category == before else "all together" if category == ALL else str(category)
        before = category
        colour = colours.get(arm, "inherit")
        cells = "".join(
            f"<td{'' if name in left else ' class=num'}>{escape(cell(row))}</td>"
            for name, cell in columns.items()
        )
        body.append(
            f"<tr{' class=pl-first' if name else ''}><td>{escape(name)}</td>"
            f'<td class="nowrap"><span class="pl-pill" style="--c:{colour}">{escape(arm)}</span>'
            f"</td>{cells}</tr>"
        )
    return (
        '<div class="pl-wide"><table class="pl-table pl-groups"><thead><tr><th scope="col">'
        f'Category</th><th scope="col">Arm</th>{head}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table></div>"
    )


def lines(value: str, interval: str) -> str:
    """A value over its interval, where it has one."""
    return value if interval == MISSING else f"{value}\n{interval}"


def times(ratio: Json | None) -> str:
    return number((ratio or {}).get("value"), 2, " ×")


def signed(ratio: Json | None) -> str:
    """A share with its sign, `+3.1 %`."""
    value = (ratio or {}).get("value")
    return f"{100 * value:+.1f} %" if isinstance(value, int | float) else MISSING


def interval(ratio: Json | None, form: str) -> str:
    """`1.21 … 1.40`; a dash where there were too few prompts for one."""
    low, high = (ratio or {}).get("low"), (ratio or {}).get("high")
    if not isinstance(low, int | float) or not isinstance(high, int | float):
        return MISSING
    return f"{form.format(low)} … {form.format(high)}".replace("%", " %")


def quantile_of(field: str, quantile: str, digits: int) -> Cell:
    return lambda row: number((row.get(field) or {}).get(quantile), digits)


def mark(row: Json) -> str:
    """A star where stream events were counted in place of tokens."""
    return "" if row.get("counted", True) else " *"


def failed(row: Json) -> str:
    """`3 (cut 2, stalled 1)`."""
    kinds = ", ".join(f"{kind} {count}" for kind, count in (row.get("failures") or {}).items())
    count = number(row.get("failed"))
    return f"{count} ({kinds})" if kinds else count


def shares(row: Json) -> str:
    found = row.get("shares") or {}
    return ", ".join(f"{name} {percent(share)}" for name, share in found.items()) or MISSING
