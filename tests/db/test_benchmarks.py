"""Recorded benchmarks in both databases: as they were put, newest first, only so many."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from app.db import benchmarks
from app.db.benchmarks import BenchmarkRecord, BenchmarkStore
from app.db.engine import create_engine
from app.db.errors import DatabaseError
from tests.db.databases import Outage

ROWS = [{"mode": "auto", "speedup": {"value": 1.5, "low": None}, "category": "ä"}]
RECORD = BenchmarkRecord(
    "b1", 5.5, 1.25, "op", "m", "bench", "none", ["paceline", "bench"], {"cores": 2}, {}, ROWS
)


async def test_a_benchmark_comes_back_as_it_was_put(engine: AsyncEngine) -> None:
    store = BenchmarkStore(engine)
    await store.put(RECORD)
    assert await store.get("b1") == RECORD
    assert await store.get("other") is None
    (listed,) = await store.list()
    assert "rows" not in listed
    assert listed["command"] == ["paceline", "bench"]


async def test_the_newest_come_first_and_the_oldest_go(
    engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(benchmarks, "KEPT", 3)
    store = BenchmarkStore(engine)
    for number in (4, 1, 3, 2, 5):
        await store.put(replace(RECORD, id=f"b{number}", ts=float(number)))
    assert [row["id"] for row in await store.list()] == ["b5", "b4", "b3"]
    assert await store.delete("b4")
    assert not await store.delete("b4")
    assert [row["id"] for row in await store.list()] == ["b5", "b3"]


async def test_a_database_that_is_away_is_an_error_with_a_remedy(outage: Outage) -> None:
    engine = create_engine(outage.url, busy_timeout_ms=20)
    store = BenchmarkStore(engine)
    await store.put(RECORD)
    await outage.begin(engine)
    try:
        with pytest.raises(DatabaseError):
            await store.put(replace(RECORD, id="b2"))
    finally:
        await outage.end(engine)
    assert await store.get("b1") == RECORD
    await engine.dispose()
