"""Any experiment's JSON as a Markdown table: rows of arms, or its numbers by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from app.bench.report import Row
from app.bench.table import markdown

MOST_LINES = 200
SKIPPED = ("command", "time", "machine", "server")
"""What says where and how it was measured."""


def summary(result: Mapping[str, Any]) -> str:
    """Markdown of a result: the rows of `paceline bench` as their table, else each number."""
    if isinstance(result.get("rows"), list) and isinstance(result.get("base"), str):
        try:
            return markdown(msgspec.convert(result["rows"], list[Row]), result["base"])
        except msgspec.ValidationError:
            pass  # rows of another program
    lines = ["| what | value |", "|---|---:|"]
    for number, (name, value) in enumerate(numbers(result)):
        if number == MOST_LINES:
            lines.append("| … | see the JSON |")
            break
        lines.append(f"| {name.replace('|', '/')} | {value:.6g} |")
    return "\n".join(lines) + "\n"


def numbers(found: Any, name: str = "") -> Iterator[tuple[str, float]]:
    """Every number with the path that leads to it: `steady.worst_vs_none`."""
    match found:
        case bool():
            pass
        case int() | float():
            yield name, found
        case Mapping():
            for key, value in found.items():
                if name or key not in SKIPPED:
                    yield from numbers(value, f"{name}.{key}" if name else str(key))
        case list():
            for index, value in enumerate(found):
                yield from numbers(value, f"{name}.{index}")
