"""The writer: batches, outages, spill and replay, and what it never does: block, raise, lose."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncEngine

from app.db import tables
from app.db.engine import create_engine
from app.telemetry.records import AuditRecord, decision_line, request_line
from app.telemetry.writer import Limits, Writer
from tests.db.databases import LockedFile, Outage
from tests.db.factories import Make

SMALL = Limits(keep_lines=40, max_lines=400)
QUICK = Limits(flush_s=0.02, retry_s=0.02, retry_max_s=0.05, keep_lines=40, max_lines=4000)

Fetch = Callable[..., Any]


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.01)


async def ids(fetch: Fetch, engine: AsyncEngine, table: sa.Table = tables.requests) -> list[str]:
    return [row["id"] for row in await fetch(engine, table)]


async def test_records_of_every_kind_are_stored(
    engine: AsyncEngine, tmp_path: Path, make: Make, fetch: Fetch
) -> None:
    writer = Writer(engine, tmp_path / "spill", model="m")
    writer.record_request(make.request(1))
    writer.record_audit(
        AuditRecord(actor_id="k", actor_name="ops", action="controller.set", after={"mode": "off"})
    )
    writer.record_snapshot(
        make.snapshot(0, make.cell(), make.cell("none"), decisions=(make.decision(1),))
    )
    writer.record_snapshot(make.snapshot(1))

    assert await writer.flush()

    (request,) = await fetch(engine, tables.requests)
    assert request["histogram"] == [1, 1, 2]
    assert request["drafters"] == {"ngram": 4}
    assert request["speculation"] == {"enabled": True}
    assert (request["prompt_tokens"], request["cached_tokens"]) == (5, 3)
    (audit,) = await fetch(engine, tables.audit_log)
    assert (audit["actor_name"], audit["before"], audit["after"]) == ("ops", None, {"mode": "off"})
    (decision,) = await fetch(engine, tables.decisions)
    assert decision["candidates"][0]["drafter"] == "ngram"
    cells = await fetch(engine, tables.step_aggregates["1s"])
    assert [(c["drafter"], c["draft_length"], c["reached"]) for c in cells] == [
        ("ngram", 2, [10, 9]),
        ("none", 0, []),
    ]
    (second,) = await fetch(engine, tables.engine_aggregates["1s"])
    assert (second["model"], second["samples"], second["running"]) == ("m", 1, 2)
    assert writer.status() == {
        "queued": 0,
        "spilled": 0,
        "dropped": 0,
        "degraded": False,
        "last_error": None,
    }


async def test_rows_are_written_in_batches(
    engine: AsyncEngine, tmp_path: Path, make: Make, fetch: Fetch
) -> None:
    commits: list[object] = []
    event.listen(engine.sync_engine, "commit", commits.append)
    writer = Writer(engine, tmp_path / "spill")
    for number in range(1200):
        writer.record_request(make.request(number))

    assert await writer.flush()

    assert len(await ids(fetch, engine)) == 1200
    assert len(commits) == 3


async def test_two_snapshots_of_one_second_add_up(
    engine: AsyncEngine, tmp_path: Path, make: Make, fetch: Fetch
) -> None:
    writer = Writer(engine, tmp_path / "spill")
    for second, cell in ((0.05, make.cell()), (0.95, make.cell(draft_length=2)), (2.0, None)):
        writer.record_snapshot(make.snapshot(second, *([cell] if cell else [])))

    await writer.flush()

    (row,) = await fetch(engine, tables.step_aggregates["1s"])
    assert (row["request_steps"], row["reached"]) == (20, [20, 18])
    (total,) = await fetch(engine, tables.engine_aggregates["1s"])
    assert (total["samples"], total["steps"], total["batch_requests"]) == (2, 20, 20.0)


async def test_a_growing_decision_replaces_itself_and_never_shrinks(
    engine: AsyncEngine, tmp_path: Path, make: Make, fetch: Fetch
) -> None:
    writer = Writer(engine, tmp_path / "spill")
    for steps in (0, 5, 9, 4):
        decision = make.decision(1, steps, closed=steps == 9)
        writer.record_snapshot(make.snapshot(steps, decisions=(decision,)))
        await writer.flush()

    (row,) = await fetch(engine, tables.decisions)
    assert (row["realised_steps"], row["realised_tokens"], row["closed"]) == (9, 27, True)


async def test_nothing_is_lost_in_an_outage(
    outage: Outage, tmp_path: Path, make: Make, fetch: Fetch
) -> None:
    engine = create_engine(outage.url, busy_timeout_ms=20)
    writer = Writer(engine, tmp_path / "spill", limits=SMALL)
    writer.record_request(make.request(0))
    assert await writer.flush()

    await outage.begin(engine)
    for number in range(1, 300):
        writer.record_request(make.request(number))
        if number % 30 == 0:
            assert not await writer.flush()
    for steps in (1, 2):
        writer.record_snapshot(make.snapshot(0, decisions=(make.decision(7, steps),)))
    status = writer.status()
    assert status["degraded"]
    assert status["last_error"]
    assert status["queued"] + status["spilled"] == 299 + 2
    assert status["spilled"] > 200
    assert status["dropped"] == 0

    await outage.end(engine)
    assert await writer.flush()

    assert await ids(fetch, engine) == [f"req_{number:06d}" for number in range(300)]
    (decision,) = await fetch(engine, tables.decisions)
    assert decision["realised_steps"] == 2
    status = writer.status()
    assert (status["queued"], status["spilled"], status["dropped"]) == (0, 0, 0)
    assert (status["degraded"], status["last_error"]) == (False, None)
    assert list((tmp_path / "spill").iterdir()) == []
    await engine.dispose()


async def test_the_running_task_survives_an_outage_and_catches_up(
    outage: Outage, tmp_path: Path, make: Make, fetch: Fetch
) -> None:
    engine = create_engine(outage.url, busy_timeout_ms=20)
    writer = Writer(engine, tmp_path / "spill", limits=QUICK)
    await writer.start()
    await outage.begin(engine)
    for number in range(100):
        writer.record_request(make.request(number))
    await until(lambda: writer.status()["degraded"] and writer.status()["spilled"] > 0)

    await outage.end(engine)
    await until(lambda: not writer.status()["degraded"] and writer.status()["queued"] == 0)

    for number in range(100, 110):
        writer.record_request(make.request(number))
    await writer.stop()
    assert await ids(fetch, engine) == [f"req_{number:06d}" for number in range(110)]
    assert writer.status()["dropped"] == 0
    await engine.dispose()


async def test_what_an_outage_left_at_the_stop_is_stored_after_the_next_start(
    outage: Outage, tmp_path: Path, make: Make, fetch: Fetch
) -> None:
    engine = create_engine(outage.url, busy_timeout_ms=20)
    writer = Writer(engine, tmp_path / "spill", model="m")
    await writer.start()
    await outage.begin(engine)
    for number in range(10):
        writer.record_request(make.request(number))
    writer.record_snapshot(make.snapshot(0, make.cell()))
    await writer.stop()
    assert writer.status()["queued"] == 0
    assert writer.status()["spilled"] == 12
    assert writer.status()["dropped"] == 0

    await outage.end(engine)
    after = Writer(engine, tmp_path / "spill")
    assert await after.flush()

    assert len(await ids(fetch, engine)) == 10
    assert len(await fetch(engine, tables.step_aggregates["1s"])) == 1
    await engine.dispose()


async def test_above_the_cap_the_oldest_records_are_dropped_and_counted(
    outage: Outage, tmp_path: Path, make: Make, fetch: Fetch
) -> None:
    size = len(request_line(make.request(0))) + 1
    limits = Limits(keep_lines=10, max_lines=400, spill_bytes=60 * size)
    engine = create_engine(outage.url, busy_timeout_ms=20)
    writer = Writer(engine, tmp_path / "spill", limits=limits)
    await outage.begin(engine)
    for number in range(300):
        writer.record_request(make.request(number))
        if number % 20 == 0:
            await writer.flush()
    dropped = writer.status()["dropped"]
    assert dropped > 0

    await outage.end(engine)
    assert await writer.flush()

    assert writer.status()["dropped"] == dropped
    assert await ids(fetch, engine) == [f"req_{number:06d}" for number in range(dropped, 300)]
    await engine.dispose()


async def test_without_database_and_disk_memory_stays_bounded_and_nothing_is_raised(
    outage: Outage, tmp_path: Path, make: Make, fetch: Fetch
) -> None:
    (tmp_path / "spill").write_text("a file where the folder should be")
    engine = create_engine(outage.url, busy_timeout_ms=20)
    writer = Writer(engine, tmp_path / "spill", limits=SMALL)
    await outage.begin(engine)
    for number in range(500):
        writer.record_request(make.request(number))
        if number % 100 == 0:
            assert not await writer.flush()
    status = writer.status()
    assert (status["queued"], status["spilled"], status["dropped"]) == (400, 0, 100)
    assert "spill folder" in (status["last_error"] or "")

    await outage.end(engine)
    assert await writer.flush()

    assert await ids(fetch, engine) == [f"req_{number:06d}" for number in range(100, 500)]
    await engine.dispose()


async def test_a_stop_without_database_and_disk_counts_what_is_lost(
    tmp_path: Path, make: Make
) -> None:
    (tmp_path / "spill").write_text("a file where the folder should be")
    engine = create_engine("postgresql://u@127.0.0.1:1/x")
    writer = Writer(engine, tmp_path / "spill")
    await writer.start()
    for number in range(5):
        writer.record_request(make.request(number))
    await writer.stop()
    assert (writer.status()["queued"], writer.status()["dropped"]) == (0, 5)
    writer.record_request(make.request(6))
    assert writer.status()["dropped"] == 6
    await engine.dispose()


async def test_replaying_a_spill_file_twice_changes_nothing(
    engine: AsyncEngine, tmp_path: Path, make: Make, fetch: Fetch
) -> None:
    spill = tmp_path / "spill"
    spill.mkdir()
    source = Writer(engine, spill, model="m")
    source.record_snapshot(make.snapshot(0, make.cell()))
    source.record_snapshot(make.snapshot(1, decisions=(make.decision(1, 3),)))
    lines = [request_line(make.request(n)) for n in range(5)] + [
        decision_line(make.decision(1, steps), "m") for steps in (1, 2)
    ]
    (spill / "0000000000.jsonl").write_bytes(b"".join(line + b"\n" for line in lines))
    shutil.copytree(spill, tmp_path / "again")
    assert await source.flush()
    names = (tables.requests, tables.decisions, *tables.step_aggregates.values())
    before = [await fetch(engine, table) for table in names]

    again = Writer(engine, tmp_path / "again", model="m")
    assert await again.flush()

    assert [await fetch(engine, table) for table in names] == before
    assert before[1][0]["realised_steps"] == 3


async def test_torn_and_foreign_lines_are_counted_and_the_rest_is_stored(
    engine: AsyncEngine, tmp_path: Path, make: Make, fetch: Fetch
) -> None:
    spill = tmp_path / "spill"
    spill.mkdir()
    good = request_line(make.request(1))
    old = request_line(make.request(2)).replace(b'"tenant"', b'"unknown_column"')
    unknown = b'["a_table_of_the_future",{"id":1}]'
    data = b"\n".join([good, unknown, old, b"\xff\x00", good[:40]])
    (spill / "0000000007.jsonl").write_bytes(data)

    writer = Writer(engine, spill)
    assert await writer.flush()

    assert await ids(fetch, engine) == ["req_000001"]
    assert writer.status()["dropped"] == 4  # `old` lacks the tenant, which must not be null


async def test_what_an_earlier_version_spilled_is_stored_without_the_new_columns(
    engine: AsyncEngine, tmp_path: Path, make: Make, fetch: Fetch
) -> None:
    spill = tmp_path / "spill"
    spill.mkdir()
    old = request_line(make.request(1)).replace(b'"cached_tokens":3,', b"")
    (spill / "0000000007.jsonl").write_bytes(b"\n".join([old, request_line(make.request(2))]))
    writer = Writer(engine, spill)
    assert await writer.flush()
    found = await fetch(engine, tables.requests)
    assert [(row["id"], row["cached_tokens"]) for row in found] == [
        ("req_000001", None),
        ("req_000002", 3),
    ]


async def test_a_record_the_database_refuses_does_not_hold_up_the_others(
    engine: AsyncEngine, tmp_path: Path, make: Make, fetch: Fetch
) -> None:
    writer = Writer(engine, tmp_path / "spill")
    for number in range(50):
        writer.record_request(make.request(number))
    writer.record_request(make.request(50, prompt_tokens=2**70))
    writer.record_request(make.request(51, status=None))
    writer.record_request(make.request(52))

    assert await writer.flush()

    assert len(await ids(fetch, engine)) == 51
    assert writer.status()["dropped"] == 2
    assert not writer.status()["degraded"]


async def test_hostile_text_and_numbers_are_stored_in_a_harmless_form(
    engine: AsyncEngine, tmp_path: Path, make: Make, fetch: Fetch
) -> None:
    writer = Writer(engine, tmp_path / "spill")
    wish = {"drafter": "nul \x00 and \ud800", "draft_length": float("nan"), "x": {1, 2}}
    writer.record_request(make.request(1, tenant="t" * 1000, speculation=wish))
    writer.record_request(make.request(2, ttft_ms=float("inf"), tenant="';--\x00"))
    writer.record_snapshot(
        make.snapshot(0, decisions=(make.decision(1, predicted_goodput=float("nan")),))
    )
    writer.record_audit(
        AuditRecord(actor_id="k", actor_name="é", action="x", before=object(), after=Path("/a"))
    )

    assert await writer.flush()

    first, second = await fetch(engine, tables.requests)
    assert first["tenant"] == "t" * 200
    assert first["speculation"]["draft_length"] is None
    assert "\x00" not in first["speculation"]["drafter"]
    assert (second["ttft_ms"], second["tenant"]) == (None, "';--\ufffd")
    assert (await fetch(engine, tables.decisions))[0]["predicted_goodput"] is None
    assert (await fetch(engine, tables.audit_log))[0]["after"] == "/a"
    assert writer.status()["dropped"] == 0


async def test_recording_never_raises(tmp_path: Path, make: Make) -> None:
    class Broken:
        def __str__(self) -> str:
            raise RuntimeError("no text")

    engine = create_engine("sqlite://")
    writer = Writer(engine, tmp_path / "spill")
    writer.record_audit(AuditRecord(actor_id="k", actor_name="n", action="a", before=Broken()))
    writer.record_request(None)  # pyright: ignore[reportArgumentType]
    assert writer.status()["dropped"] == 2
    await engine.dispose()


async def test_a_database_that_hangs_does_not_hold_up_the_stop(tmp_path: Path, make: Make) -> None:
    path = tmp_path / "paceline.db"
    outage = LockedFile(path)
    engine = create_engine(outage.url, busy_timeout_ms=1500)
    writer = Writer(engine, tmp_path / "spill", limits=QUICK)
    await writer.start()
    await outage.begin(engine)
    writer.record_request(make.request(1))
    await asyncio.sleep(0.1)  # the task is inside the database now

    await writer.stop(deadline_s=0.05)

    assert writer.status()["spilled"] == 1
    assert writer.status()["dropped"] == 0
    await outage.end(engine)
    await engine.dispose()
    assert sqlite3.connect(path).execute("SELECT count(*) FROM requests").fetchone() == (0,)


async def test_the_last_second_is_stored_when_the_engine_falls_silent(
    engine: AsyncEngine, tmp_path: Path, make: Make, fetch: Fetch
) -> None:
    import time

    writer = Writer(engine, tmp_path / "spill", limits=QUICK)
    a_minute_ago = time.time() - 60 - make.time
    writer.record_snapshot(make.snapshot(a_minute_ago, make.cell()))
    await writer.start()
    rows: list[Any] = []
    while not rows:
        await asyncio.sleep(0.02)
        rows = await fetch(engine, tables.step_aggregates["1s"])
    await writer.stop()
    assert len(rows) == 1


async def test_rollups_run_in_the_writers_task(
    engine: AsyncEngine, tmp_path: Path, make: Make, fetch: Fetch
) -> None:
    import time

    writer = Writer(engine, tmp_path / "spill", limits=QUICK)
    an_hour_ago = time.time() - 3600 - make.time
    for second in range(3):
        writer.record_snapshot(make.snapshot(an_hour_ago + second, make.cell()))
    await writer.start()
    rows: list[Any] = []
    while not rows:
        await asyncio.sleep(0.02)
        rows = await fetch(engine, tables.step_aggregates["1m"])
    await writer.stop()
    assert rows[0]["bucket"] % 60 == 0


async def test_the_event_loop_stays_free_while_the_database_is_locked(
    tmp_path: Path, make: Make
) -> None:
    outage = LockedFile(tmp_path / "paceline.db")
    engine = create_engine(outage.url, busy_timeout_ms=300)
    writer = Writer(engine, tmp_path / "spill")
    await outage.begin(engine)
    writer.record_request(make.request(1))
    flush = asyncio.create_task(writer.flush())
    turns = 0
    while not flush.done():
        await asyncio.sleep(0.001)
        turns += 1
    assert not await flush
    assert turns > 10  # a blocked loop would have had one or two
    await outage.end(engine)
    await engine.dispose()


async def test_a_lost_connection_is_not_taken_for_a_bad_record(tmp_path: Path, make: Make) -> None:
    engine = create_engine("postgresql://u@127.0.0.1:1/x")
    writer = Writer(engine, tmp_path / "spill")
    writer.record_request(make.request(1))
    assert not await writer.flush()
    assert writer.status()["queued"] == 1
    await engine.dispose()
