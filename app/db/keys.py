"""API keys: made, stored as HMAC-SHA256 digests, found in memory.

Format: `pl-<8 hex prefix>-<43 url-safe base64>`. The prefix is public and names the key in lists;
the secret is returned once, by create(), and is neither stored nor logged.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import logging
import os
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine

from app.db.errors import DatabaseError, translated
from app.db.statements import upsert
from app.db.tables import api_keys
from app.db.whole import whole

logger = logging.getLogger(__name__)

PEPPER_BYTES = 32
USE_INTERVAL_S = 60.0
MIN_SECRET = 32
MAX_NAME = 64
LATEST_EXPIRY = 253_402_300_799.0
"""The end of the year 9999."""


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """A key without its secret. Times in seconds since the epoch; expires_at None: never."""

    id: str
    name: str
    prefix: str
    scopes: tuple[str, ...]
    created_at: float
    expires_at: float | None = None
    revoked_at: float | None = None
    last_used: float | None = None

    def valid_at(self, now: float) -> bool:
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)


def check_name(name: str) -> None:
    """Raises ValueError unless this can be the name of a new key."""
    if not 1 <= len(name) <= MAX_NAME or not name.isprintable() or not name.strip():
        raise ValueError(
            f"name must be 1 to {MAX_NAME} printable characters, without control characters."
        )


def check_expiry(when: float) -> None:
    """Raises ValueError unless a new key can expire then."""
    if not time.time() < when <= LATEST_EXPIRY:  # also false for NaN
        raise ValueError("expires_at must be in the future and at most the end of the year 9999.")


def load_pepper(path: Path) -> bytes:
    """The 32 random bytes that keyed digests are made with; created (mode 0600) when missing.

    Without this file no stored key can be used. Raises OSError, ValueError when it is damaged."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        pepper = path.read_bytes()
        if len(pepper) != PEPPER_BYTES:
            raise ValueError(
                f"The key pepper {path} is damaged ({len(pepper)} bytes instead of "
                f"{PEPPER_BYTES}). Restore it from a backup; keys cannot be checked without it."
            ) from None
        return pepper
    with os.fdopen(descriptor, "wb") as file:
        pepper = secrets.token_bytes(PEPPER_BYTES)
        file.write(pepper)
    return pepper


