"""`paceline keys`: API keys made, listed and revoked in the database of a local server."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from rich.console import Console
from rich.table import Table
from rich.text import Text

from app.db.engine import create_engine
from app.db.errors import DatabaseError
from app.db.keys import KeyRecord, KeyStore, check_expiry, check_name
from app.failures import Failure, SettingsError, StartError
from app.schema import migrate_to_newest
from app.security.auth import OPERATOR_SCOPES, SCOPES
from app.security.pepper import read_pepper
from app.settings import Settings, settings_of

T = TypeVar("T")

ROLES: dict[str, tuple[str, ...]] = {
    "admin": SCOPES,
    "operator": OPERATOR_SCOPES,
    "inference": ("inference",),
}
DAY_S = 86_400.0
WIDE = 200
"""Columns of a table that goes into a file or a pipe: nothing is cut there."""


def create(options: argparse.Namespace) -> int:
    """Print a new key; a running server knows it within seconds."""
    expires = time.time() + DAY_S * options.days if options.days else None
    try:
        check_name(options.name)
        if expires is not None:
            check_expiry(expires)
    except ValueError as error:
        raise SettingsError(f"Cannot make this key: {error}") from None

    async def work(store: KeyStore) -> str:
        return (await store.create(options.name, ROLES[options.role], expires))[1]

    print(asyncio.run(with_store(settings_of(options), work)))
    return 0


def show(options: argparse.Namespace) -> int:
    async def work(store: KeyStore) -> list[KeyRecord]:
        return await store.list()

    settings = settings_of(options)
    check_data_dir(settings)
    table = Table(box=None)
    for head in ("id", "name", "key", "scopes", "expires", "last used", "state"):
        table.add_column(head, no_wrap=True)
    now = time.time()
    for key in asyncio.run(with_store(settings, work)):
        state = "revoked" if key.revoked_at else "valid" if key.valid_at(now) else "expired"
        scopes = ", ".join(key.scopes)
        start = f"{key.prefix}…" if key.prefix else "-"
        told = (key.id, key.name, start, scopes, date(key.expires_at), date(key.last_used), state)
        table.add_row(*map(Text, told))  # a name is no markup
    width = None if sys.stdout.isatty() else WIDE
    Console(highlight=False, width=width).print(table)
    return 0


def revoke(options: argparse.Namespace) -> int:
    async def work(store: KeyStore) -> KeyRecord | None:
        return await store.revoke(options.id)

    settings = settings_of(options)
    check_data_dir(settings)
    record = asyncio.run(with_store(settings, work))
    if record is None:
        raise Failure(f"There is no key {options.id}. See: paceline keys list")
    print(f"Revoked {record.id} ({record.name})")
    return 0


def first_admin_key(settings: Settings) -> str | None:
    """A new admin key if the database holds no valid one yet, else None."""

    async def work(store: KeyStore) -> str | None:
        now = time.time()
        if any("admin:write" in key.scopes and key.valid_at(now) for key in await store.list()):
            return None
        return (await store.create("admin", SCOPES))[1]

    return asyncio.run(with_store(settings, work))


async def with_store(settings: Settings, work: Callable[[KeyStore], Awaitable[T]]) -> T:
    """What `work` returns, given the keys of the settings' database. Raises StartError."""
    migrate_to_newest(settings)
    pepper = read_pepper(settings)
    database = create_engine(settings.database_url)
    try:
        store = KeyStore(database, pepper)
        await store.load()
        return await work(store)
    except DatabaseError as error:
        raise StartError(str(error)) from error
    finally:
        await database.dispose()


def check_data_dir(settings: Settings) -> None:
    """Raises StartError when there is no data directory: then there are no keys in it either."""
    if not settings.data_path.is_dir():
        raise StartError(
            f"There is no data directory {settings.data_dir}. Give the server's with --data-dir."
        )


def date(when: float | None) -> str:
    """Local time to the minute. A time that no calendar has is shown as the number that it is."""
    if when is None:
        return "-"
    try:
        return time.strftime("%Y-%m-%d %H:%M", time.localtime(when))
    except (OverflowError, ValueError, OSError):
        return f"{when:g}"
