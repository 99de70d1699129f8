"""Turns answers of the API into rows, numbers and sentences for the pages. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from html import escape as _html
from typing import Any

Json = Mapping[str, Any]
Row = dict[str, Any]

MISSING = "–"


def escape(value: Any) -> str:
    """Text of a value, safe inside HTML."""
    return _html(str(value))


def number(value: Any, digits: int = 0, unit: str = "") -> str:
    """Text of a number with thousands separators; a dash when there is none."""
    if not isinstance(value, int | float) or value != value:
        return MISSING
    return f"{value:,.{digits}f}{unit}"


def counted(value: Any, noun: str) -> str:
    """Text like `1 token` or `1,200 tokens`."""
    return f"{number(value)} {noun}{'' if value == 1 else 's'}"


def percent(value: Any, digits: int = 0) -> str:
    """Text of a share 0..1 in percent; a dash when there is none."""
    return number(100 * value, digits, " %") if isinstance(value, int | float) else MISSING


def length(value: Any) -> str:
    """Text of a draft length: whole when it is whole, else with one digit."""
    if not isinstance(value, int | float):
        return MISSING
    return number(value, 0 if float(value).is_integer() else 1)


def size(value: Any) -> str:
    """Text of a number of bytes."""
    if not isinstance(value, int | float):
        return MISSING
    for unit, bytes in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if value >= bytes:
            return number(value / bytes, 1, f" {unit}")
    return number(value, 0, " B")


def duration(seconds: Any) -> str:
    """Text like `3 h 12 min` for an uptime in seconds."""
    if not isinstance(seconds, int | float):
        return MISSING
    minutes, left = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h"
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {left} s" if minutes else f"{left} s"


def clock(time: Any) -> str:
    """UTC time of day of a moment given in seconds since the epoch or as ISO text."""
    moment = _moment(time)
    return moment.strftime("%H:%M:%S") if moment else MISSING


def day_and_clock(time: Any) -> str:
    """Likewise with the date before it."""
    moment = _moment(time)
    return moment.strftime("%Y-%m-%d %H:%M:%S") if moment else MISSING


def last_death(state: Json) -> str:
    """When and why the engine last ended, with what its log says of it; "" when it never did."""
    death = (state.get("engine") or {}).get("last_death") or {}
    if not death.get("reason"):
        return ""
    line = f" Its log says: {death['log_line']}" if death.get("log_line") else ""
    return f"{clock(death.get('time'))} UTC: {death['reason']}{line}"


def series(state: Json, span_s: int = 300) -> list[Row]:
    """One row per second of the history, with `ago` = seconds before now (-span_s..0)."""
    now = _seconds(state.get("time")) or 0.0
    rows: list[Row] = []
    for point in state.get("history") or ():
        ago = (_seconds(point.get("time")) or 0.0) - now
        if ago >= -span_s:
            rows.append({**point, "ago": round(min(ago, 0.0), 1)})
    return rows


def load_series(rows: Iterable[Row]) -> list[Row]:
    """Two rows per second: requests running and requests waiting."""
    return [
        {"ago": row["ago"], "state": state, "requests": row.get(state) or 0}
        for row in rows
        for state in ("running", "waiting")
    ]


def drafter_series(rows: Sequence[Row]) -> list[Row]:
    """Share of request-steps per second and drafter; idle seconds have no rows."""
    names = drafter_names(row.get("drafters") or {} for row in rows)
    return [
        {"ago": row["ago"], "drafter": name, "share": row["drafters"].get(name, 0.0)}
        for row in rows
        if row.get("drafters")
        for name in names
    ]


def drafter_names(shares: Iterable[Json]) -> list[str]:
    """All drafter names, `none` first."""
    names = {name for share in shares for name in share}
    return sorted(names, key=lambda name: (name != "none", name))


def main_drafter(live: Json) -> str | None:
    """What drafts now: the drafter with most request-steps, `none` only when no other has any,
    and None while nothing decodes."""
    shares: Json = live.get("drafters") or {}
    drafting = {name: share for name, share in shares.items() if name != "none" and share}
    if drafting:
        return max(drafting, key=lambda name: drafting[name])
    return "none" if shares else None


def drafter_now(live: Json) -> str:
    """`ngram 45 %`: what drafts now and its share of request-steps; a dash while idle."""
    name = main_drafter(live)
    if name is None or name == "none":
        return name or MISSING
    return f"{name} {percent(live['drafters'][name])}"


def idle(rows: Sequence[Row], span_s: int = 60) -> bool:
    """No request ran, waited or finished in the last `span_s` seconds."""
    recent = [row for row in rows if row["ago"] >= -span_s]
    return not any(
        row.get("running") or row.get("waiting") or row.get("tokens_per_s") for row in recent
    )


def has_values(rows: Iterable[Row], field: str) -> bool:
    """Any row has a value other than None and 0 for the field."""
    return any(row.get(field) for row in rows)


def pages_used(live: Json) -> tuple[int, int] | None:
    """(used, total) pages of the KV cache."""
    total, free = live.get("total_pages"), live.get("free_pages")
    return (total - free, total) if total and free is not None else None


def change(decision: Json) -> str:
    """What a decision changed, in a few words: `none, D 0 → ngram, D 4`."""
    before, after = decision.get("previous_drafter"), decision.get("drafter")
    old, new = (
        length(decision.get("previous_draft_length")),
        length(decision.get("draft_length")),
    )
    return f"{before}, D {old} → {after}, D {new}"


def realised_goodput(decision: Json) -> float | None:
    """Measured tokens/s while the decision was in force, None before its first step."""
    realised = decision.get("realised") or {}
    return realised.get("goodput") if realised.get("steps") else None


def outcome(decision: Json) -> str:
    """Measured against predicted goodput in percent, `+4 %`."""
    return difference(decision.get("predicted_goodput"), realised_goodput(decision))


def difference(predicted: Any, measured: Any) -> str:
    """A measured value against the predicted one in percent, `+4 %`; a dash without either."""
    if not predicted or measured is None:
        return MISSING
    return f"{100 * (measured / predicted - 1):+.0f} %"


def step_rows(decision: Json) -> list[Row]:
    """What a step of a decision's plan was predicted to give and what it gave, a row for tokens,
    milliseconds and their ratio; None where nothing was predicted (a server of an earlier version)
    or no step has run."""
    realised = decision.get("realised") or {}
    pairs = {
        "Tokens per step": (decision.get("predicted_tokens"), realised.get("tokens_per_step")),
        "Step (ms)": (decision.get("predicted_ms"), realised.get("ms_per_step")),
        "Goodput (tokens/s)": (decision.get("predicted_goodput"), realised_goodput(decision)),
    }
    return [
        {
            "One step": name,
            "Predicted": predicted,
            "Measured": measured,
            "Difference": difference(predicted, measured),
        }
        for name, (predicted, measured) in pairs.items()
    ]


def decision_rows(decisions: Iterable[Json]) -> list[Row]:
    """Rows of the decision table."""
    return [
        {
            "Time (UTC)": clock(decision.get("time")),
            "Change": change(decision),
            "Why": decision.get("sentence") or MISSING,
            "Reason": decision.get("reason"),
            "Predicted": decision.get("predicted_goodput"),
            "Measured": realised_goodput(decision),
            "Difference": outcome(decision),
        }
        for decision in decisions
    ]


def candidate_rows(decision: Json) -> list[Row]:
    """The candidates of a decision with a label and whether each won, best goodput first."""
    chosen = (decision.get("drafter"), decision.get("draft_length"))
    rows: list[Row] = []
    for candidate in decision.get("candidates") or ():
        drafter, size = candidate["drafter"], candidate["draft_length"]
        label = f"{drafter}, D {length(size)}"
        rows.append({**candidate, "label": label, "won": (drafter, size) == chosen})
    return sorted(rows, key=lambda row: row["goodput"], reverse=True)


def acceptance_rows(report: Json) -> list[Row]:
    """Learned acceptance from the controller's report: drafter, position, rate, reached."""
    rows: list[Row] = []
    for name, learned in (report.get("acceptance") or {}).items():
        for place in learned.get("positions") or ():
            if place.get("rate") is not None:
                rows.append({"drafter": name, **place})
    return rows


