"""The corpus that ships for the served model: given last, beside what is stored, and removed."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import numpy as np
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from app.corpora.library import Library
from app.corpora.shipped import BY, find_shipped
from app.db.corpora import CorpusStore
from engine.shipped import CORPUS, ROOT, TARGET, Mark, marks
from engine.training.corpus import make_corpus, pick
from tests.app.test_library import MEGABYTE, Engine, Tokenizer, database, over, quick, settled, text

__all__ = ["database", "quick"]  # fixtures

NAME = "tiny-answers"


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """What ships for a target whose tokenizer is "one": the texts ab and c."""
    folder = tmp_path / "tiny"
    folder.mkdir()
    mark = Mark("tiny", "one", hidden_size=8, layers=2, vocabulary=256)
    (folder / TARGET).write_bytes(msgspec.json.encode(mark))
    tokens = np.frombuffer(b"abc", np.uint8).astype(np.uint16)
    np.savez_compressed(folder / CORPUS, tokens=tokens, offsets=np.array([0, 2, 2, 3], np.uint32))
    return tmp_path


@pytest.fixture
async def running(database: AsyncEngine, package: Path) -> AsyncIterator[tuple[Library, Engine]]:
    engine = Engine()
    find = functools.partial(find_shipped, root=package)
    made = Library(CorpusStore(database), engine, 10, find)
    task = asyncio.create_task(made.run())
    async with asyncio.timeout(20):
        while not made.list():
            await asyncio.sleep(0.002)
    yield made, engine
    await over(task)


async def until(engine: Engine, wanted: dict[str, str]) -> None:
    async with asyncio.timeout(20):
        while engine.holds() != wanted:
            await asyncio.sleep(0.002)


async def test_it_is_listed_like_a_stored_one_and_given_to_every_engine(
    running: tuple[Library, Engine],
) -> None:
    made, engine = running
    await settled(made)
    shown = made.list()[0]
    assert (shown["name"], shown["created_by"], shown["documents"]) == (NAME, BY, 2)
    assert shown["shipped"]
    assert (shown["tokens"], shown["bytes"]) == (3, 12)
    assert engine.holds() == {NAME: "ab|c"}
    engine.restart()
    await until(engine, {NAME: "ab|c"})


async def test_it_counts_in_no_limit_and_what_is_stored_goes_first(
    running: tuple[Library, Engine],
) -> None:
    made, engine = running
    await made.put("own", text("0123456789"), "op", MEGABYTE)
    await until(engine, {NAME: "ab|c", "own": "0123456789"})
    engine.restart()
    await until(engine, {NAME: "ab|c", "own": "0123456789"})
    assert list(engine.shelves.held) == ["own", NAME]


async def test_it_stays_away_once_it_is_removed(running: tuple[Library, Engine]) -> None:
    made, engine = running
    await settled(made)
    assert await made.remove(NAME)
    await until(engine, {})
    engine.restart()
    await made.put("own", text("x"), "op", MEGABYTE)
    await until(engine, {"own": "x"})
    assert [one["name"] for one in made.list()] == ["own"]
    assert not await made.remove(NAME)


async def test_a_stored_corpus_of_its_name_takes_its_place(running: tuple[Library, Engine]) -> None:
    made, engine = running
    await made.put(NAME, text("mine"), "op", MEGABYTE)
    await until(engine, {NAME: "mine"})
    await made.remove(NAME)
    await until(engine, {})
    assert made.list() == []


async def test_nothing_is_offered_for_another_tokenizer_or_when_it_is_switched_off(
    database: AsyncEngine, package: Path
) -> None:
    find = functools.partial(find_shipped, root=package)
    for tokenizer, finder in (("two", find), ("one", None)):
        engine = Engine(tokenizer=Tokenizer(tokenizer))
        made = Library(CorpusStore(database), engine, 10, finder)
        task = asyncio.create_task(made.run())
        await made.put("own", text("x"), "op", MEGABYTE)
        await until(engine, {"own": "x"})
        assert [one["name"] for one in made.list()] == ["own"]
        await over(task)


@pytest.mark.parametrize("damage", ["garbage", "ids"])
async def test_a_damaged_file_costs_nothing_but_itself(
    database: AsyncEngine, package: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    file = package / "tiny" / CORPUS
    if damage == "garbage":
        file.write_bytes(b"PK\x03\x04but no archive")
    else:
        np.savez(file, tokens=np.array([256], np.uint16), offsets=np.array([0, 1]))
    engine = Engine()
    find = functools.partial(find_shipped, root=package)
    made = Library(CorpusStore(database), engine, 10, find)
    task = asyncio.create_task(made.run())
    await made.put("own", text("x"), "op", MEGABYTE)
    await until(engine, {"own": "x"})
    engine.restart()
    await until(engine, {"own": "x"})
    assert caplog.text.count("the corpus that ships cannot be read") == 1
    await over(task)


# --- the file -------------------------------------------------------------------------------------


def test_what_ships_is_within_its_vocabulary() -> None:
    for folder, mark in marks(ROOT).items():
        file = folder / CORPUS
        with np.load(file, allow_pickle=False) as arrays:
            tokens, offsets = arrays["tokens"], arrays["offsets"]
        assert int(tokens.max()) < mark.vocabulary
        assert (np.diff(offsets.astype(np.int64)) > 0).all()
        assert offsets[-1] == len(tokens)


def test_answers_are_picked_from_every_prompt_before_a_second_from_any(tmp_path: Path) -> None:
    prompts = np.array([0, 0, 0, 1, 1, 2])
    lengths = np.full(6, 10)
    assert sorted(prompts[pick(prompts, lengths, 30, seed=1)].tolist()) == [0, 1, 2]
    assert sorted(prompts[pick(prompts, lengths, 50, seed=1)].tolist()) == [0, 0, 1, 1, 2]
    assert len(pick(prompts, lengths, 9, seed=1)) == 0
    answers, out = tmp_path / "answers.npz", tmp_path / "corpus.npz"
    np.savez(
        answers, prompt_index=prompts, tokens=np.arange(60, dtype=np.uint16),
        offsets=np.arange(0, 61, 10),
    )  # fmt: skip
    assert make_corpus(answers, out, most_tokens=30, seed=1) == (3, 30)
    with np.load(out) as made:
        assert made["tokens"].dtype == np.uint16
        for start, end in zip(made["offsets"], made["offsets"][1:], strict=False):
            first = int(made["tokens"][start])
            assert made["tokens"][start:end].tolist() == list(range(first, first + 10))
            assert first % 10 == 0
