"""Corpora in the database: who loaded what, and the text or token ids themselves in parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from app.db.errors import translated
from app.db.tables import corpora, corpus_parts
from app.db.whole import whole


@dataclass(frozen=True, slots=True)
class CorpusRecord:
    """version: another one for everything that is put under a name. created_at: seconds since the
    epoch. bytes: of the text, and four for each token id. token_ids: how many came as ids, of the
    tokenizer with this fingerprint."""

    name: str
    version: str
    created_at: float
    created_by: str
    documents: int
    bytes: int
    token_ids: int
    tokenizer: str


class CorpusStore:
    """All methods raise DatabaseError. The parts of a version never change."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    @whole
    async def put(self, record: CorpusRecord, parts: Sequence[bytes]) -> None:
        """Store a corpus in place of what its name held, all or nothing."""
        rows = [
            {"version": record.version, "part": number, "body": body}
            for number, body in enumerate(parts)
        ]
        with translated(self._engine.url):
            async with self._engine.begin() as connection:
                await _delete(connection, record.name)
                await connection.execute(corpora.insert(), [asdict(record)])
                await connection.execute(corpus_parts.insert(), rows)

    @whole
    async def delete(self, name: str) -> bool:
        """Whether there was one."""
        with translated(self._engine.url):
            async with self._engine.begin() as connection:
                return await _delete(connection, name)

    @whole
    async def part(self, version: str, number: int) -> bytes | None:
        """Parts are numbered from 0; None after the last, or when the version was replaced."""
        which = (corpus_parts.c.version == version) & (corpus_parts.c.part == number)
        with translated(self._engine.url):
            async with self._engine.connect() as connection:
                return await connection.scalar(sa.select(corpus_parts.c.body).where(which))

    # Last, because inside this class `list` means this method in every annotation after it.
    @whole
    async def list(self) -> list[CorpusRecord]:
        """By name."""
        with translated(self._engine.url):
            async with self._engine.connect() as connection:
                found = await connection.execute(sa.select(corpora).order_by(corpora.c.name))
                return [CorpusRecord(**row) for row in found.mappings()]


async def _delete(connection: AsyncConnection, name: str) -> bool:
    version = sa.select(corpora.c.version).where(corpora.c.name == name).scalar_subquery()
    await connection.execute(corpus_parts.delete().where(corpus_parts.c.version == version))
    deleted = await connection.execute(corpora.delete().where(corpora.c.name == name))
    return bool(deleted.rowcount)
