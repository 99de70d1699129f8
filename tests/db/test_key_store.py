"""Keys: made, found, expired, revoked, and never at rest in clear."""

from __future__ import annotations

import asyncio
import logging
import re
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.engine import make_url
from sqlalchemy.ext.asyncio import AsyncEngine

from app.db import tables
from app.db.engine import create_engine
from app.db.errors import DatabaseError
from app.db.keys import KeyStore, load_pepper
from app.db.migrate import has_keys
from app.telemetry.writer import Writer
from tests.db.databases import Outage

PEPPER = b"p" * 32
SCOPES = ("inference", "metrics:read")
SECRET = "a-secret-that-the-operator-chose-0123456789"

Fetch = Callable[..., Any]


@pytest.fixture
async def keys(engine: AsyncEngine) -> KeyStore:
    store = KeyStore(engine, PEPPER)
    await store.load()
    return store


async def test_a_created_key_is_found_by_its_secret(keys: KeyStore) -> None:
    record, secret = await keys.create("ci", SCOPES)
    assert re.fullmatch(r"pl-[0-9a-f]{8}-[A-Za-z0-9_-]{43}", secret)
    assert record.prefix == secret[:11]
    assert keys.find(secret) == record
    assert record.scopes == SCOPES


@pytest.mark.parametrize("change", ["", "x", "pl-00000000-" + "A" * 43, "\ud800", "\x00", "é" * 99])
async def test_another_secret_finds_nothing(keys: KeyStore, change: str) -> None:
    _, secret = await keys.create("ci", SCOPES)
    assert keys.find(change) is None
    assert keys.find(secret + "x") is None
    assert keys.find(secret[:-1]) is None
    assert keys.find(secret.upper()) is None


async def test_another_store_finds_the_key_after_loading(
    keys: KeyStore, engine: AsyncEngine
) -> None:
    record, secret = await keys.create("ci", SCOPES, expires_at=time.time() + 1000)
    other = KeyStore(engine, PEPPER)
    assert other.find(secret) is None
    await other.load()
    assert other.find(secret) == record
    wrong_pepper = KeyStore(engine, b"q" * 32)
    await wrong_pepper.load()
    assert wrong_pepper.find(secret) is None


async def test_an_expired_key_is_not_found(keys: KeyStore) -> None:
    _, secret = await keys.create("old", SCOPES, expires_at=time.time() - 1)
    assert keys.find(secret) is None
    assert [record.name for record in await keys.list()] == ["old"]


async def test_a_revoked_key_is_not_found_again(keys: KeyStore, engine: AsyncEngine) -> None:
    record, secret = await keys.create("ci", SCOPES)
    _, other = await keys.create("other", SCOPES)
    revoked = await keys.revoke(record.id)
    assert revoked is not None
    assert revoked.revoked_at is not None
    assert keys.find(secret) is None
    assert keys.find(other) is not None
    again = await keys.revoke(record.id)
    assert again is not None
    assert again.revoked_at == revoked.revoked_at
    assert await keys.revoke("key_unknown") is None
    after = KeyStore(engine, PEPPER)
    await after.load()
    assert after.find(secret) is None


async def test_a_key_revoked_by_another_process_goes_at_the_next_refresh(
    keys: KeyStore, engine: AsyncEngine
) -> None:
    record, secret = await keys.create("ci", SCOPES)
    await KeyStore(engine, PEPPER).revoke(record.id)
    refresh = asyncio.create_task(keys.keep_fresh(0.01))
    while keys.find(secret) is not None:
        await asyncio.sleep(0.01)
    refresh.cancel()