class KeyStore:
    """Keys in the database with a copy in memory, so that find() needs no database.

    on_use(key_id, when) is called at most once a minute and key. Methods that touch the database
    raise DatabaseError when it is away; the copy in memory then stays as it was."""

    def __init__(
        self,
        engine: AsyncEngine,
        pepper: bytes,
        *,
        on_use: Callable[[str, float], None] | None = None,
    ) -> None:
        self._engine = engine
        self._pepper = pepper
        self._on_use = on_use
        self._by_digest: dict[str, KeyRecord] = {}
        self._used: dict[str, float] = {}
        self._loading = asyncio.Lock()

    @whole
    async def load(self) -> None:
        """Reads all keys; also picks up those made or revoked by another process."""
        async with self._loading:  # an older read must not overwrite a newer one
            with translated(self._engine.url):
                async with self._engine.connect() as connection:
                    rows = (await connection.execute(sa.select(api_keys))).mappings().all()
            self._by_digest = {row["digest"]: _record(row) for row in rows}

    async def keep_fresh(self, interval_s: float = 15.0) -> None:
        """Runs load() at an interval until cancelled; keeps the keys it has while that fails."""
        while True:
            await asyncio.sleep(interval_s)
            try:
                await self.load()
            except DatabaseError as error:
                logger.debug("Keys were not refreshed: %s", error)

    async def create(
        self, name: str, scopes: Sequence[str], expires_at: float | None = None
    ) -> tuple[KeyRecord, str]:
        """Stores a new key; returns it and the secret, which cannot be had again."""
        prefix = secrets.token_hex(4)
        secret = f"pl-{prefix}-{secrets.token_urlsafe(32)}"
        record = KeyRecord(
            id=f"key_{secrets.token_hex(12)}",
            name=name,
            prefix=f"pl-{prefix}",
            scopes=tuple(scopes),
            created_at=time.time(),
            expires_at=expires_at,
        )
        await self._store(record, self._digest(secret))
        return record, secret

    async def bootstrap(self, secret: str, name: str, scopes: Sequence[str]) -> KeyRecord:
        """Makes a secret chosen by the operator valid under a name, with these scopes.

        A name holds one secret: another one replaces it. A revoked secret stays revoked; then
        the record returned has revoked_at set. Raises ValueError below 32 characters."""
        if len(secret) < MIN_SECRET:
            raise ValueError(f"The key for {name!r} is too short: use {MIN_SECRET} characters.")
        await self.load()
        digest = self._digest(secret)
        known = self._by_digest.get(digest)
        if known is not None and known.revoked_at is not None:
            logger.warning("The key %r was revoked and stays so; set another secret.", known.name)
            return known
        record = KeyRecord(
            id=known.id if known else f"bootstrap-{name}",
            name=name,
            prefix="",
            scopes=tuple(scopes),
            created_at=known.created_at if known else time.time(),
            last_used=known.last_used if known else None,
        )
        if known != record:
            await self._store(record, digest)
        return record

    async def revoke(self, key_id: str) -> KeyRecord | None:
        """Makes a key invalid at once and for good; None when there is no such key."""
        now = time.time()
        valid = sa.and_(api_keys.c.id == key_id, api_keys.c.revoked_at.is_(None))
        with translated(self._engine.url):
            async with self._engine.begin() as connection:
                await connection.execute(api_keys.update().where(valid).values(revoked_at=now))
        await self.load()
        return next((record for record in self._by_digest.values() if record.id == key_id), None)

    def find(self, secret: str) -> KeyRecord | None:
        """The valid key with this secret, or None. Memory only, in time that depends on the number
        of keys alone."""
        digest = self._digest(secret)
        found = None
        for stored, record in self._by_digest.items():
            if hmac.compare_digest(stored, digest):
                found = record
        now = time.time()
        if found is None or not found.valid_at(now):
            return None
        if now - self._used.get(found.id, 0.0) >= USE_INTERVAL_S:
            self._used[found.id] = now
            if self._on_use is not None:
                self._on_use(found.id, now)
        return found

    def valid(self, key_id: str) -> bool:
        """Whether this key is still neither revoked nor expired. Memory only."""
        now = time.time()
        return any(key.id == key_id and key.valid_at(now) for key in self._by_digest.values())

    async def _store(self, record: KeyRecord, digest: str) -> None:
        row = {
            "id": record.id,
            "name": record.name,
            "prefix": record.prefix,
            "digest": digest,
            "scopes": list(record.scopes),
            "created_at": record.created_at,
            "expires_at": record.expires_at,
            "revoked_at": record.revoked_at,
            "last_used": record.last_used,
        }
        with translated(self._engine.url):
            async with self._engine.begin() as connection:
                await connection.execute(upsert(api_keys, self._engine.dialect.name), [row])
        await self.load()

    def _digest(self, secret: str) -> str:
        data = secret.encode("utf-8", "surrogatepass")
        return hmac.new(self._pepper, data, hashlib.sha256).hexdigest()

    def _with_use(self, record: KeyRecord) -> KeyRecord:
        used = self._used.get(record.id)
        if used is None or (record.last_used is not None and record.last_used > used):
            return record
        return replace(record, last_used=used)

    # Last, because inside this class `list` means this method in every annotation after it.
    async def list(self) -> list[KeyRecord]:
        """All keys, also expired and revoked ones, oldest first; while the database is away those
        in memory."""
        with contextlib.suppress(DatabaseError):
            await self.load()
        records = map(self._with_use, self._by_digest.values())
        return sorted(records, key=lambda record: (record.created_at, record.id))


def _record(row: Any) -> KeyRecord:
    fields = {name: row[name] for name in KeyRecord.__dataclass_fields__}
    return KeyRecord(**{**fields, "scopes": tuple(row["scopes"])})
