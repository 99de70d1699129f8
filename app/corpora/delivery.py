"""Gives one stored corpus to the engine, in messages that hold up nothing else there."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from app.corpora.upload import Piece, unpack
from app.db.corpora import CorpusRecord
from engine.wire import (
    MAX_CORPUS_CHARACTERS,
    MAX_CORPUS_TOKENS,
    CallBody,
    DropCorpus,
    EncodeCorpus,
    Hello,
    PutCorpus,
)

GROUP = 256
"""Pieces that are worked on between two looks at what else is to be done."""
MAX_SEQUENCES = 1024
"""Of a message: the engine takes each apart from the others."""
DAMAGED = "What is stored of it is damaged. Load it again."

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


class Parts(Protocol):
    """Of a stored corpus, or of one that ships."""

    async def part(self, version: str, number: int) -> bytes | None:
        """Numbered from 0; None after the last, or when the version was replaced."""
        ...


class Refused(Exception):
    """This corpus cannot be loaded: why, as a sentence."""


class TooMany(Refused):
    """It does not fit. tokens: that it has, or `most` and more. room: for so many there is room.
    most: all corpora together may have so many."""

    def __init__(self, tokens: int, room: int, most: int) -> None:
        super().__init__(
            f"It has more than the {most:,} tokens that all corpora together may have. Load less, "
            "or raise --corpus-tokens."
            if tokens > most
            else f"It has {tokens:,} tokens, and there is room for {max(0, room):,}. Remove other "
            "corpora, load less, or raise --corpus-tokens."
        )
        self.tokens = tokens


class Unwanted(Exception):
    """It is no longer to be given."""


class Incomplete(Exception):
    """Some of it is not stored any more: it was replaced or removed, or is damaged."""


@dataclass(slots=True)
class Progress:
    """tokens: given to the engine so far. bytes: of the corpus, likewise."""

    tokens: int = 0
    bytes: int = 0


async def deliver(
    record: CorpusRecord,
    parts: Parts,
    engine: EngineDoor,
    room: int,
    most: int,
    progress: Progress,
    wanted: Callable[[], Awaitable[bool]],
) -> None:
    """Give the whole corpus, counting in `progress`. room: tokens that it may have now. most: at
    best; up to there one that does not fit is counted. wanted: whether it is still to be given;
    awaited before every message. Raises Refused (TooMany where it does not fit), Unwanted,
    Incomplete, EngineCallError and DatabaseError."""
    batch = _Batch(record.name)
    counted = 0

    async def send(message: PutCorpus) -> None:
        if not await wanted():
            raise Unwanted
        await engine.call(message)
        progress.tokens += sum(message.lengths)

    async for group in _groups(record, parts):
        if not await wanted():
            raise Unwanted
        for piece, ids in zip(group, await _ids(group, engine), strict=True):
            fitted = counted <= room
            counted += len(ids)
            if counted > most:
                raise TooMany(counted, room, most)
            if counted <= room:
                for message in batch.add(ids, piece.continues):
                    await send(message)
            elif fitted:
                await engine.call(DropCorpus(record.name))
            progress.bytes += piece.size
        await asyncio.sleep(0)  # token ids need no call that would wait
    if progress.bytes != record.bytes:
        raise Incomplete
    if counted > room:
        raise TooMany(counted, room, most)
    for message in batch.rest():
        await send(message)


async def _groups(record: CorpusRecord, parts: Parts) -> AsyncIterator[list[Piece]]:
    """The pieces in order, as many at a time as may be tokenised in one call."""
    number = 0
    while (part := await parts.part(record.version, number)) is not None:
        try:
            pieces = await asyncio.to_thread(unpack, part)
        except ValueError:
            raise Refused(DAMAGED) from None
        group: list[Piece] = []
        characters = 0
        for piece in pieces:
            characters += len(piece.text)
            if group and (characters > MAX_CORPUS_CHARACTERS or len(group) == GROUP):
                yield group
                group, characters = [], len(piece.text)
            group.append(piece)
        if group:
            yield group
        number += 1


async def _ids(group: list[Piece], engine: EngineDoor) -> list[Ids]:
    """The token ids of each piece. The engine's other work has as much time between two calls as
    each of them takes."""
    texts = tuple(piece.text for piece in group if piece.text)
    encoded: list[Ids] = []
    if texts:
        began = time.monotonic()
        reply = await engine.call(EncodeCorpus(texts))
        await asyncio.sleep(time.monotonic() - began)
        tokens = np.frombuffer(reply["tokens"], "<i4")
        encoded = np.split(tokens, np.cumsum(reply["lengths"])[:-1])
    found = iter(encoded)
    return [next(found) if piece.text else np.frombuffer(piece.ids, "<i4") for piece in group]


class _Batch:
    """Joins the pieces of a document again, and documents to messages."""

    def __init__(self, name: str) -> None:
        self.tokens = 0
        self._name = name
        self._first = True
        self._lengths: list[int] = []
        self._parts: list[bytes] = []

    def add(self, ids: Ids, continues: bool) -> list[PutCorpus]:
        """The messages that are full now."""
        full: list[PutCorpus] = []
        while len(ids):
            more = continues and self._lengths
            if self.tokens == MAX_CORPUS_TOKENS or (
                not more and len(self._lengths) == MAX_SEQUENCES
            ):
                full += self.rest()
                more = False
            part = ids[: MAX_CORPUS_TOKENS - self.tokens]
            ids = ids[len(part) :]
            if more:
                self._lengths[-1] += len(part)
            else:
                self._lengths.append(len(part))
            self._parts.append(part.tobytes())
            self.tokens += len(part)
            continues = True
        return full

    def rest(self) -> list[PutCorpus]:
        """What has not been sent, as one message or none."""
        if not self.tokens:
            return []
        lengths, tokens = tuple(self._lengths), b"".join(self._parts)
        message = PutCorpus(self._name, self._first, lengths, tokens)
        self._first, self._lengths, self._parts, self.tokens = False, [], [], 0
        return [message]
