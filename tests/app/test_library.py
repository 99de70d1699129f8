"""The library of corpora over a real database and real doors of the engine: whatever happens, the
engine ends with what is stored."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy.ext.asyncio import AsyncEngine

from app.corpora import library, shelf, slices
from app.corpora.library import Library
from app.corpora.shelf import NoRoom
from app.corpora.upload import JSON, LINES, TEXT, BadUpload, Upload, read_upload, unpack
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


async def over(task: asyncio.Task[None]) -> None:
    """End it as the service does."""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


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
        await over(running)


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
    await over(running)


@dataclass
class Slow(Engine):
    """Calls `between` before every message but the first of a corpus."""

    shelves: Shelves = field(default_factory=lambda: Shelves(room=10**8))
    between: Callable[[], Awaitable[object]] | None = None
    messages: int = 0

    async def call(self, body: CallBody) -> Any:
        if isinstance(body, EncodeCorpus):
            self.messages += 1
            if self.between is not None and self.messages > 1:
                between, self.between = self.between, None
                await between()
        return await super().call(body)


def large(parts: int) -> Upload:
    """About a MiB in each part."""
    return text(*[f"{number:5}" * 3_000 for number in range(70 * parts)])


@pytest.mark.parametrize("change", ["remove", "replace"])
async def test_a_corpus_that_changes_while_it_is_given_is_never_ready_in_part(
    database: AsyncEngine, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    store, engine = CorpusStore(database), Slow()
    other = Library(CorpusStore(database), Engine(), 10**7)
    made = Library(store, engine, 10**7)
    monkeypatch.setattr(library, "RELOAD_S", 3600.0)
    await made.put("a", large(2), "op", 64 * MEGABYTE)

    async def changed() -> None:
        if change == "remove":
            await other.remove("a")
        else:
            await other.put("a", text("new"), "op", 64 * MEGABYTE)

    engine.between = changed
    await made._reconcile()
    shown = made.find("a")
    assert engine.messages > 1
    if change == "remove":
        assert shown is None
    else:
        assert shown is not None
        assert (shown["state"], shown["bytes"]) == ("loading", 3)
    await made._reconcile()
    assert engine.holds() == ({} if change == "remove" else {"a": "new"})


async def test_a_corpus_of_which_a_part_is_missing_fails_and_says_so(
    database: AsyncEngine,
) -> None:
    engine = Slow()
    made = Library(CorpusStore(database), engine, 10**7)
    await made.put("a", large(2), "op", 64 * MEGABYTE)
    async with database.begin() as connection:
        await connection.execute(corpus_parts.delete().where(corpus_parts.c.part == 1))
    await made._reconcile()
    shown = made.find("a")
    assert shown is not None
    assert shown["state"] == "failed"
    assert "damaged" in shown["reason"]
    assert not engine.holds()


async def test_a_corpus_that_the_engine_lost_is_given_again(database: AsyncEngine) -> None:
    engine = Engine()
    made = Library(CorpusStore(database), engine, 1_000)
    running = asyncio.create_task(made.run())
    await made.put("a", text("abc"), "op", MEGABYTE)
    await settled(made)
    engine.shelves = Shelves()  # the same process
    async with asyncio.timeout(20):
        while engine.holds() != {"a": "abc"}:
            await asyncio.sleep(0.002)
    await settled(made)
    await over(running)


@pytest.mark.parametrize("by", ["this server", "another"])
async def test_a_removal_does_not_wait_for_a_long_delivery(database: AsyncEngine, by: str) -> None:
    engine = Slow()
    made = Library(CorpusStore(database), engine, 10**7)
    other = made if by == "this server" else Library(CorpusStore(database), Engine(), 10**7)
    await made.put("a", text("abc"), "op", 64 * MEGABYTE)
    await made._reconcile()
    assert engine.holds() == {"a": "abc"}
    await made.put("b", large(1), "op", 64 * MEGABYTE)
    seen: list[tuple[str, ...]] = []

    async def removed() -> None:
        await other.remove("a")
        await asyncio.sleep(0.02)  # more than between two looks at the database
        engine.between = look

    async def look() -> None:
        seen.append(tuple(engine.holds()))

    engine.between = removed
    await made._reconcile()
    assert "a" not in seen[0]
    assert tuple(engine.holds()) == ("b",)


async def test_one_that_does_not_fit_is_tokenised_again_only_when_there_is_room_for_it(
    database: AsyncEngine,
) -> None:
    engine = Slow()
    made = Library(CorpusStore(database), engine, 100)
    for name, size in (("a", 20), ("b", 30), ("c", 40), ("large", 90), ("huge", 101)):
        await made.put(name, text("x" * size), "op", MEGABYTE)
    running = asyncio.create_task(made.run())

    async def states(**wanted: str) -> None:
        async with asyncio.timeout(20):
            while {c["name"]: c["state"] for c in made.list()} != wanted:
                await asyncio.sleep(0.002)

    def reason(name: str) -> str:
        shown = made.find(name)
        assert shown is not None
        return shown["reason"]

    await states(a="ready", b="ready", c="ready", large="failed", huge="failed")
    assert "It has 90 tokens, and there is room for 10." in reason("large")
    assert "more than the 100 tokens" in reason("huge")
    messages = engine.messages
    engine.restart()
    async with asyncio.timeout(20):
        while set(engine.holds()) != set("abc"):
            await asyncio.sleep(0.002)
    await states(a="ready", b="ready", c="ready", large="failed", huge="failed")
    await made.remove("a")
    assert "It has 90 tokens, and there is room for 30." in reason("large")
    await asyncio.sleep(0.02)
    await states(b="ready", c="ready", large="failed", huge="failed")
    assert engine.messages == messages + 3  # the three that fit, after the restart
    await made.remove("b")
    await made.remove("c")
    await states(large="ready", huge="failed")
    assert engine.messages == messages + 4
    assert engine.holds() == {"large": "x" * 90}
    await over(running)


async def test_the_small_are_given_first_also_those_that_come_meanwhile(
    database: AsyncEngine,
) -> None:
    engine = Slow()
    made = Library(CorpusStore(database), engine, 10**6)
    for name, size in (("a", 300), ("b", 200), ("c", 100)):
        await made.put(name, text("x" * size), "op", MEGABYTE)

    async def more() -> None:
        await made.put("d", text("y"), "op", MEGABYTE)

    engine.between = more  # comes while the second of them is given
    running = asyncio.create_task(made.run())
    await settled(made)
    async with asyncio.timeout(20):
        while len(engine.holds()) < 4:
            await asyncio.sleep(0.002)
    assert list(engine.holds()) == ["c", "b", "d", "a"]
    await over(running)


@pytest.mark.parametrize("parts", [1, 2])
async def test_one_too_many_is_counted_to_its_end_but_not_kept_in_part(
    database: AsyncEngine, parts: int
) -> None:
    engine = Slow()
    made = Library(CorpusStore(database), engine, 10**7)
    await made.put("large", large(parts), "op", 64 * MEGABYTE)
    await made.put("small", text("x" * 10**6), "op", 64 * MEGABYTE)
    made._shelf.most_tokens = 15_000 * 70 * parts + 10
    for _ in range(2):
        await made._reconcile()
        made._changed.clear()
    assert tuple(engine.holds()) == ("small",)
    shown = made.find("large")
    assert shown is not None
    assert f"It has {15_000 * 70 * parts:,} tokens, and there is room" in shown["reason"]


@pytest.mark.parametrize(
    ("kind", "body"),
    [(TEXT, "für"), (LINES, '{"text": "für"}'), (JSON, '{"documents": [{"text": "für"}]}')],
)
def test_a_byte_order_mark_is_left_out(kind: str, body: str) -> None:
    upload = read_upload(body.encode("utf-8-sig"), kind, None)
    assert [piece.text for part in upload.parts for piece in unpack(part)] == ["für"]


async def test_small_documents_are_tokenised_many_at_a_time(database: AsyncEngine) -> None:
    engine = Slow()
    made = Library(CorpusStore(database), engine, 10**6)
    await made.put("a", text(*[f"{number:04}" for number in range(1_000)]), "op", MEGABYTE)
    await made._reconcile()
    assert engine.messages <= 4
    assert engine.holds() == {"a": "|".join(f"{number:04}" for number in range(1_000))}


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
    await over(running)


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
    await over(running)


async def test_more_corpora_than_allowed_are_refused_and_replacing_one_is_not(
    database: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shelf, "MAX_CORPORA", 2)
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


JSON_VALUES = st.recursive(
    st.none() | st.integers() | st.text(alphabet='ab"\\,[]{}é\n ', max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)


@given(st.lists(JSON_VALUES, max_size=6), st.integers(1, 40), st.sampled_from([None, 1]))
def test_a_list_is_cut_into_its_elements_wherever_the_slices_end(
    documents: list[Any], size: int, indent: int | None
) -> None:
    body = json.dumps({"documents": documents}, indent=indent).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(slices, "SLICE_BYTES", size)
        elements = slices.elements_of(body)
        assert elements is not None
        assert [json.loads(element) for element in elements] == documents


@pytest.mark.parametrize(
    "body",
    [
        b'{"documents": [{"text": "a"}',
        b'{"documents": [{"text": "a"}]',
        b'{"documents": [{"text": "a"}], "more": 1}',
        b'{"documents": [{"text": "a"}}}',
        b'{"documents": [{"text": "a"},]}',
        b'{"documents": [{"text": "a"}]} x',
        b'{"documents": {"text": "a"}}',
        b'[{"text": "a"}]',
    ],
)
def test_a_body_that_is_not_one_list_of_documents_is_refused(body: bytes) -> None:
    for more in (b"", b" " * 70_000):
        with pytest.raises(BadUpload, match=r"documents|The body"):
            read_upload(more + body, JSON, None)


def test_many_small_documents_fill_parts_of_few_pieces() -> None:
    upload = read_upload(b'{"text":"a"}\n' * 10_000, LINES, None)
    assert upload.documents == 10_000
    assert [len(unpack(part)) for part in upload.parts] == [4096, 4096, 1808]


def test_a_wrong_byte_of_a_long_text_is_told_with_its_place() -> None:
    whole = "für ".encode() * 50_000
    with pytest.raises(BadUpload, match=f"see byte {len(whole):,}"):
        read_upload(whole + b"\xff" + whole, TEXT, None)


def test_large_uploads_are_packed_in_several_parts() -> None:
    line = b'{"text": "%s"}\n' % (b"y" * 100_000)
    ids = b'{"token_ids": [%s]}\n' % b",".join([b"7"] * 300_000)
    upload = read_upload(line * 12 + ids, LINES, 256)
    assert upload.documents == 13
    assert upload.token_ids == 300_000
    assert upload.bytes == 1_200_000 + 1_200_000
    assert 2 <= len(upload.parts) <= 4
