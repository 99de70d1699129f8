"""Roll-ups 1 s → 1 min → 1 h and retention, in small transactions."""

from __future__ import annotations

import logging
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine

from app.db.statements import upsert
from app.db.tables import (
    SECONDS,
    audit_log,
    decisions,
    engine_aggregates,
    requests,
    step_aggregates,
    step_records,
)
from app.telemetry.merge import merge_rows

logger = logging.getLogger(__name__)

DAY = 86_400
KEEP_S = {"1s": DAY, "1m": 30 * DAY, "1h": 365 * DAY}
KEEP_REQUESTS_S = 30 * DAY
KEEP_DECISIONS_S = 90 * DAY
KEEP_STEP_RECORDS_S = 7 * DAY
KEEP_AUDIT_S = 365 * DAY

SETTLE_S = 10
"""A minute is rolled up this long after it ended: its last second may still be on its way."""
MAX_BUCKETS = 240
"""Most buckets of one level rolled up in one run; a backlog goes on in the next run."""
DELETE_ROWS = 2_000


async def run_rollup(engine: AsyncEngine, now: float) -> None:
    """Rolls up what is complete at `now` (seconds since the epoch), then deletes what is too old.

    Works from the tables alone: it may be interrupted, repeated, or find rows that came late."""
    await roll_up(engine, "1s", "1m", int(now) - SETTLE_S)
    await roll_up(engine, "1m", "1h", int(now) - SETTLE_S - SECONDS["1m"])
    if await delete_old(engine, now) and engine.dialect.name == "sqlite":
        async with engine.connect() as connection:
            await connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")


async def roll_up(engine: AsyncEngine, fine: str, coarse: str, until: int) -> int:
    """Merges the rows of level `fine` into those buckets of level `coarse` that ended by `until`
    and that hold fewer samples than `fine` has for them; returns how many buckets were written.

    Never shrinks a bucket, so rows of `fine` already deleted stay counted."""
    width = SECONDS[coarse]
    source, target = engine_aggregates[fine], engine_aggregates[coarse]
    start = (source.c.bucket - source.c.bucket % width).label("start")
    samples = sa.func.sum(source.c.samples).label("samples")
    have = (
        sa.select(start, source.c.model, samples)
        .where(source.c.bucket < until - until % width)
        .group_by(start, source.c.model)
        .subquery()
    )
    stale = (
        sa.select(have.c.start, have.c.model)
        .outerjoin(target, sa.and_(target.c.bucket == have.c.start, target.c.model == have.c.model))
        .where(sa.or_(target.c.samples.is_(None), target.c.samples < have.c.samples))
        .order_by(have.c.start)
        .limit(MAX_BUCKETS)
    )
    async with engine.connect() as connection:
        buckets = (await connection.execute(stale)).all()
    for bucket, model in buckets:
        await _merge_bucket(engine, fine, coarse, bucket, model)
    return len(buckets)


async def _merge_bucket(
    engine: AsyncEngine, fine: str, coarse: str, bucket: int, model: str
) -> None:
    async with engine.begin() as connection:
        for level in (step_aggregates, engine_aggregates):
            source, target = level[fine], level[coarse]
            found = await connection.execute(
                sa.select(source)
                .where(
                    source.c.bucket >= bucket,
                    source.c.bucket < bucket + SECONDS[coarse],
                    source.c.model == model,
                )
                .order_by(source.c.bucket)
            )
            rows = merge_rows(target, (dict(row) for row in found.mappings()), bucket)
            if rows:
                await connection.execute(upsert(target, engine.dialect.name), rows)


async def delete_old(engine: AsyncEngine, now: float) -> int:
    """Deletes rows past their retention, a page at a time; returns how many."""
    deleted = 0
    for level, keep in KEEP_S.items():
        for table in (step_aggregates[level], engine_aggregates[level]):
            deleted += await _delete_before(engine, table.c.bucket, now - keep)
    for column, keep in (
        (requests.c.ts, KEEP_REQUESTS_S),
        (decisions.c.ts, KEEP_DECISIONS_S),
        (step_records.c.ts, KEEP_STEP_RECORDS_S),
        (audit_log.c.ts, KEEP_AUDIT_S),
    ):
        deleted += await _delete_before(engine, column, now - keep)
    if deleted:
        logger.info("Deleted %d rows past their retention", deleted)
    return deleted


async def _delete_before(engine: AsyncEngine, column: sa.Column[Any], cutoff: float) -> int:
    table = column.table
    assert isinstance(table, sa.Table)
    page_end = (
        sa.select(column).where(column < cutoff).order_by(column).offset(DELETE_ROWS - 1).limit(1)
    )
    deleted = 0
    while True:
        async with engine.begin() as connection:
            last = (await connection.execute(page_end)).scalar()
            within = column < cutoff if last is None else column <= last
            deleted += (await connection.execute(table.delete().where(within))).rowcount
        if last is None:
            return deleted
