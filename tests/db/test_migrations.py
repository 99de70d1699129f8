"""Migrations on both databases, and the errors of a database that cannot be migrated."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy.engine import make_url

from app.db import queries, tables
from app.db.engine import create_engine
from app.db.errors import DatabaseError
from app.db.migrate import _LOCK, _config, current, downgrade, head, upgrade
from tests.db.databases import empty_postgres_database, read_only

REVISIONS = [s.revision for s in ScriptDirectory.from_config(_config()).walk_revisions()][::-1]


async def inspect(url: str, work: Callable[[sa.Connection], Any]) -> Any:
    engine = create_engine(url)
    try:
        async with engine.connect() as connection:
            return await connection.run_sync(work)
    finally:
        await engine.dispose()


async def test_schema_goes_up_down_to_nothing_and_up_again(empty_url: str) -> None:
    assert current(empty_url) is None
    assert upgrade(empty_url) == head()
    assert downgrade(empty_url, "base") is None
    left = await inspect(empty_url, lambda c: sa.inspect(c).get_table_names())
    assert left == ["alembic_version"]
    assert upgrade(empty_url) == head()
    assert current(empty_url) == head()


def test_every_revision_goes_up_and_down_by_itself(empty_url: str) -> None:
    for revision in REVISIONS:
        assert upgrade(empty_url, revision) == revision
        downgrade(empty_url, "-1")
        assert upgrade(empty_url, revision) == revision


async def test_migrated_schema_is_that_of_the_tables(url: str) -> None:
    def differences(connection: sa.Connection) -> list[Any]:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        return compare_metadata(context, tables.metadata)

    assert await inspect(url, differences) == []


def test_revisions_form_one_line() -> None:
    scripts = ScriptDirectory.from_config(_config())
    assert len(scripts.get_heads()) == 1
    assert len(scripts.get_bases()) == 1


async def test_upgrade_keeps_the_data_of_an_earlier_schema(empty_url: str) -> None:
    upgrade(empty_url, REVISIONS[0])
    row = "('k', 'n', 'pl-00000000', 'd', '[\"inference\"]', 1.5)"
    engine = create_engine(empty_url)
    async with engine.begin() as connection:
        await connection.exec_driver_sql(
            f"INSERT INTO api_keys (id, name, prefix, digest, scopes, created_at) VALUES {row}"
        )
    await engine.dispose()

    upgrade(empty_url)
    upgrade(empty_url)

    found = await inspect(empty_url, lambda c: c.execute(sa.select(tables.api_keys)).all())
    assert [(r.id, r.scopes, r.created_at) for r in found] == [("k", ["inference"], 1.5)]


async def test_cached_tokens_come_and_go_without_the_rest_of_a_request(empty_url: str) -> None:
    """An earlier server's requests are kept, with a number that nobody knows; its own are kept
    when the schema goes back, and so are the indexes."""

    async def write(sql: str) -> None:
        engine = create_engine(empty_url)
        async with engine.begin() as connection:
            await connection.exec_driver_sql(sql)
        await engine.dispose()

    async def rows(column: str) -> list[Any]:
        query = sa.text(f"SELECT id, prompt_tokens, {column} FROM requests ORDER BY id")
        return await inspect(empty_url, lambda c: [tuple(row) for row in c.execute(query)])

    async def indexes() -> set[str | None]:
        def names(connection: sa.Connection) -> set[str | None]:
            return {index["name"] for index in sa.inspect(connection).get_indexes("requests")}

        return await inspect(empty_url, names)

    columns = (
        "id, ts, key_id, tenant, model, endpoint, transport, prompt_tokens, completion_tokens, "
        "status, steps, drafted, accepted, histogram, drafters"
    )
    values = "1.5, 'k', '', 'm', '/v1', 'http', 9, 1, 200, 0, 0, 0, '[]', '{}'"
    upgrade(empty_url, "0001")
    await write(f"INSERT INTO requests ({columns}) VALUES ('a', {values})")
    before = await indexes()
    upgrade(empty_url, "0002")
    await write(f"INSERT INTO requests ({columns}, cached_tokens) VALUES ('b', {values}, 7)")
    assert await rows("cached_tokens") == [("a", 9, None), ("b", 9, 7)]
    assert downgrade(empty_url, "0001") == "0001"
    assert await rows("steps") == [("a", 9, 0), ("b", 9, 0)]
    assert await indexes() == before
    assert len(before) == 3


async def test_decisions_of_an_earlier_schema_are_read_without_predicted_steps(
    empty_url: str,
) -> None:
    columns = (
        "id, ts, model, step, drafter, draft_length, previous_drafter, previous_draft_length, "
        "inputs, candidates, reason, sentence, requests, realised_steps, realised_tokens, "
        "realised_ms, closed"
    )
    values = (
        "'a', 1.5, 'm', 7, 'ngram', 4.0, 'none', 0.0, '{}', '[]', 'START', 's', '[1]', 2, 6, "
        "40.0, false"
    )
    upgrade(empty_url, "0004")
    engine = create_engine(empty_url)
    async with engine.begin() as connection:
        await connection.exec_driver_sql(f"INSERT INTO decisions ({columns}) VALUES ({values})")
    upgrade(empty_url)
    (row,) = await queries.decisions(engine)
    await engine.dispose()
    assert (row["predicted_tokens"], row["predicted_ms"]) == (None, None)
    assert (row["realised"]["tokens_per_step"], row["realised"]["ms_per_step"]) == (3.0, 20.0)
    assert downgrade(empty_url, "0004") == "0004"
    left = await inspect(empty_url, lambda c: c.execute(sa.text("SELECT id FROM decisions")).all())
    assert [tuple(one) for one in left] == [("a",)]


def test_processes_that_start_together_migrate_once(empty_url: str) -> None:
    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(upgrade, [empty_url] * 4)) == {head()}


def test_a_writer_that_soon_ends_is_waited_for_at_the_change_to_wal(tmp_path: Path) -> None:
    """SQLite refuses that change at once, whatever the busy timeout, while another one writes."""
    path = tmp_path / "paceline.db"
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("CREATE TABLE theirs (x)")
    other.execute("BEGIN IMMEDIATE")
    done = threading.Timer(0.3, other.commit)
    done.start()
    assert upgrade(f"sqlite:///{path}") == head()
    done.join()


async def test_upgrade_may_be_called_inside_an_event_loop(empty_url: str) -> None:
    assert upgrade(empty_url) == head()


def test_a_failing_migration_leaves_nothing_behind(
    empty_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from alembic import op

    def fail(*_arguments: Any) -> None:
        raise OSError("the machine went away")

    with monkeypatch.context() as patch:
        patch.setattr(op, "create_index", fail)
        with pytest.raises(DatabaseError):
            upgrade(empty_url)
    assert current(empty_url) is None
    assert upgrade(empty_url) == head()


async def test_a_newer_schema_is_refused_by_name(url: str) -> None:
    engine = create_engine(url)
    async with engine.begin() as connection:
        await connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
    await engine.dispose()

    with pytest.raises(DatabaseError, match="revision 9999") as caught:
        upgrade(url)
    assert caught.value.code == "newer_schema"
    with pytest.raises(DatabaseError, match="revision 9999"):
        downgrade(url, "base")


async def test_a_new_sqlite_file_is_for_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "new.db"
    upgrade(f"sqlite:///{path}")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    engine = create_engine(f"sqlite:///{tmp_path / 'other.db'}")
    async with engine.begin() as connection:
        await connection.exec_driver_sql("CREATE TABLE a (b)")
        modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in tmp_path.glob("other*")}
    await engine.dispose()
    assert modes == dict.fromkeys(("other.db", "other.db-wal", "other.db-shm"), 0o600)


def test_a_locked_file_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "paceline.db"
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    with pytest.raises(DatabaseError, match="locked by another process") as caught:
        upgrade(f"sqlite:///{path}", wait_s=0.05)
    assert caught.value.code == "locked"
    assert str(path) in caught.value.message
    other.close()


@pytest.mark.parametrize("existing", [True, False])
def test_a_read_only_file_is_reported(tmp_path: Path, existing: bool) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    path = folder / "paceline.db"
    if existing:
        upgrade(f"sqlite:///{path}")
    else:
        path.touch()
    with read_only(path), pytest.raises(DatabaseError) as caught:
        upgrade(f"sqlite:///{path}", wait_s=0.05)
    assert caught.value.code == "read_only"
    assert str(path) in caught.value.message


def test_other_broken_databases_are_reported(tmp_path: Path) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("these are notes and no database, long enough to fill a header " * 20)
    cases = {
        f"sqlite:///{text}": "not_a_database",
        f"sqlite:///{tmp_path}/missing/paceline.db": "cannot_open",
        "postgresql://u:secret@127.0.0.1:1/x": "unreachable",
        "mysql://u@h/x": "bad_url",
        "nonsense": "bad_url",
    }
    for url, code in cases.items():
        with pytest.raises(DatabaseError) as caught:
            upgrade(url, wait_s=0.05)
        assert caught.value.code == code
        assert "secret" not in caught.value.message


def test_a_refused_postgresql_user_is_reported(postgres_url: str) -> None:
    right = make_url(postgres_url)
    for wrong in (right.set(username="nobody"), right.set(database="missing")):
        with pytest.raises(DatabaseError) as caught:
            upgrade(wrong.render_as_string())
        assert caught.value.code == "refused"


async def test_a_locked_postgresql_schema_is_reported(postgres_url: str) -> None:
    url = empty_postgres_database(postgres_url)
    engine = create_engine(url)
    async with engine.begin() as connection:
        await connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_LOCK})")
        with pytest.raises(DatabaseError, match="locked by another process") as caught:
            await asyncio.to_thread(upgrade, url, wait_s=0.05)
    await engine.dispose()
    assert caught.value.code == "locked"


def test_migrations_are_found_away_from_the_source_tree(tmp_path: Path) -> None:
    """The migration folder is found beside its package, whatever the current folder is."""
    root = Path(tables.__file__).parents[2]
    code = "from app.db.migrate import upgrade; print(upgrade('sqlite:///paceline.db'), end='')"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == head()
    assert (tmp_path / "paceline.db").exists()


def test_no_table_holds_text_of_prompts_or_answers() -> None:
    names = {c.name for table in tables.metadata.sorted_tables for c in table.columns}
    assert names.isdisjoint({"prompt", "messages", "text", "output", "content"})
