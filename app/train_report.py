"""What `paceline train evaluate` measured, as tables."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text


def show(found: dict[str, Any], console: Console) -> None:
    for name, mode in found["modes"].items():
        for temperature, numbers in mode["temperatures"].items():
            console.print(_acceptance(f"{name}, temperature {temperature}", numbers))
        if cost := mode.get("cost"):
            console.print(
                Text(
                    f"{name}: {cost['token_ms']:.2f} ms for a drafted token, "
                    f"{cost['plain_step_ms']:.2f} ms for a step without drafts: "
                    f"rho {cost['rho']:.3f}"
                )
            )
    if speed := found.get("speed"):
        table = Table(title="One request at a time", box=None)
        for column in ("mode", "tokens/s", "over none"):
            table.add_column(column, justify="left" if column == "mode" else "right")
        for name, one in speed.items():
            rate, gain = one["tokens_per_second"], one["over_none"]
            table.add_row(Text(name), f"{rate:,.1f}", f"{gain:.2f}")
        console.print(table)


def _acceptance(title: str, numbers: dict[str, Any]) -> Table:
    """A row for each drafter of each category: tokens per step are of all its drafters. Names are
    Text: what a file of prompts calls its categories is no markup."""
    table = Table(title=Text(title, "italic"), box=None)
    columns = ("category", "prompts", "tokens/step", "drafter", "drafts", "AL", "acceptance")
    for column in columns:
        text = column in ("category", "drafter", "acceptance")
        table.add_column(column, justify="left" if text else "right")
    groups = [*numbers["categories"].items(), ("all", numbers)]
    for category, one in groups:
        style = "bold" if one is numbers else None
        told = [category, str(one["prompts"]), f"{one['tokens_per_step']:.3f}"]
        for drafter, places in one["positions"].items() or {"": []}.items():
            rates = " ".join(f"{place['rate']:.2f}" for place in places[:8])
            drafts = f"{places[0]['reached']:,}" if places else ""
            length = one["acceptance_length"].get(drafter)
            told += [drafter, drafts, f"{length:.2f}" if length else "", rates]
            table.add_row(*map(Text, told), style=style)
            told = ["", "", ""]
    return table
