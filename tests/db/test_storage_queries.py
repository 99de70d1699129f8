"""Reading back: pages, filters and time series."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from app.db import queries
from app.db.engine import create_engine
from app.db.errors import DatabaseError
from app.db.series import _level
from app.telemetry.records import AuditRecord
from app.telemetry.rollup import run_rollup
from app.telemetry.writer import Writer
from tests.db.factories import Make

START = 1_800_000_000


async def store(engine: AsyncEngine, tmp_path: Path, *snapshots: object, **others: list) -> None:
    writer = Writer(engine, tmp_path / "spill", model="m")
    for snapshot in snapshots:
        writer.record_snapshot(snapshot)  # pyright: ignore[reportArgumentType]
    for request in others.get("requests", []):
        writer.record_request(request)
    for audit in others.get("audits", []):
        writer.record_audit(audit)
    await writer.stop()
    assert writer.status()["dropped"] == 0


async def test_pages_follow_each_other_without_gap_or_repeat(
    engine: AsyncEngine, tmp_path: Path, make: Make
) -> None:
    # several of one moment: the id decides between them
    made = [make.request(n, ts=START + n // 4) for n in range(23)]
    await store(engine, tmp_path, requests=made)
    seen: list[str] = []
    before = None
    while page := await queries.requests(engine, 5, before):
        seen += [row["id"] for row in page]
        before = seen[-1]
    assert seen == [f"req_{n:06d}" for n in reversed(range(23))]


async def test_requests_are_filtered_by_key_and_failure(
    engine: AsyncEngine, tmp_path: Path, make: Make
) -> None:
    made = [
        make.request(1),
        make.request(2, key_id="key_2"),
        make.request(3, status=503, error_code="engine_restarting"),
    ]
    await store(engine, tmp_path, requests=made)
    assert [r["id"] for r in await queries.requests(engine, key_id="key_2")] == ["req_000002"]
    (failed,) = await queries.requests(engine, failed=True)
    assert (failed["error_code"], failed["histogram"]) == ("engine_restarting", [1, 1, 2])


async def test_decisions_come_in_the_shape_of_the_api(
    engine: AsyncEngine, tmp_path: Path, make: Make
) -> None:
    await store(engine, tmp_path, make.snapshot(0, decisions=(make.decision(1, 2),)))
    (row,) = await queries.decisions(engine)
    assert row["time"] == START + 1
    assert row["realised"] == {
        "steps": 2,
        "tokens": 6,
        "ms": 40.0,
        "goodput": 150.0,
        "tokens_per_step": 3.0,
        "ms_per_step": 20.0,
    }
    assert (row["predicted_tokens"], row["predicted_ms"]) == (3.1, 20.0)
    assert row["requests"] == [1, 2]
    assert row["runner_up"]["drafter"] == "none"
    assert (row["closed"], row["guard"]) == (False, None)
    assert row["inputs"] == {"batch": 2, "acceptance": [0.8, 0.7]}


async def test_step_records_come_in_the_shape_of_the_api_and_page_by_page(
    engine: AsyncEngine, tmp_path: Path, make: Make
) -> None:
    made = tuple(make.step_record(number) for number in range(7))
    await store(engine, tmp_path, make.snapshot(0, step_records=made))
    first = await queries.step_records(engine, 3)
    assert [row["step"] for row in first] == [6, 5, 4]
    assert [row["step"] for row in await queries.step_records(engine, 9, first[-1]["id"])] == [
        3,
        2,
        1,
        0,
    ]
    assert first[0] == {
        "id": "step_000006",
        "time": START + 6,
        "model": "m",
        "step": 6,
        "requests": 3,
        "context": 210.5,
        "prefill_rows": 0,
        "drafts": {"ngram": {"requests": 2, "tokens": 7}},
        "predicted_tokens": 5.0,
        "predicted_ms": 20.0,
        "realised_tokens": 4,
        "realised_ms": 21.0,
        "price": 0.06,
        "probe": False,
        "guard": None,
        "decision": "dec_000001",
    }


async def test_a_step_record_that_comes_twice_is_stored_once(
    engine: AsyncEngine, tmp_path: Path, make: Make
) -> None:
    snapshot = make.snapshot(0, step_records=(make.step_record(1), make.step_record(1)))
    await store(engine, tmp_path, snapshot)
    assert len(await queries.step_records(engine)) == 1


async def test_decisions_are_filtered_and_paged(
    engine: AsyncEngine, tmp_path: Path, make: Make
) -> None:
    made = tuple(
        make.decision(n, reason="probe" if n % 2 else "better_goodput", drafter=name)
        for n, name in enumerate(["ngram", "suffix", "ngram", "none", "ngram", "ngram"])
    )
    await store(engine, tmp_path, make.snapshot(0, decisions=made))

    async def found(**filters: object) -> list[int]:
        return [row["step"] for row in await queries.decisions(engine, **filters)]  # pyright: ignore

    assert await found() == [5, 4, 3, 2, 1, 0]
    assert await found(limit=2) == [5, 4]
    assert await found(limit=2, before="dec_000004") == [3, 2]
    assert await found(reason="probe") == [5, 3, 1]
    assert await found(drafter="ngram", before="dec_000005") == [4, 2, 0]
    assert await found(request=3) == [3, 2]
    assert await found(request=99) == []
    assert await found(before="not_stored") == []
    assert await found(before="not_stored", before_time=START + 3.0) == [3, 2, 1, 0]
    assert await found(limit=0) == [5]


async def test_audit_entries_are_newest_first(
    engine: AsyncEngine, tmp_path: Path, make: Make
) -> None:
    made = [
        AuditRecord(id=f"a{n}", ts=float(n), actor_id="k", actor_name="ops", action="key.create")
        for n in range(3)
    ]
    await store(engine, tmp_path, audits=made)
    assert [row["id"] for row in await queries.audit(engine)] == ["a2", "a1", "a0"]
    assert [row["id"] for row in await queries.audit(engine, before="a2")] == ["a1", "a0"]


async def test_series_gives_the_numbers_of_the_snapshots(
    engine: AsyncEngine, tmp_path: Path, make: Make
) -> None:
    busy = make.snapshot(1, make.cell("ngram", 2, 10), make.cell("none", 0, 30))
    await store(engine, tmp_path, make.snapshot(0), busy)

    idle, point = await queries.series(engine, START, START + 60, now=START + 60)

    assert (idle["time"], idle["tokens_per_s"], idle["tpot_ms"]) == (START, 0.0, None)
    assert (idle["running"], idle["drafters"], idle["drafted_share"]) == (2, {}, None)
    assert point["time"] == START + 1
    assert point["tokens_per_s"] == busy.tokens == 55
    assert point["tpot_ms"] == 12.5
    assert point["batch_mean"] == 1.0  # decoding requests over all steps, from the cells
    assert point["drafted_share"] == 15 / 55
    assert point["draft_length_mean"] == 0.5
    assert point["acceptance_rate"] == 15 / 20
    assert point["acceptance_length"] == 55 / 40
    assert point["drafters"] == {"ngram": 0.25, "none": 0.75}
    assert (point["step_ms_p99_max"], point["free_pages_min"]) == (14.0, 90)


@pytest.mark.parametrize("span", [50, 299, 300, 301, 3600, 86_400, 40 * 86_400])
@pytest.mark.parametrize("offset", [0.0, 0.5, 17.25])
async def test_series_never_gives_more_points_than_asked_for(span: int, offset: float) -> None:
    start = START + offset
    for most in (2, 7, 300):
        _, width = _level(start, start + span, most, START + span)
        points = int((start + span - 1e-6) // width - start // width) + 1
        assert points <= most


async def test_series_reads_rolled_up_levels_and_fills_in_what_is_not_rolled_up_yet(
    engine: AsyncEngine, tmp_path: Path, make: Make
) -> None:
    seconds = range(0, 7260, 20)  # two hours and a minute
    await store(engine, tmp_path, *(make.snapshot(s, make.cell("ngram", 2, 10)) for s in seconds))
    await run_rollup(engine, START + 7265)  # the last minute is not complete
    tokens = len(seconds) * 25

    for most in (3, 4, 10, 121, 300):
        points = await queries.series(engine, START, START + 7260, most, now=START + 7265)
        assert len(points) <= most
        assert sum(point["tokens"] for point in points) == tokens
        assert {point["tokens_per_s"] for point in points} == {25.0}


async def test_series_of_a_time_whose_seconds_are_gone_uses_the_minutes(
    engine: AsyncEngine, tmp_path: Path, make: Make
) -> None:
    await store(engine, tmp_path, *(make.snapshot(s, make.cell()) for s in range(120)))
    now = START + 3 * 86_400
    await run_rollup(engine, now)
    points = await queries.series(engine, START, START + 120, now=now)
    assert [(p["time"] - START, p["seconds"], p["tokens_per_s"]) for p in points] == [
        (0, 60, 25.0),
        (60, 60, 25.0),
    ]


async def test_series_of_one_model_leaves_out_the_others(
    engine: AsyncEngine, tmp_path: Path, make: Make
) -> None:
    await store(engine, tmp_path, make.snapshot(0, make.cell()))
    assert len(await queries.series(engine, START, START + 10, model="m", now=START)) == 1
    assert await queries.series(engine, START, START + 10, model="other", now=START) == []
    assert await queries.series(engine, START + 10, START, now=START) == []


async def test_queries_say_when_the_database_is_away() -> None:
    engine = create_engine("postgresql://u:secret@127.0.0.1:1/x")
    for query in (
        queries.decisions(engine),
        queries.requests(engine),
        queries.audit(engine),
        queries.series(engine, 0, 10),
    ):
        with pytest.raises(DatabaseError, match="cannot be reached") as caught:
            await query
        assert caught.value.code == "unreachable"
        assert "secret" not in caught.value.message
    await engine.dispose()
