"""Gives one stored corpus to the engine, in messages that hold up nothing else there."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from app.corpora.upload import Piece, unpack
from app.db.corpora import CorpusRecord, CorpusStore
from engine.wire import MAX_CORPUS_TOKENS, CallBody, EncodeCorpus, Hello, PutCorpus

Ids = NDArray[np.int32]


class EngineDoor(Protocol):
    """Of EngineClient, what corpora need."""

    @property
    def state(self) -> str: ...

    @property
    def pid(self) -> int | None: ...

    @property
    def hello(self) -> Hello | None: ...

    async def call(self, body: CallBody) -> Any: ...


class Refused(Exception):
    """This corpus cannot be loaded: why, as a sentence."""


class Replaced(Exception):
    """Another corpus has the name now, or none."""


@dataclass(slots=True)
class Progress:
    """tokens: given to the engine so far. bytes: of the corpus, likewise."""

    tokens: int = 0
    bytes: int = 0


async def deliver(
    record: CorpusRecord,
    store: CorpusStore,
    engine: EngineDoor,
    room: int,
    progress: Progress,
    wanted: Callable[[], bool],
) -> None:
    """Give the whole corpus, counting in `progress`. room: tokens that it may have. wanted: whether
    it is still to be given. Raises Refused, Replaced, EngineCallError and DatabaseError."""
    batch = _Batch(record.name)
    async for piece in _pieces(record, store):
        ids = await _encode(piece.text, engine) if piece.text else np.frombuffer(piece.ids, "<i4")
        if progress.tokens + batch.tokens + len(ids) > room:
            raise Refused(
                f"It has more than the {room} tokens for which there is room. Remove other "
                "corpora, load less, or raise --corpus-tokens."
            )
        for message in batch.add(ids, piece.continues):
            await _send(message, engine, progress, wanted)
        progress.bytes += piece.size
    for message in batch.rest():
        await _send(message, engine, progress, wanted)


async def _pieces(record: CorpusRecord, store: CorpusStore) -> AsyncIterator[Piece]:
    number = 0
    while (part := await store.part(record.version, number)) is not None:
        try:
            pieces = await asyncio.to_thread(unpack, part)
        except ValueError:
            raise Refused("What is stored of it is damaged. Load it again.") from None
        for piece in pieces:
            yield piece
        number += 1
    if not number:
        raise Replaced


async def _encode(text: str, engine: EngineDoor) -> Ids:
    """The engine's other work has as much time between two texts as each of them takes."""
    began = time.monotonic()
    reply = await engine.call(EncodeCorpus((text,)))
    await asyncio.sleep(time.monotonic() - began)
    return np.frombuffer(reply["tokens"], "<i4")


async def _send(
    message: PutCorpus, engine: EngineDoor, progress: Progress, wanted: Callable[[], bool]
) -> None:
    if not wanted():
        raise Replaced
    await engine.call(message)
    progress.tokens += sum(message.lengths)


class _Batch:
    """Joins the pieces of a document again, and documents to messages."""

    def __init__(self, name: str) -> None:
        self.tokens = 0
        self._name = name
        self._first = True
        self._sequences: list[list[Ids]] = []

    def add(self, ids: Ids, continues: bool) -> list[PutCorpus]:
        """The messages that are full now."""
        full: list[PutCorpus] = []
        while len(ids):
            if self.tokens == MAX_CORPUS_TOKENS:
                full += self.rest()
            part = ids[: MAX_CORPUS_TOKENS - self.tokens]
            ids = ids[len(part) :]
            if continues and self._sequences:
                self._sequences[-1].append(part)
            else:
                self._sequences.append([part])
            self.tokens += len(part)
            continues = True
        return full

    def rest(self) -> list[PutCorpus]:
        """What has not been sent, as one message or none."""
        if not self.tokens:
            return []
        lengths = tuple(sum(map(len, parts)) for parts in self._sequences)
        tokens = b"".join(part.tobytes() for parts in self._sequences for part in parts)
        message = PutCorpus(self._name, self._first, lengths, tokens)
        self._first, self._sequences, self.tokens = False, [], 0
        return [message]
