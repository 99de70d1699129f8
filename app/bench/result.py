"""A benchmark's result as it is written: JSON with every request, CSV of the rows, HTML page."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from app.bench.client import Run
from app.bench.intervals import Ratio
from app.bench.report import Row
from app.output_files import write

QUANTILES = ("p50", "p90", "p99")
FORMULAS = ("=", "+", "-", "@", "\t", "\r")
NAMED = ("ttft_ms", "tpot_ms", "itl_ms", "e2e_ms")


class Result(msgspec.Struct, frozen=True):
    """time: of the start, seconds since the epoch. machine: see machine.describe. server: what ours
    says of itself, None without it. base: the arm that others are compared with."""

    kind: str
    command: list[str]
    time: float
    machine: dict[str, Any]
    server: dict[str, Any] | None
    settings: dict[str, Any]
    base: str
    rows: list[Row]
    runs: list[Run]


def write_json(path: Path, result: Any) -> None:
    """Raises OSError."""
    write(path, json_of(result))


def json_of(result: Any) -> bytes:
    return msgspec.json.format(msgspec.json.encode(result), indent=1) + b"\n"


def csv_of(rows: Sequence[Row]) -> str:
    """A line per row: what is one number, and the quantiles."""
    out = io.StringIO()
    writer: csv.DictWriter[str] | None = None
    for row in rows:
        flat = flattened(row)
        if writer is None:
            writer = csv.DictWriter(out, list(flat), lineterminator="\n")
            writer.writeheader()
        writer.writerow(flat)
    return out.getvalue()


def flattened(row: Row) -> dict[str, Any]:
    """The columns of a row; empty where there is no value."""
    flat: dict[str, Any] = {
        "arm": row.mode,
        "phase": row.phase,
        "concurrency": row.concurrency or "",
        "rate_per_s": row.rate or "",
        "category": row.category,
        "requests": row.requests,
        "failed": row.failed,
        "tokens": row.tokens,
        "wall_s": row.wall_s,
        "tokens_per_s": row.tokens_per_s,
        "goodput_per_s": row.goodput_per_s,
        "acceptance_length": row.acceptance_length,
        "acceptance_rate": row.acceptance_rate,
        **ratio("speedup", row.speedup),
        "best_static": row.best_static or "",
        **ratio("regret", row.regret),
        "same_text": row.same_text,
    }
    for name in NAMED:
        values = getattr(row, name)
        flat |= {f"{name}_{quantile}": values.get(quantile) for quantile in QUANTILES}
    return {name: cell(value) for name, value in flat.items()}


def cell(value: Any) -> Any:
    """A text that a spreadsheet would take for a formula is marked as text: categories come out of
    files of prompts."""
    if isinstance(value, str) and value.startswith(FORMULAS):
        return f"'{value}"
    return "" if value is None else value


def ratio(name: str, value: Ratio | None) -> dict[str, Any]:
    if value is None:
        return dict.fromkeys((name, f"{name}_low", f"{name}_high"))
    return {name: value.value, f"{name}_low": value.low, f"{name}_high": value.high}
