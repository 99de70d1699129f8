"""The library of corpora over a real database and real doors of the engine: whatever happens, the
engine ends with what is stored."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from app.corpora import library
from app.corpora.library import Library, NoRoom
from app.corpora.upload import LINES, TEXT, BadUpload, Upload, read_upload, unpack
from app.db.corpora import CorpusStore
from app.db.engine import create_engine
from app.db.migrate import upgrade
from app.db.tables import corpus_parts
from engine.client import EngineCallError
from engine.corpora import corpus_states, drop_corpus, encode_corpus, put_corpus
from engine.errors import RequestError
from engine.wire import (
    MAX_CORPUS_CHARACTERS,
    CallBody,
    DropCorpus,
    EncodeCorpus,
    GetCorpora,
    Hello,
    PutCorpus,
)
from tests.engine.corpus_holder import Shelves

MEGABYTE = 1024 * 1024


@dataclass
class Tokenizer:
    tokenizer: str = "one"
    vocabulary: int = 256


@dataclass
class Engine:
    """The engine's doors without its process: a byte is a token. Of `faults` one is raised at every
    call until they are used up."""

    state: str = "ready"
    pid: int | None = 1
    shelves: Shelves = field(default_factory=Shelves)
    faults: list[str] = field(default_factory=list)
    tokenizer: Tokenizer = field(default_factory=Tokenizer)

    @property
    def hello(self) -> Hello:
        return cast(Hello, self.tokenizer)

    def restart(self) -> None:
        assert self.pid is not None
        self.pid, self.shelves = self.pid + 1, Shelves()

    async def call(self, body: CallBody) -> Any:
        await asyncio.sleep(0)
        if self.faults:
            raise EngineCallError(self.faults.pop(), "away for a moment")
        try:
            match body:
                case PutCorpus():
                    return put_corpus([self.shelves], body, self.tokenizer.vocabulary)
                case DropCorpus(name=name):
                    return drop_corpus([self.shelves], name)
                case GetCorpora():
                    return corpus_states([self.shelves])
                case EncodeCorpus():
                    return encode_corpus(lambda text: list(text.encode()), body)
        except RequestError as error:
            raise EngineCallError(error.code, error.message, error.param) from None

    def holds(self) -> dict[str, str]:
        return {
            name: "|".join(bytes(ids).decode() for ids in held.sequences)
            for name, held in self.shelves.held.items()
        }


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[AsyncEngine]:
    url = f"sqlite+aiosqlite:///{tmp_path / 'paceline.db'}"
    upgrade(url)
    engine = create_engine(url)
    yield engine
    await engine.dispose()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "TICK_S", 0.002)
    monkeypatch.setattr(library, "REST_S", 0.004)
    monkeypatch.setattr(library, "RELOAD_S", 0.01)


def text(*documents: str) -> Upload:
    lines = b"\n".join(b'{"text": "%s"}' % document.encode() for document in documents)
    return read_upload(lines, LINES, None)


async def settled(made: Library, state: str = "ready") -> None:
    async with asyncio.timeout(20):
        while any(corpus["state"] != state for corpus in made.list()):
            await asyncio.sleep(0.002)


async def test_whatever_happens_the_engine_ends_with_what_is_stored(
    database: AsyncEngine,
) -> None:
    for seed in range(4):
        chance = random.Random(seed)
        engine = Engine()
        made = Library(CorpusStore(database), engine, 1_000_000)
        running = asyncio.create_task(made.run())
        wanted: dict[str, str] = {}
        for name in [corpus.name for corpus in await CorpusStore(database).list()]:
            await made.remove(name)
        for step in range(25):
            name = chance.choice("abc")
            match chance.choice(["put", "put", "remove", "restart", "fault", "away", "wait"]):
                case "put":
                    documents = [f"{step}-{i}" * chance.randint(1, 9) for i in range(3)]
                    await made.put(name, text(*documents), "op", MEGABYTE)
                    wanted[name] = "|".join(documents)
                case "remove":
                    assert await made.remove(name) == (wanted.pop(name, None) is not None)
                case "restart":
                    engine.restart()
                case "fault":
                    engine.faults = ["queue_full", "internal"]
                case "away":
                    engine.state = "restarting"
                    await asyncio.sleep(0.01)
                    engine.restart()
                    engine.state = "ready"
                case _:
                    await asyncio.sleep(0.01)
        await settled(made)
        async with asyncio.timeout(20):
            while engine.holds() != wanted:
                await asyncio.sleep(0.002)
        assert [corpus["name"] for corpus in made.list()] == sorted(wanted)
        running.cancel()


async def test_what_another_server_on_the_same_database_changes_is_taken_up(
    database: AsyncEngine,
) -> None:
    store = CorpusStore(database)
    engine, other = Engine(), Library(store, Engine(), 1_000)
    running = asyncio.create_task(Library(store, engine, 1_000).run())
    async with asyncio.timeout(20):
        await other.put("shared", text("abc"), "op", MEGABYTE)
        while engine.holds() != {"shared": "abc"}:
            await asyncio.sleep(0.002)
        await other.remove("shared")
        while engine.holds():
            await asyncio.sleep(0.002)
    running.cancel()


async def test_a_long_document_comes_as_one_sequence_and_in_bounded_messages(
    database: AsyncEngine,
) -> None:
    engine = Engine()
    made = Library(CorpusStore(database), engine, 1_000_000)
    running = asyncio.create_task(made.run())
    lines = "".join(f"line {number}, für alle\n" for number in range(2_500))
    await made.put("long", read_upload(lines.encode(), TEXT, None), "op", MEGABYTE)
    await settled(made)
    assert "".join(engine.holds()["long"].split("|")) == lines
    assert len(engine.shelves.held["long"].sequences) == 1
    running.cancel()


async def test_a_damaged_part_fails_and_says_so(database: AsyncEngine) -> None:
    engine = Engine()
    made = Library(CorpusStore(database), engine, 1_000)
    await made.put("bad", text("abc"), "op", MEGABYTE)
    async with database.begin() as connection:
        await connection.execute(corpus_parts.update().values(body=b"nonsense"))
    running = asyncio.create_task(made.run())
    await settled(made, "failed")
    assert "damaged" in made.list()[0]["reason"]
    assert not engine.holds()
    running.cancel()


async def test_more_corpora_than_allowed_are_refused_and_replacing_one_is_not(
    database: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library, "MAX_CORPORA", 2)
    made = Library(CorpusStore(database), Engine(), 1_000)
    for name in "ab":
        await made.put(name, text("x"), "op", MEGABYTE)
    with pytest.raises(NoRoom, match="2 corpora already"):
        await made.put("c", text("x"), "op", MEGABYTE)
    await made.put("b", text("xy"), "op", MEGABYTE)
    with pytest.raises(NoRoom, match="together"):
        await made.put("b", text("x" * 100), "op", 10)


# --- uploads --------------------------------------------------------------------------------------


@pytest.mark.parametrize("mark", ["\n", " ", "日"])
def test_a_long_text_is_cut_after_lines_else_blanks_else_anywhere_and_loses_nothing(
    mark: str,
) -> None:
    whole = "".join(f"word{number}{mark}" for number in range(6_000))
    upload = read_upload(whole.encode(), TEXT, None)
    pieces = [piece for part in upload.parts for piece in unpack(part)]
    assert "".join(piece.text for piece in pieces) == whole
    assert all(len(piece.text) <= MAX_CORPUS_CHARACTERS for piece in pieces)
    assert [piece.continues for piece in pieces] == [False] + [True] * (len(pieces) - 1)
    if mark != "日":
        assert all(piece.text.endswith(mark) for piece in pieces)
    assert (upload.documents, upload.bytes, upload.token_ids) == (1, len(whole.encode()), 0)


def test_many_token_ids_in_one_document_keep_their_order_and_a_wrong_one_its_place() -> None:
    ids = [index % 250 for index in range(100_000)]
    document = b'{"token_ids": [%s]}'
    upload = read_upload(document % ", ".join(map(str, ids)).encode(), LINES, 256)
    pieces = [piece for part in upload.parts for piece in unpack(part)]
    assert len(pieces) > 2
    assert np.frombuffer(b"".join(piece.ids for piece in pieces), "<i4").tolist() == ids
    assert (upload.documents, upload.token_ids) == (1, 100_000)
    for wrong, says in ((256, "0 to 255"), (-1, "Expected `int` >= 0"), ('"x"', "Expected `int`")):
        text = ", ".join(map(str, [*ids[:70_000], wrong, *ids])).encode()
        with pytest.raises(BadUpload, match=says) as refused:
            read_upload(document % text, LINES, 256)
        assert refused.value.param == "line 1.token_ids[70000]"


def test_large_uploads_are_packed_in_several_parts() -> None:
    line = b'{"text": "%s"}\n' % (b"y" * 100_000)
    ids = b'{"token_ids": [%s]}\n' % b",".join([b"7"] * 300_000)
    upload = read_upload(line * 12 + ids, LINES, 256)
    assert upload.documents == 13
    assert upload.token_ids == 300_000
    assert upload.bytes == 1_200_000 + 1_200_000
    assert 2 <= len(upload.parts) <= 4
