"""Benchmarks that were recorded: what was measured where, and the rows; the newest are kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine

from app.db.errors import translated
from app.db.tables import benchmarks
from app.db.whole import whole

KEPT = 200
"""Older ones go when another comes."""


@dataclass(frozen=True, slots=True)
class BenchmarkRecord:
    """ts: when it was recorded, began: when it was measured; seconds since the epoch. kind: bench
    or compare. base: the arm that the rows compare with. rows: as docs/benchmark.md lists them."""

    id: str
    ts: float
    began: float
    created_by: str
    model: str
    kind: str
    base: str
    command: list[str]
    machine: dict[str, Any]
    settings: dict[str, Any]
    rows: list[dict[str, Any]]


class BenchmarkStore:
    """All methods raise DatabaseError."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    @whole
    async def put(self, record: BenchmarkRecord) -> None:
        newest = sa.select(benchmarks.c.id).order_by(*NEWEST).limit(KEPT)
        with translated(self._engine.url):
            async with self._engine.begin() as connection:
                await connection.execute(benchmarks.insert(), [asdict(record)])
                await connection.execute(benchmarks.delete().where(benchmarks.c.id.not_in(newest)))

    @whole
    async def get(self, name: str) -> BenchmarkRecord | None:
        with translated(self._engine.url):
            async with self._engine.connect() as connection:
                found = await connection.execute(
                    sa.select(benchmarks).where(benchmarks.c.id == name)
                )
                row = found.mappings().first()
                return BenchmarkRecord(**row) if row else None

    @whole
    async def delete(self, name: str) -> bool:
        """Whether there was one."""
        with translated(self._engine.url):
            async with self._engine.begin() as connection:
                found = await connection.execute(benchmarks.delete().where(benchmarks.c.id == name))
                return bool(found.rowcount)

    # Last, because inside this class `list` means this method in every annotation after it.
    @whole
    async def list(self) -> list[Mapping[str, Any]]:
        """The newest first, without their rows."""
        columns = [column for column in benchmarks.c if column.name != "rows"]
        with translated(self._engine.url):
            async with self._engine.connect() as connection:
                found = await connection.execute(sa.select(*columns).order_by(*NEWEST))
                return [dict(row) for row in found.mappings()]


NEWEST = (benchmarks.c.ts.desc(), benchmarks.c.id.desc())
