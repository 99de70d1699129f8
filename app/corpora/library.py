"""The corpora of this server: stored for good, and given to every engine that starts."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Callable
from typing import Any

from app.corpora.delivery import (
    DAMAGED,
    EngineDoor,
    Incomplete,
    Progress,
    Refused,
    TooMany,
    Unwanted,
    deliver,
)
from app.corpora.shelf import TOGETHER, Shelf, Shelved
from app.corpora.shipped import Shipped
from app.corpora.upload import Upload
from app.db.corpora import CorpusRecord, CorpusStore
from app.db.errors import DatabaseError
from engine.client import EngineCallError
from engine.wire import DropCorpus, GetCorpora, Hello

UPLOADS = 2
"""So many are in memory at a time; the others wait."""

TICK_S = 0.5
REST_S = 5.0
"""After a failure that may pass."""
RELOAD_S = 15.0
"""Between two looks for what another server on the same database has changed."""

FINAL = ("corpus_refused", "invalid_request")
"""Codes of the engine after which trying again does not help."""

log = logging.getLogger(__name__)


class Library:
    """Changes are stored at once and take effect in the engine in the background, by `run`, which
    compares what is stored with what the engine says it has. Single event loop."""

    def __init__(
        self,
        store: CorpusStore,
        engine: EngineDoor,
        most_tokens: int,
        find_shipped: Callable[[Hello], Shipped | None] | None = None,
    ) -> None:
        """most_tokens: of all corpora together. find_shipped: the one that ships for a model, which
        is offered beside those that are stored until it is removed, and counts in no limit."""
        self._store = store
        self._engine = engine
        self._find_shipped = find_shipped
        self._shelf = Shelf(most_tokens)
        self._pid: int | None = None
        self._given: dict[str, str] = {}
        self._loaded_at = -RELOAD_S
        self._changed = asyncio.Event()
        self._changing = asyncio.Lock()
        self.uploads = asyncio.Semaphore(UPLOADS)

    async def put(self, name: str, upload: Upload, by: str, most_bytes: int) -> None:
        """Store a corpus in place of what the name held. most_bytes: of one. Raises NoRoom and
        DatabaseError."""
        hello = self._engine.hello
        async with self._changing:
            await self._load()
            self._shelf.check_room(name, upload.bytes, TOGETHER * most_bytes)
            record = CorpusRecord(
                name=name,
                version=secrets.token_hex(16),
                created_at=time.time(),
                created_by=by,
                documents=upload.documents,
                bytes=upload.bytes,
                token_ids=upload.token_ids,
                tokenizer=hello.tokenizer if hello and upload.token_ids else "",
            )
            await self._store.put(record, upload.parts)
            self._shelf.put(record)
        self._look_again()

    async def remove(self, name: str) -> bool:
        """Whether there was one. Raises DatabaseError."""
        async with self._changing:
            stored = await self._store.delete(name)
            shipped = self._shelf.remove(name)
        self._look_again()
        return stored or shipped

    def find(self, name: str) -> dict[str, Any] | None:
        """A corpus as the API shows it."""
        shelved = self._shelf.find(name)
        return None if shelved is None else self._shelf.shown(shelved, self._engine.state)

    async def run(self) -> None:
        """Until cancelled. Neither a database nor an engine that is away ends it."""
        while True:
            pause_s = TICK_S
            try:
                await self._load_again()
                await self._reconcile()
            except (DatabaseError, EngineCallError) as error:
                log.debug("corpora are tried again: %s", error)
                pause_s = REST_S
            except Exception:
                task = asyncio.current_task()
                if task is not None and task.cancelling():
                    raise  # what a driver made of it
                log.exception("corpora are tried again")
                pause_s = REST_S
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._changed.wait()
            self._changed.clear()

    # --- the database -------------------------------------------------------------------------

    async def _load(self) -> None:
        """Take over what is stored; what is the same as before keeps its state."""
        self._shelf.take_over(await self._store.list())
        self._loaded_at = time.monotonic()

    async def _load_again(self, after_s: float | None = None) -> None:
        """See what another server has changed, when the last look is `after_s` seconds ago."""
        if time.monotonic() - self._loaded_at >= (RELOAD_S if after_s is None else after_s):
            async with self._changing:
                await self._load()

    # --- the engine ---------------------------------------------------------------------------

    def _look_again(self) -> None:
        """After a change."""
        self._shelf.try_failed_again()
        self._changed.set()

    async def _reconcile(self) -> None:
        if self._engine.state != "ready" or self._engine.pid is None:
            return
        if self._engine.pid != self._pid:
            self._pid, self._given = self._engine.pid, {}
            for shelved in self._shelf.all():
                shelved.forget_engine()
            await self._look_for_shipped()
        await self._compare()
        await self._drop_stale()
        for shelved in self._shelf.in_turn():
            if not shelved.held and shelved.failed is None and self._is_current(shelved):
                await self._give(shelved)
                await self._compare()
                if self._changed.is_set():
                    return  # what came meanwhile may be smaller than the next

    async def _look_for_shipped(self) -> None:
        """Have what ships for the engine's model on the shelf. Looks once: the next engine serves
        the same model."""
        hello, find = self._engine.hello, self._find_shipped
        if find is None or hello is None:
            return
        self._find_shipped = None
        try:
            found = await asyncio.to_thread(find, hello)
        except (OSError, ValueError) as error:
            log.warning("the corpus that ships cannot be read: %s", error)
            return
        if found is not None:
            self._shelf.ship(found)

    async def _compare(self) -> None:
        """Take over what the engine says of each corpus. One that it lost is given again."""
        held: dict[str, Any] = (await self._engine.call(GetCorpora()))["corpora"]
        self._given = {name: self._given.get(name, "") for name in held}
        for shelved in self._shelf.all():
            name = shelved.record.name
            if not shelved.held:
                continue
            if self._given.get(name) != shelved.record.version:
                shelved.forget_engine()
            else:
                shelved.indexed, shelved.failed = held[name]["indexed"], held[name]["failed"]

    async def _drop_stale(self) -> None:
        """Take out of the engine what was removed, or replaced by what is still to be given."""
        for name, version in list(self._given.items()):
            shelved = self._shelf.find(name)
            if shelved is None or shelved.record.version != version:
                await self._engine.call(DropCorpus(name))
                self._given.pop(name, None)

    def _is_current(self, shelved: Shelved) -> bool:
        """Whether it is to be given to the engine that is there."""
        return self._shelf.find(shelved.record.name) is shelved and self._engine.pid == self._pid

    async def _give(self, shelved: Shelved) -> None:
        record = shelved.record
        shelved.forget_engine()

        async def wanted() -> bool:
            await self._load_again()
            await self._drop_stale()
            return self._is_current(shelved)

        try:
            self._check_tokenizer(record)
            room, shipped = self._shelf.room(without=shelved), self._shelf.shipped
            ships = self._shelf.ships(shelved)
            most = room if ships else self._shelf.most_tokens
            parts = shipped if ships and shipped is not None else self._store
            if shelved.counted > room:
                raise TooMany(shelved.counted, room, most)
            self._given[record.name] = record.version
            await deliver(record, parts, self._engine, room, most, shelved.progress, wanted)
            if not shelved.progress.tokens:
                raise Refused("Its text has no tokens.")
            shelved.held = True
        except Unwanted:
            return
        except Incomplete:
            await self._load_again(after_s=0.0)
            if self._is_current(shelved):
                shelved.failed = DAMAGED
        except TooMany as error:
            shelved.failed, shelved.counted = str(error), error.tokens
        except Refused as error:
            shelved.failed = str(error)
        except EngineCallError as error:
            if error.code not in FINAL:
                raise
            shelved.failed = error.message
        if shelved.failed is not None:
            shelved.progress = Progress()
            await self._engine.call(DropCorpus(record.name))

    def _check_tokenizer(self, record: CorpusRecord) -> None:
        hello = self._engine.hello
        if record.token_ids and hello is not None and record.tokenizer != hello.tokenizer:
            raise Refused(
                "Its token ids are those of another tokenizer than this model's. Load it again "
                "as text, or with this model's ids."
            )

    # Last, because inside this class `list` means this method in every annotation after it.
    def list(self) -> list[dict[str, Any]]:
        shelved = sorted(self._shelf.all(), key=lambda one: one.record.name)
        return [self._shelf.shown(one, self._engine.state) for one in shelved]
