"""Roll-ups add up exactly, whatever is late, repeated or deleted; retention keeps what it says."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from sqlalchemy.ext.asyncio import AsyncEngine

from app.db import tables
from app.db.engine import create_engine
from app.telemetry import rollup
from app.telemetry.merge import merge_rows
from app.telemetry.records import AuditRecord, step_rows
from app.telemetry.rollup import DAY, delete_old, run_rollup
from app.telemetry.writer import Writer
from engine.wire import Cell
from tests.db.factories import Make

Fetch = Callable[..., Any]
START = 1_800_000_000  # the start of an hour
FAMILIES = (tables.step_aggregates, tables.engine_aggregates)

CELLS = st.builds(
    Make.cell,
    st.just(Make()),
    st.sampled_from(["none", "ngram", "suffix"]),
    st.integers(1, 5),
    st.integers(1, 50),
)
SECONDS = st.dictionaries(st.integers(0, 7500), st.lists(CELLS, max_size=4), max_size=25)


def totals(table: sa.Table, rows: list[dict[str, Any]]) -> dict[Any, Any]:
    """Sums of every summed column by key, the bucket aside."""
    keys = [column.name for column in table.primary_key if column.name != "bucket"]
    result: dict[Any, Counter[Any]] = {}
    for row in rows:
        total = result.setdefault(tuple(row[key] for key in keys), Counter())
        for column in table.columns:
            how = column.info.get("merge")
            if how == "sum":
                total[column.name] += row[column.name]
            elif how == "positions":
                for position, count in enumerate(row[column.name]):
                    total[column.name, position] += count
    return result


async def clear(engine: AsyncEngine) -> None:
    async with engine.begin() as connection:
        for table in tables.metadata.sorted_tables:
            await connection.execute(table.delete())


async def record(engine: AsyncEngine, spill: Path, seconds: dict[int, list[Cell]]) -> None:
    writer = Writer(engine, spill, model="m")
    make = Make()
    for second in sorted(seconds):
        # one cell per key and second, as the engine sends them
        unique = {(cell.drafter, cell.draft_length): cell for cell in seconds[second]}
        writer.record_snapshot(make.snapshot(second, *unique.values()))
    await writer.stop()


@settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(first=SECONDS, late=SECONDS)
def test_minutes_and_hours_sum_to_the_seconds(
    url: str, tmp_path: Path, fetch: Fetch, first: dict[int, Any], late: dict[int, Any]
) -> None:
    late = {second: cells for second, cells in late.items() if second not in first}

    async def check() -> None:
        engine = create_engine(url)
        await clear(engine)
        for seconds in (first, late, {}):  # late rows are found, and a repeat changes nothing
            await record(engine, tmp_path / "spill", seconds)
            await run_rollup(engine, START + 4 * 3600)
        for family in FAMILIES:
            rows = {level: await fetch(engine, table) for level, table in family.items()}
            expected = totals(family["1s"], rows["1s"])
            for level, width in (("1m", 60), ("1h", 3600)):
                assert totals(family[level], rows[level]) == expected
                assert {row["bucket"] // width for row in rows["1s"]} == {
                    row["bucket"] // width for row in rows[level]
                }
                assert all(row["bucket"] % width == 0 for row in rows[level])
        await engine.dispose()

    asyncio.run(check())


def test_position_lists_of_different_lengths_add_up_element_by_element(make: Make) -> None:
    short, long = make.cell("ngram", 2, 10), replace(make.cell("ngram", 4, 10), draft_length=2)
    rows = [row for cell in (short, long) for row in step_rows(make.snapshot(0, cell), "m", START)]
    for ordered in (rows, rows[::-1]):
        (merged,) = merge_rows(tables.step_aggregates["1m"], ordered, START)
        assert merged["reached"] == [20, 18, 8, 7]
        assert merged["accepted_at"] == [16, 14, 6, 5]


async def test_largest_and_smallest_values_are_kept(
    engine: AsyncEngine, tmp_path: Path, make: Make, fetch: Fetch
) -> None:
    writer = Writer(engine, tmp_path / "spill")
    for second, (batch, free, p99) in enumerate([(2, 90, None), (8, 50, 20.0), (4, 70, 15.0)]):
        writer.record_snapshot(
            make.snapshot(second, batch_max=batch, free_pages=free, step_ms_p99=p99)
        )
    await writer.stop()

    await run_rollup(engine, START + 100)

    (row,) = await fetch(engine, tables.engine_aggregates["1m"])
    kept = (row["batch_max"], row["free_pages_min"], row["step_ms_p99_max"], row["samples"])
    assert kept == (8, 50, 20.0, 3)


async def test_a_bucket_is_rolled_up_only_when_it_is_complete(
    engine: AsyncEngine, tmp_path: Path, make: Make, fetch: Fetch
) -> None:
    await record(engine, tmp_path / "spill", {59: [make.cell()], 60: [make.cell()]})
    await run_rollup(engine, START + 65)
    assert await fetch(engine, tables.engine_aggregates["1m"]) == []
    await run_rollup(engine, START + 75)
    (minute,) = await fetch(engine, tables.engine_aggregates["1m"])
    assert minute["bucket"] == START
    assert await fetch(engine, tables.engine_aggregates["1h"]) == []
    await run_rollup(engine, START + 3700)
    (hour,) = await fetch(engine, tables.engine_aggregates["1h"])
    assert (hour["bucket"], hour["samples"]) == (START, 2)


async def test_a_backlog_is_rolled_up_over_several_runs(
    engine: AsyncEngine,
    tmp_path: Path,
    make: Make,
    fetch: Fetch,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rollup, "MAX_BUCKETS", 3)
    await record(engine, tmp_path / "spill", {60 * n: [make.cell()] for n in range(7)})
    counts: list[int] = []
    for _ in range(3):
        await run_rollup(engine, START + 1000)
        counts.append(len(await fetch(engine, tables.engine_aggregates["1m"])))
    assert counts == [3, 6, 7]


async def test_rolled_up_counts_outlive_the_seconds(
    engine: AsyncEngine, tmp_path: Path, make: Make, fetch: Fetch
) -> None:
    await record(engine, tmp_path / "spill", {n: [make.cell()] for n in range(60)})
    await run_rollup(engine, START + 100)
    before = await fetch(engine, tables.step_aggregates["1m"])

    for second in range(0, 400, 7):  # runs while the minute leaves the retention
        await run_rollup(engine, START + DAY + second)

    assert await fetch(engine, tables.step_aggregates["1s"]) == []
    assert await fetch(engine, tables.step_aggregates["1m"]) == before
    assert before[0]["request_steps"] == 600


async def test_seconds_older_than_their_retention_still_reach_the_minutes(
    engine: AsyncEngine, tmp_path: Path, make: Make, fetch: Fetch
) -> None:
    await record(engine, tmp_path / "spill", {5: [make.cell()]})
    await run_rollup(engine, START + 3 * DAY)
    assert await fetch(engine, tables.step_aggregates["1s"]) == []
    assert len(await fetch(engine, tables.step_aggregates["1m"])) == 1
    assert len(await fetch(engine, tables.step_aggregates["1h"])) == 1


async def test_each_table_keeps_rows_for_its_time(
    engine: AsyncEngine,
    tmp_path: Path,
    make: Make,
    fetch: Fetch,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rollup, "DELETE_ROWS", 4)  # several pages
    now = START + 400 * DAY
    writer = Writer(engine, tmp_path / "spill")
    ages = {"requests": 30, "decisions": 90, "step_records": 7, "audit_log": 365}
    for number in range(10):
        for sign, side in ((1, "old"), (-1, "new")):
            key = number if side == "old" else 100 + number
            age = {name: now - days * DAY - sign * (number + 1) for name, days in ages.items()}
            writer.record_request(make.request(key, ts=age["requests"]))
            writer.record_audit(
                AuditRecord(
                    id=f"{side}{number}",
                    ts=age["audit_log"],
                    actor_id="k",
                    actor_name="n",
                    action="a",
                )
            )
            decision = make.decision(key, time=age["decisions"])
            step = make.step_record(key, time=age["step_records"])
            writer.record_snapshot(make.snapshot(0, decisions=(decision,), step_records=(step,)))
    await writer.stop()

    deleted = await delete_old(engine, now)

    assert [row["id"] for row in await fetch(engine, tables.requests)] == [
        f"req_{100 + number:06d}" for number in range(10)
    ]
    assert len(await fetch(engine, tables.decisions)) == 10
    assert [row["id"] for row in await fetch(engine, tables.step_records)] == [
        f"step_{100 + number:06d}" for number in range(10)
    ]
    assert {row["id"][:3] for row in await fetch(engine, tables.audit_log)} == {"new"}
    assert deleted == 40 + 1  # and the second all snapshots fell into


async def test_many_rows_of_one_moment_are_deleted(
    engine: AsyncEngine,
    tmp_path: Path,
    make: Make,
    fetch: Fetch,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rollup, "DELETE_ROWS", 3)
    writer = Writer(engine, tmp_path / "spill")
    for number in range(20):
        writer.record_request(make.request(number, ts=5.0))
    await writer.stop()
    assert await delete_old(engine, START) == 20
    assert await fetch(engine, tables.requests) == []
