"""The inputs of a decision with names and units that a person can read. Pure functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from ui.shaping import escape, length, number, percent

Show = Callable[[Any], str]


def _signed_percent(value: Any) -> str:
    return f"{100 * value:+.2f} %" if isinstance(value, int | float) else str(value)


NAMES: Final[dict[str, tuple[str, Show]]] = {
    "mode": ("Mode", str),
    "arm": ("Arm of the comparison", str),
    "policy": ("Policy", str),
    "batch": ("Decoding requests", length),
    "context": ("Context of a request (tokens)", number),
    "depth": ("Mean D (tokens)", lambda value: number(value, 2)),
    "offered": ("Requests with a draft to offer", percent),
    "first": ("First token kept, as expected", percent),
    "row_cost": ("A drafted row costs (tokens)", lambda value: number(value, 3)),
    "plain_ms": ("Plain step (ms)", lambda value: number(value, 2)),
    "plain_tokens": ("Plain step (tokens)", lambda value: number(value, 2)),
    "ms": ("Planned step (ms)", lambda value: number(value, 2)),
    "tokens": ("Planned step (tokens)", lambda value: number(value, 2)),
    "forced": ("Requests decided by a wish or pin", percent),
    "blocked": ("Requests stood down by their guard", percent),
    "cost_factor": ("Steps against the calibration", lambda value: number(value, 2, " ×")),
    "tpot_target_ms": ("Target for TPOT (ms)", lambda value: number(value, 1)),
    "tpot_ms": ("TPOT of the slowest request (ms)", lambda value: number(value, 1)),
    "target_decides": ("Steps that the TPOT target decides", percent),
    "untargeted_goodput": ("Without the target (tokens/s)", number),
    "untargeted_tpot_ms": ("Its TPOT (ms)", lambda value: number(value, 1)),
    "draft_budget": ("Draft budget per step (tokens)", number),
    "budget_decides": ("Steps that the draft budget decides", percent),
    "unbudgeted_goodput": ("Without the budget (tokens/s)", number),
    "unbudgeted_draft_tokens": ("Its draft tokens per step", lambda value: number(value, 1)),
    "loss": ("Loss against plain decoding, recent", _signed_percent),
}
"""Name and form of each input, in the order in which they are shown."""
PARTS: Final = {"offered ": "Requests with a draft of", "share ": "Requests drafted for by"}
"""Inputs that there is one of for each drafter; those of 0 are left out."""


def rows(inputs: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(name, value) of each input; one that is not known here keeps its own name."""
    known = [(text, show(inputs[name])) for name, (text, show) in NAMES.items() if name in inputs]
    parts: list[tuple[str, str]] = []
    others: list[tuple[str, str]] = []
    for name, value in inputs.items():
        if name in NAMES:
            continue
        start = next((start for start in PARTS if name.startswith(start)), None)
        if start is None:
            others.append((name, str(value)))
        elif value:
            parts.append((f"{PARTS[start]} {name.removeprefix(start)}", percent(value)))
    return known + parts + others


def table(inputs: Mapping[str, Any]) -> str:
    """HTML of the rows."""
    body = "".join(
        f'<tr><td>{escape(name)}</td><td class="num">{escape(value)}</td></tr>'
        for name, value in rows(inputs)
    )
    return f'<table class="pl-table">{body}</table>'
