"""Writes queue lines to the database, one transaction per batch."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.sql.base import Executable

from app.db.errors import brief, is_bad_row
from app.db.statements import insert_new, upsert
from app.db.tables import api_keys, decisions, engine_aggregates, step_aggregates
from app.telemetry.records import Row, parse

logger = logging.getLogger(__name__)

_REPLACED = {table.name for table in (*step_aggregates.values(), *engine_aggregates.values())}


async def write_batch(engine: AsyncEngine, lines: Sequence[bytes]) -> int:
    """Stores the lines in order and returns how many were refused for their own fault.

    Writing the same lines again changes nothing. Raises what the driver raises when the database
    does not take any; then nothing of the batch is stored, or all of it."""
    groups, refused = _group(lines)
    try:
        async with engine.begin() as connection:
            for (table, _columns), rows in groups.items():
                await connection.execute(_statement(table, engine.dialect.name), rows)
    except Exception as error:
        if not is_bad_row(error):
            raise
        if len(lines) == 1:
            logger.error("A record was refused by the database: %s", brief(error))
            return 1
        middle = len(lines) // 2
        return await write_batch(engine, lines[:middle]) + await write_batch(engine, lines[middle:])
    return refused


def _group(lines: Sequence[bytes]) -> tuple[dict[tuple[sa.Table, frozenset[str]], list[Row]], int]:
    """Rows by table and column set (an older version's spill file may lack columns)."""
    groups: dict[tuple[sa.Table, frozenset[str]], list[Row]] = {}
    refused = 0
    for encoded in lines:
        parsed = parse(encoded)
        if parsed is None:
            refused += 1
            continue
        table, row = parsed
        if table is api_keys:
            row = {"key_id": row.get("id"), "used_at": row.get("last_used")}
        groups.setdefault((table, frozenset(row)), []).append(row)
    return groups, refused


def _statement(table: sa.Table, dialect: str) -> Executable:
    if table is api_keys:
        used_at: Any = sa.bindparam("used_at", type_=sa.Double)
        unset_or_older = sa.or_(api_keys.c.last_used.is_(None), api_keys.c.last_used < used_at)
        return (
            api_keys.update()
            .where(api_keys.c.id == sa.bindparam("key_id"), unset_or_older)
            .values(last_used=used_at)
        )
    if table is decisions:
        return upsert(table, dialect, not_below="realised_steps")
    if table.name in _REPLACED:
        return upsert(table, dialect)
    return insert_new(table, dialect)
