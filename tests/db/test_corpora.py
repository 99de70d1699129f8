"""Corpora in both databases: stored whole, replaced, read in parts, removed without a rest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from app.db.corpora import CorpusRecord, CorpusStore
from app.db.engine import create_engine
from app.db.errors import DatabaseError
from app.db.tables import corpora, corpus_parts
from tests.db.databases import Outage

RECORD = CorpusRecord("a", "v1", 1.5, "op", 2, 2**40, 3, "t" * 64)


async def test_a_corpus_comes_back_as_it_was_put(engine: AsyncEngine) -> None:
    store = CorpusStore(engine)
    parts = [bytes(range(256)) * 4096, b"\0", b"last"]
    await store.put(RECORD, parts)
    assert await store.list() == [RECORD]
    assert [await store.part("v1", number) for number in range(4)] == [*parts, None]


async def test_a_replaced_or_removed_corpus_leaves_no_parts(
    engine: AsyncEngine, fetch: Callable[..., Any]
) -> None:
    store = CorpusStore(engine)
    other = replace(RECORD, name="b", version="w")
    await store.put(other, [b"other"])
    await store.put(RECORD, [b"1", b"2"])
    await store.put(replace(RECORD, version="v2"), [b"3"])
    assert [row["version"] for row in await fetch(engine, corpus_parts)] == ["v2", "w"]
    assert await store.part("v1", 0) is None
    assert await store.delete("a")
    assert not await store.delete("a")
    assert await store.list() == [other]
    assert len(await fetch(engine, corpus_parts)) == 1


async def test_a_put_that_fails_leaves_the_old_one(
    engine: AsyncEngine, fetch: Callable[..., Any]
) -> None:
    store = CorpusStore(engine)
    await store.put(RECORD, [b"old"])
    wrong: Any = [b"new", None]
    with pytest.raises(DatabaseError):
        await store.put(replace(RECORD, version="v2"), wrong)
    assert await store.list() == [RECORD]
    assert await store.part("v1", 0) == b"old"
    assert len(await fetch(engine, corpora)) == len(await fetch(engine, corpus_parts)) == 1


async def test_a_database_that_is_away_is_an_error_with_a_remedy(outage: Outage) -> None:
    engine = create_engine(outage.url, busy_timeout_ms=20)
    store = CorpusStore(engine)
    await store.put(RECORD, [b"x"])
    await outage.begin(engine)
    try:
        with pytest.raises(DatabaseError):
            await store.put(replace(RECORD, version="v2"), [b"y"])
    finally:
        await outage.end(engine)
    assert await store.list() == [RECORD]
    await engine.dispose()
