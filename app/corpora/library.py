"""The corpora of this server: stored for good, and given to every engine that starts."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

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
from app.corpora.shipped import Shipped
from app.corpora.upload import Upload
from app.db.corpora import CorpusRecord, CorpusStore
from app.db.errors import DatabaseError
from engine.client import EngineCallError
from engine.wire import DropCorpus, GetCorpora, Hello

MAX_CORPORA = 64
TOGETHER = 8
"""All corpora together may have so many times the bytes that one may have."""

UPLOADS = 2
"""So many are in memory at a time; the others wait."""

TICK_S = 0.5
REST_S = 5.0
"""After a failure that may pass."""
RELOAD_S = 15.0
"""Between two looks for what another server on the same database has changed."""

State = Literal["loading", "ready", "failed"]
FINAL = ("corpus_refused", "invalid_request")
"""Codes of the engine after which trying again does not help."""

log = logging.getLogger(__name__)


class NoRoom(Exception):
    """The limits leave no room for another corpus: which, as a sentence."""


@dataclass(slots=True)
class Shelved:
    """A stored corpus, and how far the present engine has it. held: given as a whole. counted:
    tokens of one that did not fit, so that it is not tokenised again for less room."""

    record: CorpusRecord
    progress: Progress = field(default_factory=Progress)
    held: bool = False
    indexed: int = 0
    failed: str | None = None
    counted: int = 0

    def forget_engine(self) -> None:
        self.progress, self.held, self.indexed, self.failed = Progress(), False, 0, None

    @property
    def state(self) -> State:
        if self.failed is not None:
            return "failed"
        return "ready" if self.held and self.indexed >= self.progress.tokens else "loading"

    @property
    def share(self) -> float:
        """Half of the way is to give it to the engine, half to index it."""
        given = min(1.0, self.progress.bytes / max(1, self.record.bytes))
        indexed = self.indexed / max(1, self.progress.tokens) if self.held else 0.0
        return 1.0 if self.state == "ready" else (given + min(1.0, indexed)) / 2


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
        self._most_tokens = most_tokens
        self._find_shipped = find_shipped
        self._shipped: Shipped | None = None
        self._shelf: dict[str, Shelved] = {}
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
            self._check_room(name, upload.bytes, TOGETHER * most_bytes)
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
            self._shelf[name] = Shelved(record)
        self._look_again()

    async def remove(self, name: str) -> bool:
        """Whether there was one. Raises DatabaseError."""
        async with self._changing:
            found = await self._store.delete(name)
            if self._shipped is not None and self._shipped.record.name == name:
                self._shipped = None
                found = True
            self._shelf.pop(name, None)
        self._look_again()
        return found

    def find(self, name: str) -> dict[str, Any] | None:
        """A corpus as the API shows it."""
        shelved = self._shelf.get(name)
        return None if shelved is None else self._shown(shelved)

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
        records = await self._store.list()
        known = {shelved.record.version: shelved for shelved in self._shelf.values()}
        if self._shipped is not None:
            records = [self._shipped.record, *records]  # one that is stored takes its name over
        self._shelf = {r.name: known.get(r.version) or Shelved(r) for r in records}
        self._loaded_at = time.monotonic()

    async def _load_again(self, after_s: float | None = None) -> None:
        """See what another server has changed, when the last look is `after_s` seconds ago."""
        if time.monotonic() - self._loaded_at >= (RELOAD_S if after_s is None else after_s):
            async with self._changing:
                await self._load()

    def _check_room(self, name: str, size: int, most: int) -> None:
        others = [
            s.record for s in self._shelf.values() if s.record.name != name and not self._ships(s)
        ]
        if len(others) >= MAX_CORPORA:
            raise NoRoom(f"There are {MAX_CORPORA} corpora already. Remove one first.")
        if sum(record.bytes for record in others) + size > most:
            raise NoRoom(
                f"All corpora together may have {most // 2**20:,} MiB, {TOGETHER} times "
                "--corpus-limit-mb. Remove one first."
            )

    # --- the engine ---------------------------------------------------------------------------

    def _look_again(self) -> None:
        """After a change there may be room for what did not fit before."""
        for shelved in self._shelf.values():
            if shelved.failed is not None:
                shelved.forget_engine()
                room = self._room(without=shelved)
                if shelved.counted > room:
                    shelved.failed = str(TooMany(shelved.counted, room, self._most_tokens))
        self._changed.set()

    def _room(self, without: Shelved) -> int:
        """Tokens that this one may have."""
        if self._ships(without):
            return without.record.token_ids
        return self._most_tokens - sum(
            other.progress.tokens
            for other in self._shelf.values()
            if other is not without and not self._ships(other)
        )

    def _ships(self, shelved: Shelved) -> bool:
        return self._shipped is not None and shelved.record is self._shipped.record

    def _turn(self, shelved: Shelved) -> tuple[bool, int]:
        """By which the small go first, and what ships last."""
        return self._ships(shelved), shelved.record.bytes

    async def _reconcile(self) -> None:
        if self._engine.state != "ready" or self._engine.pid is None:
            return
        if self._engine.pid != self._pid:
            self._pid, self._given = self._engine.pid, {}
            for shelved in self._shelf.values():
                shelved.forget_engine()
            await self._look_for_shipped()
        await self._compare()
        await self._drop_stale()
        for shelved in sorted(self._shelf.values(), key=self._turn):
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
            self._shipped = found
            self._shelf.setdefault(found.record.name, Shelved(found.record))

    async def _compare(self) -> None:
        """Take over what the engine says of each corpus. One that it lost is given again."""
        held: dict[str, Any] = (await self._engine.call(GetCorpora()))["corpora"]
        self._given = {name: self._given.get(name, "") for name in held}
        for name, shelved in self._shelf.items():
            if not shelved.held:
                continue
            if self._given.get(name) != shelved.record.version:
                shelved.forget_engine()
            else:
                shelved.indexed, shelved.failed = held[name]["indexed"], held[name]["failed"]

    async def _drop_stale(self) -> None:
        """Take out of the engine what was removed, or replaced by what is still to be given."""
        for name, version in list(self._given.items()):
            shelved = self._shelf.get(name)
            if shelved is None or shelved.record.version != version:
                await self._engine.call(DropCorpus(name))
                self._given.pop(name, None)

    def _is_current(self, shelved: Shelved) -> bool:
        """Whether it is to be given to the engine that is there."""
        return self._shelf.get(shelved.record.name) is shelved and self._engine.pid == self._pid

    async def _give(self, shelved: Shelved) -> None:
        record = shelved.record
        shelved.forget_engine()

        async def wanted() -> bool:
            await self._load_again()
            await self._drop_stale()
            return self._is_current(shelved)

        try:
            self._check_tokenizer(record)
            ships, room = self._ships(shelved), self._room(without=shelved)
            most = room if ships else self._most_tokens
            parts = self._shipped if ships and self._shipped is not None else self._store
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

    # --- what is shown ------------------------------------------------------------------------

    def _shown(self, shelved: Shelved) -> dict[str, Any]:
        record = asdict(shelved.record)
        for name in ("version", "token_ids", "tokenizer"):
            del record[name]
        return {
            **record,
            "tokens": shelved.progress.tokens if shelved.held else None,
            "indexed_tokens": shelved.indexed,
            "state": shelved.state,
            "progress": round(shelved.share, 3),
            "reason": self._reason(shelved),
            "shipped": self._ships(shelved),
        }

    def _reason(self, shelved: Shelved) -> str | None:
        if shelved.failed is not None or self._engine.state == "ready":
            return shelved.failed
        return f"It waits for the engine, whose state is {self._engine.state}."

    # Last, because inside this class `list` means this method in every annotation after it.
    def list(self) -> list[dict[str, Any]]:
        return [self._shown(self._shelf[name]) for name in sorted(self._shelf)]
