"""Schema migrations: Alembic in one transaction, locked against a second process."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import event

import migrations
from app.db.engine import create_engine, normalise_url, set_pragmas
from app.db.errors import DatabaseError, display_url, translated
from app.db.tables import api_keys

T = TypeVar("T")

_LOCK = 0x7061_6365  # any fixed number; one migration at a time per PostgreSQL database


def upgrade(url: str, revision: str = "head", *, wait_s: float = 10) -> str | None:
    """Bring the schema up to revision; returns the revision afterwards. Creates the database file.

    All or nothing, safe to call at every start and from several processes at once. wait_s: how
    long to wait for another process's lock. Raises DatabaseError."""

    def work(connection: sa.Connection, config: Config) -> str | None:
        before = _revision(connection)
        _check_known(before, config, url)
        command.upgrade(config, revision)
        return _revision(connection)

    return _run(url, work, wait_s)


def downgrade(url: str, revision: str, *, wait_s: float = 10) -> str | None:
    """Take the schema down to revision ("base": empty); returns the revision afterwards.

    Deletes the data of what it drops. Raises DatabaseError."""

    def work(connection: sa.Connection, config: Config) -> str | None:
        _check_known(_revision(connection), config, url)
        command.downgrade(config, revision)
        return _revision(connection)

    return _run(url, work, wait_s)


def current(url: str, *, wait_s: float = 10) -> str | None:
    """The database's schema revision, None before the first upgrade. Raises DatabaseError."""
    return _run(url, lambda connection, _config: _revision(connection), wait_s)


def head() -> str:
    """The schema revision that this version of Paceline uses."""
    revision = ScriptDirectory.from_config(_config()).get_current_head()
    assert revision is not None
    return revision


def _config() -> Config:
    """Alembic's settings, found beside the package, so the same from a wheel and a checkout."""
    config = Config()
    folder = Path(migrations.__file__ or "").parent
    config.set_main_option("script_location", str(folder).replace("%", "%%"))
    return config


def _revision(connection: sa.Connection) -> str | None:
    return MigrationContext.configure(connection).get_current_revision()


def has_keys(url: str, *, wait_s: float = 10) -> bool:
    """Whether API keys are stored that only their own pepper can check; those that come from a
    setting and are made again at every start do not count, unless revoked. Raises DatabaseError."""
    lost = sa.or_(api_keys.c.prefix != "", api_keys.c.revoked_at.is_not(None))
    query = sa.select(api_keys.c.id).where(lost).limit(1)
    return _run(url, lambda connection, _config: connection.scalar(query) is not None, wait_s)


def _check_known(revision: str | None, config: Config, url: str) -> None:
    known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    if revision is not None and revision not in known:
        raise DatabaseError(
            "newer_schema",
            f"The database {display_url(url)} has schema revision {revision}, which this version "
            "of Paceline does not know. Start the newer version that wrote it, or choose another "
            "database with --database-url.",
        )


def _run(url: str, work: Callable[[sa.Connection, Config], T], wait_s: float) -> T:
    """Runs work in one transaction that no second process can overlap."""
    config = _config()

    def migrate(connection: sa.Connection) -> T:
        config.attributes["connection"] = connection
        return work(connection, config)

    try:
        with translated(url):
            if normalise_url(url).get_backend_name() == "sqlite":
                return _on_sqlite(url, migrate, wait_s)
            # On a thread of its own, because the caller may be inside an event loop.
            with ThreadPoolExecutor(1, "migrate") as pool:
                return pool.submit(asyncio.run, _on_postgres(url, migrate, wait_s)).result()
    except CommandError as error:
        raise DatabaseError("unknown_revision", f"Migration refused: {error}") from error


def _on_sqlite(url: str, migrate: Callable[[sa.Connection], T], wait_s: float) -> T:
    """With the standard library's driver: it leaves no thread behind when the file is unusable."""
    engine = sa.create_engine(normalise_url(url).set(drivername="sqlite"))
    set_pragmas(engine, busy_timeout_ms=int(wait_s * 1000))

    @event.listens_for(engine, "connect")
    def on_connect(connection: sqlite3.Connection, _record: object) -> None:
        connection.isolation_level = None  # the driver would leave DDL outside the transaction

    @event.listens_for(engine, "begin")
    def on_begin(connection: sa.Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    try:
        with engine.begin() as connection:
            return migrate(connection)
    finally:
        engine.dispose()


async def _on_postgres(url: str, migrate: Callable[[sa.Connection], T], wait_s: float) -> T:
    engine = create_engine(url, command_timeout_s=None)
    try:
        async with engine.begin() as connection:
            await connection.exec_driver_sql(f"SET LOCAL lock_timeout = {int(wait_s * 1000)}")
            await connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK)))
            return await connection.run_sync(migrate)
    finally:
        await engine.dispose()
