"""The rows of a benchmark as a table on the terminal, and as Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from app.bench.intervals import Ratio
from app.bench.report import ALL, Row

LEFT = ("load", "category", "arm")
SHOWN_POSITIONS = 8


def cells(row: Row, base: str, with_goodput: bool) -> dict[str, str]:
    """What is shown of a row, by column."""
    shown = {
        "load": row.load.label,
        "category": row.category,
        "arm": row.mode,
        "tokens/s": throughput(row),
        f"vs {base}": ratio(row.speedup),
        "95 %": interval(row.speedup),
        "regret": "-" if row.regret is None else f"{row.regret.value:+.1%}",
        "AL": number(row.acceptance_length, "{:.2f}"),
        "accepted": number(row.acceptance_rate, "{:.0%}"),
        "TTFT ms": number(row.ttft_ms.get("p50"), "{:.0f}"),
        "TPOT ms": number(row.tpot_ms.get("p50"), "{:.1f}"),
        "TPOT p99": number(row.tpot_ms.get("p99"), "{:.1f}"),
        "E2E ms": number(row.e2e_ms.get("p50"), "{:.0f}"),
    }
    if with_goodput:
        shown["goodput"] = number(row.goodput_per_s, "{:.1f}")
    shown["same text"] = number(row.same_text, "{:.0%}")
    shown["failed"] = failures(row)
    return shown


def show(found: Sequence[Row], base: str, console: Console) -> None:
    """Print the rows, and acceptance by position where the server told it. Cells are Text: what a
    file of prompts calls its categories is no markup."""
    if not found:
        console.print("Nothing was measured.")
        return
    with_goodput = any(row.goodput_per_s is not None for row in found)
    table = Table(box=None, header_style="bold", padding=(0, 1))
    for name in cells(found[0], base, with_goodput):
        table.add_column(Text(name), justify="left" if name in LEFT else "right")
    for row in found:
        shown = map(Text, cells(row, base, with_goodput).values())
        table.add_row(*shown, end_section=row.category == ALL)
    console.print(table)
    console.print(
        Text(
            f"vs {base}: speed of the same prompts, with its 95 % interval. regret: what is "
            "missing to the fastest fixed arm of the row."
        )
    )
    if not all(row.counted for row in found):
        console.print("* The server counts no tokens: stream events were counted instead.")
    show_positions(found, console)


def show_positions(found: Sequence[Row], console: Console) -> None:
    """Conditional acceptance by position, of each drafter in each arm, all categories together."""
    entries = [
        (row, drafter, positions)
        for row in found
        if row.category == ALL
        for drafter, positions in row.conditional.items()
    ]
    if not entries:
        return
    table = Table(title="Accepted, of the drafts accepted up to there, by position", box=None)
    for head in ("load", "arm", "drafter", *(str(k) for k in range(1, SHOWN_POSITIONS + 1))):
        left = head in ("load", "arm", "drafter")
        table.add_column(head, justify="left" if left else "right")
    for row, drafter, positions in entries:
        rates = [f"{one.rate:.2f}" for one in positions[:SHOWN_POSITIONS]]
        table.add_row(*map(Text, (row.load.label, row.mode, drafter, *rates)))
    console.print(table)


def markdown(found: Sequence[Row], base: str) -> str:
    """The rows as a Markdown table."""
    if not found:
        return "Nothing was measured.\n"
    with_goodput = any(row.goodput_per_s is not None for row in found)
    shown = [cells(row, base, with_goodput) for row in found]
    lines = [list(shown[0]), ["---" if name in LEFT else "---:" for name in shown[0]]]
    lines += [list(one.values()) for one in shown]
    return "".join("| " + " | ".join(escaped(line)) + " |\n" for line in lines)


def escaped(line: Sequence[str]) -> list[str]:
    return [cell.replace("|", "\\|").replace("\n", " ") for cell in line]


def throughput(row: Row) -> str:
    """No number where there is no time: every chunk was cut."""
    return f"{row.tokens_per_s:.1f}" + ("" if row.counted else "*") if row.wall_s else "-"


def ratio(value: Ratio | None) -> str:
    return "-" if value is None else f"{value.value:.2f}x"


def interval(value: Ratio | None) -> str:
    if value is None or value.low is None or value.high is None:
        return "-"
    return f"{value.low:.2f}-{value.high:.2f}"


def failures(row: Row) -> str:
    """How many failed, and how: `3 (cut 2, stalled 1)`."""
    kinds = ", ".join(f"{kind} {count}" for kind, count in row.failures.items())
    return f"{row.failed} ({kinds})" if kinds else str(row.failed or "-")


def number(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)
