"""Reads for the operator surface: decisions, steps, requests and audit log; series comes along.

Rows come back as JSON-able dicts, newest first. `before` is the id of the last row of the page
before. All raise DatabaseError while the database is away.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.ext.asyncio import AsyncEngine

from app.db import tables
from app.db.errors import translated
from app.db.series import series
from app.realised import realised_view
from controller.contract import Realised

__all__ = ["audit", "decisions", "requests", "series", "step_records"]

Row = dict[str, Any]

MAX_LIMIT = 1000


async def decisions(
    engine: AsyncEngine,
    limit: int = 50,
    before: str | None = None,
    *,
    before_time: float | None = None,
    request: int | None = None,
    reason: str | None = None,
    drafter: str | None = None,
) -> list[Row]:
    """Decisions in the shape of GET /api/decisions.

    request: only those that concern this engine request. before_time stands in when `before` is
    not stored (it may still be on its way); without it an unknown `before` gives no rows."""
    table = tables.decisions
    where: list[sa.ColumnElement[bool]] = []
    if reason is not None:
        where.append(table.c.reason == reason)
    if drafter is not None:
        where.append(table.c.drafter == drafter)
    if request is not None:
        where.append(_contains(engine, table.c.requests, request))
    rows = await _page(engine, table, limit, before, where, before_time)
    return [_decision(row) for row in rows]


async def step_records(
    engine: AsyncEngine, limit: int = 50, before: str | None = None
) -> list[Row]:
    """Sampled steps in the shape of GET /api/step-records."""
    rows = await _page(engine, tables.step_records, limit, before, [])
    return [{"time": row.pop("ts"), **row} for row in rows]


async def requests(
    engine: AsyncEngine,
    limit: int = 50,
    before: str | None = None,
    *,
    key_id: str | None = None,
    failed: bool = False,
) -> list[Row]:
    """Finished requests with all columns. failed: only those with a status of 400 or more."""
    table = tables.requests
    where: list[sa.ColumnElement[bool]] = []
    if key_id is not None:
        where.append(table.c.key_id == key_id)
    if failed:
        where.append(table.c.status >= 400)
    return await _page(engine, table, limit, before, where)


async def audit(engine: AsyncEngine, limit: int = 50, before: str | None = None) -> list[Row]:
    """Entries of the audit log with all columns."""
    return await _page(engine, tables.audit_log, limit, before, [])


async def _page(
    engine: AsyncEngine,
    table: sa.Table,
    limit: int,
    before: str | None,
    where: Sequence[sa.ColumnElement[bool]],
    before_time: float | None = None,
) -> list[Row]:
    query = sa.select(table).where(*where).order_by(table.c.ts.desc(), table.c.id.desc())
    with translated(engine.url):
        async with engine.connect() as connection:
            if before is not None:
                mark = sa.select(table.c.ts).where(table.c.id == before)
                ts = (await connection.execute(mark)).scalar()
                if ts is None and before_time is None:
                    return []
                at = sa.tuple_(table.c.ts, table.c.id)
                mark_ts = sa.literal(before_time if ts is None else ts, sa.Double)
                query = query.where(at < sa.tuple_(mark_ts, sa.literal(before)))
            query = query.limit(max(1, min(limit, MAX_LIMIT)))
            return [dict(row) for row in (await connection.execute(query)).mappings()]


def _contains(engine: AsyncEngine, column: sa.Column[Any], value: int) -> sa.ColumnElement[bool]:
    """Whether a JSON array column holds a number."""
    if engine.dialect.name == "postgresql":
        return sa.type_coerce(column, JSONB).contains([value])
    items = sa.func.json_each(column).table_valued("value")
    return sa.exists(sa.select(1).select_from(items).where(items.c.value == value))


def _decision(row: Row) -> Row:
    steps, tokens = row.pop("realised_steps"), row.pop("realised_tokens")
    realised = realised_view(Realised(steps, tokens, row.pop("realised_ms")))
    return {**row, "time": row["ts"], "realised": realised}