def cost_rows(report: Json) -> list[Row]:
    """Calibration points from the controller's report: requests, rows, context_len, ms."""
    points = (report.get("cost") or {}).get("points") or ()
    return sorted(points, key=lambda p: (p["requests"], p["context_len"], p["rows"]))


def cost_sentence(report: Json) -> str:
    """How far serving is from the calibration, and the drafters' own costs."""
    cost = report.get("cost") or {}
    parts: list[str] = []
    if isinstance(factor := cost.get("factor"), int | float):
        parts.append(f"While serving, steps take {number(factor, 2)} × that.")
    for name, ms in (cost.get("draft_ms") or {}).items():
        parts.append(f"One draft of {name} costs {number(ms, 3)} ms.")
    return " ".join(parts)


def setting_sentence(controller: Json) -> str:
    """The controller's mode, and the operator's limits, in sentences."""
    sentence = _mode_sentence(controller)
    if (most := controller.get("max_drafting_requests")) is not None:
        sentence += f" Nobody drafts while more than {most} requests decode."
    if (target := controller.get("tpot_target_ms")) is not None:
        sentence += f" Drafts keep TPOT within {target:g} ms where they can."
    if (budget := controller.get("draft_budget")) is not None:
        sentence += f" A step drafts at most {budget} tokens."
    return sentence


def schedule(table: Iterable[Json]) -> str:
    """D by the number of decoding requests: `2 up to 4, 1 up to 8, then 0`."""
    steps = [f"{entry['draft_length']} up to {entry['max_requests']}" for entry in table]
    return ", ".join([*steps, "then 0"])


def _mode_sentence(controller: Json) -> str:
    mode = controller.get("mode")
    if mode == "off":
        return "Speculation is off: every request decodes plainly (D = 0)."
    if mode == "pinned":
        drafter, draft_length = controller.get("drafter"), controller.get("draft_length")
        if drafter == "none":
            return "Pinned to none: every request decodes plainly (D = 0)."
        if table := controller.get("schedule"):
            by = "D by the number of decoding requests"
            return f"Pinned to {drafter}, {by}: {schedule(table)}."
        if draft_length is None:
            return f"Pinned to {drafter}; the controller chooses the draft length."
        return f"Pinned to {drafter} with D = {draft_length}."
    policy, other = controller.get("policy") or "adaptive", controller.get("ab_policy")
    if other:
        return f"Policies {policy} and {other} choose drafter and draft length."
    if policy != "adaptive":
        return f"Policy {policy} chooses drafter and draft length."
    return "The controller chooses drafter and draft length by measured goodput."


def _seconds(time: Any) -> float | None:
    if isinstance(time, int | float):
        return float(time)
    moment = _moment(time)
    return moment.timestamp() if moment else None


def _moment(time: Any) -> datetime | None:
    if isinstance(time, int | float):
        return datetime.fromtimestamp(time, UTC)
    if isinstance(time, str):
        try:
            moment = datetime.fromisoformat(time)
        except ValueError:
            return None
        return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
    return None
