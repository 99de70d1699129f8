"""Time series of the engine, read from the roll-up level that fits the range."""

from __future__ import annotations

import math
import operator
import time
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from app.db import tables
from app.db.errors import translated

Row = dict[str, Any]

_SQL_MERGE: dict[str, Any] = {"sum": sa.func.sum, "max": sa.func.max, "min": sa.func.min}
_PYTHON_MERGE: dict[str, Any] = {"sum": operator.add, "max": max, "min": min}
_RULES = {
    column.name: column.info.get("merge") for column in tables.engine_aggregates["1s"].columns
}


async def series(
    engine: AsyncEngine,
    start: float,
    end: float,
    max_points: int = 300,
    *,
    model: str | None = None,
    now: float | None = None,
) -> list[Row]:
    """Points of [start, end) in seconds since the epoch, oldest first, at most max_points (2 at
    least).

    Each covers `seconds` from `time` on; seconds without data give no point. Reads the finest
    level that the range needs and that is still kept at its start; what that level does not hold
    yet comes from the finer ones. Shares are 0..1, None when nothing ran; batch_mean is over
    steps, running and waiting over snapshots, tpot_ms over tokens."""
    if end <= start:
        return []
    now = time.time() if now is None else now
    levels, width = _level(start, end, max(2, max_points), now)
    first = math.floor(start / width) * width
    points: dict[int, Row] = {}
    with translated(engine.url):
        async with engine.connect() as connection:
            for level in levels:
                part_end = math.ceil(end)
                if level != levels[-1]:
                    part_end = min(part_end, await _end_of(connection, level, model))
                if part_end <= first:
                    continue
                await _add_points(connection, level, (first, part_end), width, model, points)
                first = part_end
    return [_finish(points[bucket]) for bucket in sorted(points)]


def _level(start: float, end: float, max_points: int, now: float) -> tuple[list[str], int]:
    """The levels to read, coarsest first, and the width of a point in seconds."""
    width = max(1, math.ceil((end - start) / max_points))
    if (end // width - start // width) + 1 > max_points:  # unaligned ends add a point
        width = max(width, math.ceil((end - start) / (max_points - 1)))
    age = now - start
    if width >= 3600 or age > 30 * 86_400:
        finest, levels = 3600, ["1h", "1m", "1s"]
    elif width >= 60 or age > 86_400:
        finest, levels = 60, ["1m", "1s"]
    else:
        finest, levels = 1, ["1s"]
    return levels, math.ceil(width / finest) * finest


async def _end_of(connection: AsyncConnection, level: str, model: str | None) -> int:
    table = tables.engine_aggregates[level]
    query = sa.select(sa.func.max(table.c.bucket))
    if model is not None:
        query = query.where(table.c.model == model)
    last = (await connection.execute(query)).scalar()
    return 0 if last is None else int(last) + tables.SECONDS[level]


async def _add_points(
    connection: AsyncConnection,
    level: str,
    span: tuple[int, int],
    width: int,
    model: str | None,
    points: dict[int, Row],
) -> None:
    """Adds the rows of [span) to the sums in `points`, by the start of their point."""
    for kind, table in (
        ("engine", tables.engine_aggregates[level]),
        ("steps", tables.step_aggregates[level]),
    ):
        start = (table.c.bucket - table.c.bucket % width).label("start")
        sums = [
            _SQL_MERGE[column.info["merge"]](column).label(column.name)
            for column in table.columns
            if column.info.get("merge") in _SQL_MERGE
        ]
        keys: list[Any] = [start]
        if kind == "steps":
            keys.append(table.c.drafter)
            weighted = table.c.draft_length * table.c.request_steps
            sums.append(sa.func.sum(weighted).label("length_sum"))
        query = sa.select(*keys, *sums).where(table.c.bucket >= span[0], table.c.bucket < span[1])
        if model is not None:
            query = query.where(table.c.model == model)
        for row in (await connection.execute(query.group_by(*keys))).mappings():
            bucket = int(row["start"])
            point = points.setdefault(
                bucket, {"time": bucket, "seconds": width, "engine": {}, "steps": {}}
            )
            into = point["engine"]
            if kind == "steps":
                into = point["steps"].setdefault(row["drafter"], {})
            _accumulate(into, dict(row))


def _accumulate(into: Row, row: Row) -> None:
    for name, value in row.items():
        if name in ("start", "drafter") or value is None:
            continue
        # PostgreSQL sums BIGINT as NUMERIC
        number = value if isinstance(value, int | float) else int(value)
        if name not in into:
            into[name] = number
        else:
            into[name] = _PYTHON_MERGE[_RULES.get(name) or "sum"](into[name], number)


def _finish(point: Row) -> Row:
    total: Row = point["engine"]
    by_drafter: dict[str, Row] = point["steps"]

    def over(name: str) -> float:
        return sum(row[name] for row in by_drafter.values())

    request_steps = over("request_steps")
    interval = total.get("interval_s", 0.0)
    tokens = total.get("tokens", 0)
    return {
        "time": point["time"],
        "seconds": point["seconds"],
        "tokens": tokens,
        "tokens_per_s": _ratio(tokens, interval),
        "prefill_tokens_per_s": _ratio(total.get("prefill_tokens", 0), interval),
        "tpot_ms": _ratio(total.get("tpot_ms_tokens", 0.0), total.get("tpot_tokens", 0)),
        "step_ms_p99_max": total.get("step_ms_p99_max"),
        "batch_mean": _ratio(total.get("batch_requests", 0.0), total.get("steps", 0)),
        "batch_max": total.get("batch_max"),
        "running": _ratio(total.get("running", 0), total.get("samples", 0)),
        "waiting": _ratio(total.get("waiting", 0), total.get("samples", 0)),
        "free_pages_min": total.get("free_pages_min"),
        "total_pages": total.get("total_pages"),
        "drafted_share": _ratio(total.get("drafted_tokens", 0), tokens),
        "draft_length_mean": _ratio(over("length_sum"), request_steps),
        "acceptance_rate": _ratio(over("accepted"), over("drafted")),
        "acceptance_length": _ratio(over("tokens"), request_steps),
        "drafters": {
            name: row["request_steps"] / request_steps
            for name, row in sorted(by_drafter.items())
            if request_steps
        },
    }


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None
