"""Sampled steps as rows, and how well they were predicted. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ui.shaping import MISSING, Json, Row, clock, length, number, percent


def record_rows(records: Iterable[Json]) -> list[Row]:
    """Rows of the table of sampled steps."""
    return [
        {
            "Time (UTC)": clock(one["time"]),
            "Step": one["step"],
            "Requests": one["requests"],
            "Context": one["context"],
            "Prefill rows": one["prefill_rows"],
            "Drafts": drafts(one["drafts"]),
            "Tokens, predicted": one["predicted_tokens"],
            "Tokens": one["realised_tokens"],
            "ms, predicted": one["predicted_ms"],
            "ms": one["realised_ms"],
            "Price of a row (tokens)": one["price"],
            "Notes": notes(one),
        }
        for one in records
    ]


def drafts(by_drafter: Mapping[str, Json]) -> str:
    """`ngram: 7 tokens for 2 requests`; a dash where nobody drafts."""
    parts = [
        f"{name}: {length(one['tokens'])} for {length(one['requests'])}"
        for name, one in by_drafter.items()
    ]
    return ", ".join(parts) or MISSING


def notes(record: Json) -> str:
    """What was special: a probe, a guard."""
    return ", ".join((["probe"] if record["probe"] else []) + [record["guard"] or ""]).strip(", ")


def calibration_sentence(found: Json) -> str:
    """How far tokens and milliseconds of a step are from what was predicted of it."""
    parts = [
        f"{name} by {percent(one['error'], 1)} (in sum {_signed(one['bias'])})"
        for name, one in (("tokens", found.get("tokens")), ("ms", found.get("ms")))
        if one
    ]
    if not parts:
        return ""
    of = f"{number(found['records'])} sampled steps"
    without = found["records_without_prefill"]
    if without < found["records"]:
        of += f", {number(without)} of them without prefill"
    return f"On average a step differs from its prediction in {' and in '.join(parts)}; {of}."


def _signed(share: Any) -> str:
    return f"{100 * share:+.1f} %"
