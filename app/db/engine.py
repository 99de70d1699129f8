"""The asyncio database engine for SQLite and PostgreSQL URLs."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from typing import Any

from sqlalchemy import event
from sqlalchemy.engine import URL, Engine, make_url
from sqlalchemy.exc import ArgumentError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from app.db.errors import DatabaseError

_DRIVERS = {
    "sqlite": "sqlite+aiosqlite",
    "sqlite+aiosqlite": "sqlite+aiosqlite",
    "postgres": "postgresql+asyncpg",
    "postgresql": "postgresql+asyncpg",
    "postgresql+asyncpg": "postgresql+asyncpg",
}


def normalise_url(url: str) -> URL:
    """The URL with the asyncio driver named; raises DatabaseError("bad_url")."""
    try:
        parsed = make_url(url)
    except ArgumentError:
        raise DatabaseError(
            "bad_url",
            "The database URL cannot be read. Use sqlite+aiosqlite:///FILE or "
            "postgresql+asyncpg://USER:PASSWORD@HOST/NAME.",
        ) from None
    driver = _DRIVERS.get(parsed.drivername)
    if driver is None:
        raise DatabaseError(
            "bad_url",
            f"The database kind {parsed.drivername!r} is not supported. Use "
            "sqlite+aiosqlite:///FILE or postgresql+asyncpg://USER:PASSWORD@HOST/NAME.",
        )
    return parsed.set(drivername=driver)


def create_engine(
    url: str, *, busy_timeout_ms: int = 5000, command_timeout_s: float | None = 30
) -> AsyncEngine:
    """An engine that connects on first use. busy_timeout_ms: how long SQLite waits for a lock;
    command_timeout_s: how long one PostgreSQL statement may take.

    SQLite connections get WAL, synchronous NORMAL and foreign keys. WAL needs a local disk."""
    parsed = normalise_url(url)
    if parsed.get_backend_name() == "sqlite":
        engine = create_async_engine(parsed)
        set_pragmas(engine.sync_engine, busy_timeout_ms)
        return engine
    return create_async_engine(
        parsed,
        pool_pre_ping=True,
        pool_size=4,
        max_overflow=4,
        connect_args={"timeout": 5, "command_timeout": command_timeout_s},
    )


def _use_wal(cursor: Any, wait_s: float) -> None:
    """Sets the journal mode, waiting up to wait_s for other processes that do the same.

    Waits by itself: SQLite skips its own busy timeout when two connections that both read the file
    want to change the mode, and refuses one of them at once."""
    deadline = time.monotonic() + wait_s
    while True:
        try:
            # Asked first: changing the mode needs a write lock, even to the mode already set.
            cursor.execute("PRAGMA journal_mode")
            if str(cursor.fetchone()[0]).lower() != "wal":
                cursor.execute("PRAGMA journal_mode=WAL")
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() >= deadline:
                raise
            time.sleep(0.01)
        else:
            return


def set_pragmas(engine: Engine, busy_timeout_ms: int) -> None:
    """Sets up every SQLite connection that the engine makes. A new file is for its owner only, as
    are then the -wal and -shm files, which take its mode; that of an old file stays."""

    @event.listens_for(engine, "do_connect")
    def on_first(_dialect: Any, _record: Any, arguments: Any, _options: Any) -> None:
        name = str(arguments[0]) if arguments else ":memory:"
        if not name.startswith((":", "file:")):
            with contextlib.suppress(OSError):  # it is there, or SQLite says what is wrong
                os.close(os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))

    @event.listens_for(engine, "connect")
    def on_connect(connection: Any, _record: object) -> None:
        try:
            cursor = connection.cursor()
            cursor.execute(f"PRAGMA busy_timeout={busy_timeout_ms}")
            _use_wal(cursor, busy_timeout_ms / 1000)
            cursor.execute("PRAGMA synchronous=NORMAL")
            cursor.execute("PRAGMA foreign_keys=ON")
            cursor.close()
        except BaseException:
            connection.close()  # the pool forgets it, and its thread would live on
            raise