async def test_secrets_are_neither_stored_nor_logged_nor_shown(
    keys: KeyStore,
    engine: AsyncEngine,
    tmp_path: Path,
    fetch: Fetch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    record, secret = await keys.create("ci", SCOPES)
    boot = await keys.bootstrap(SECRET, "bootstrap", SCOPES)
    keys.find(secret)
    await keys.revoke(boot.id)
    await keys.bootstrap(SECRET, "bootstrap", SCOPES)
    body = secret.removeprefix(f"{record.prefix}-")

    rows = repr(await fetch(engine, tables.api_keys))
    path = make_url(str(engine.url)).database if engine.dialect.name == "sqlite" else None
    stored = b"".join(p.read_bytes() for p in tmp_path.glob("paceline.db*")) if path else b""
    for text in (body, SECRET):
        assert text not in rows
        assert text.encode() not in stored
        assert text not in caplog.text
        assert text not in repr(record) + repr(boot)
    assert not path or b"bootstrap" in stored


async def test_bootstrap_makes_the_operators_secret_valid(
    keys: KeyStore, fetch: Fetch, engine: AsyncEngine
) -> None:
    first = await keys.bootstrap(SECRET, "bootstrap", SCOPES)
    assert await keys.bootstrap(SECRET, "bootstrap", SCOPES) == first
    assert keys.find(SECRET) == first
    widened = await keys.bootstrap(SECRET, "bootstrap", ("admin:read",))
    assert (widened.id, widened.scopes) == (first.id, ("admin:read",))
    assert len(await fetch(engine, tables.api_keys)) == 1


async def test_a_new_bootstrap_secret_replaces_the_old_one(keys: KeyStore) -> None:
    await keys.bootstrap(SECRET, "console", SCOPES)
    await keys.bootstrap(SECRET * 2, "console", SCOPES)
    assert keys.find(SECRET) is None
    assert keys.find(SECRET * 2) is not None
    assert len(await keys.list()) == 1


async def test_a_revoked_bootstrap_secret_stays_revoked_until_it_is_replaced(
    keys: KeyStore,
) -> None:
    record = await keys.bootstrap(SECRET, "bootstrap", SCOPES)
    await keys.revoke(record.id)
    assert (await keys.bootstrap(SECRET, "bootstrap", SCOPES)).revoked_at is not None
    assert keys.find(SECRET) is None
    assert (await keys.bootstrap(SECRET + "2", "bootstrap", SCOPES)).revoked_at is None
    assert keys.find(SECRET + "2") is not None


async def test_a_short_bootstrap_secret_is_refused(keys: KeyStore) -> None:
    with pytest.raises(ValueError, match="32 characters"):
        await keys.bootstrap("x" * 31, "bootstrap", SCOPES)


async def test_use_is_reported_at_most_once_a_minute_and_stored_by_the_writer(
    engine: AsyncEngine, tmp_path: Path, fetch: Fetch, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = Writer(engine, tmp_path / "spill")
    keys = KeyStore(engine, PEPPER, on_use=writer.record_key_use)
    record, secret = await keys.create("ci", SCOPES)
    assert record.last_used is None
    start = int(time.time())
    for second in (0, 1, 59, 61, 62):
        monkeypatch.setattr(time, "time", lambda now=start + second: float(now))
        keys.find(secret)
        keys.find("wrong")
    assert writer.status()["queued"] == 2

    assert await writer.flush()

    (row,) = await fetch(engine, tables.api_keys)
    assert row["last_used"] == start + 61
    assert (await keys.list())[0].last_used == start + 61
    writer.record_key_use(record.id, start - 500.0)  # a late replay
    writer.record_key_use("key_gone", start)
    assert await writer.flush()
    (row,) = await fetch(engine, tables.api_keys)
    assert row["last_used"] == start + 61
    assert writer.status()["dropped"] == 0


async def test_known_keys_work_through_an_outage_and_changes_fail_clearly(
    outage: Outage,
) -> None:
    engine = create_engine(outage.url, busy_timeout_ms=20)
    keys = KeyStore(engine, PEPPER)
    record, secret = await keys.create("ci", SCOPES)
    await outage.begin(engine)

    assert keys.find(secret) == record
    with pytest.raises(DatabaseError):
        await keys.create("other", SCOPES)
    with pytest.raises(DatabaseError):
        await keys.revoke(record.id)
    assert keys.find(secret) == record
    assert [key.name for key in await keys.list()] == ["ci"]

    await outage.end(engine)
    await keys.revoke(record.id)
    assert keys.find(secret) is None
    await engine.dispose()


async def test_only_keys_that_a_start_does_not_make_again_need_their_pepper(
    keys: KeyStore, url: str
) -> None:
    assert not has_keys(url)
    await keys.bootstrap(SECRET, "console", SCOPES)
    assert not has_keys(url)
    await keys.create("ci", SCOPES)
    assert has_keys(url)


async def test_a_revoked_bootstrap_key_needs_its_pepper(keys: KeyStore, url: str) -> None:
    record = await keys.bootstrap(SECRET, "console", SCOPES)
    await keys.revoke(record.id)
    assert has_keys(url)


def test_the_pepper_is_made_once_and_kept_private(tmp_path: Path) -> None:
    path = tmp_path / "pepper"
    pepper = load_pepper(path)
    assert len(pepper) == 32
    assert load_pepper(path) == pepper
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.write_bytes(pepper[:5])
    with pytest.raises(ValueError, match="damaged"):
        load_pepper(path)
