"""The corpora of this server: stored for good, and given to every engine that starts."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from app.corpora.delivery import EngineDoor, Progress, Refused, Replaced, deliver
from app.corpora.upload import Upload
from app.db.corpora import CorpusRecord, CorpusStore
from app.db.errors import DatabaseError
from engine.client import EngineCallError
from engine.wire import DropCorpus, GetCorpora

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
    """A stored corpus, and how far the present engine has it. held: given as a whole."""

    record: CorpusRecord
    progress: Progress = field(default_factory=Progress)
    held: bool = False
    indexed: int = 0
    failed: str | None = None

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

    def __init__(self, store: CorpusStore, engine: EngineDoor, most_tokens: int) -> None:
        """most_tokens: of all corpora together."""
        self._store = store
        self._engine = engine
        self._most_tokens = most_tokens
        self._shelf: dict[str, Shelved] = {}
        self._pid: int | None = None
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
                if time.monotonic() - self._loaded_at >= RELOAD_S:
                    async with self._changing:
                        await self._load()
                await self._reconcile()
            except (DatabaseError, EngineCallError) as error:
                log.debug("corpora are tried again: %s", error)
                pause_s = REST_S
            except Exception:
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
        self._shelf = {r.name: known.get(r.version) or Shelved(r) for r in records}
        self._loaded_at = time.monotonic()

    def _check_room(self, name: str, size: int, most: int) -> None:
        others = [s.record for s in self._shelf.values() if s.record.name != name]
        if len(others) >= MAX_CORPORA:
            raise NoRoom(f"There are {MAX_CORPORA} corpora already. Remove one first.")
        if sum(record.bytes for record in others) + size > most:
            raise NoRoom(
                f"All corpora together may have {most // 2**20} MiB, {TOGETHER} times "
                "--corpus-limit-mb. Remove one first."
            )

    # --- the engine ---------------------------------------------------------------------------

    def _look_again(self) -> None:
        """After a change there may be room for what did not fit before."""
        for shelved in self._shelf.values():
            if shelved.failed is not None:
                shelved.forget_engine()
        self._changed.set()

    async def _reconcile(self) -> None:
        if self._engine.state != "ready" or self._engine.pid is None:
            return
        if self._engine.pid != self._pid:
            self._pid = self._engine.pid
            for shelved in self._shelf.values():
                shelved.forget_engine()
        held = await self._held()
        for name in held.keys() - self._shelf.keys():
            await self._engine.call(DropCorpus(name))
        for shelved in list(self._shelf.values()):
            if not shelved.held and shelved.failed is None:
                await self._give(shelved)
                held = await self._held()
        for name, state in held.items():
            shelved = self._shelf.get(name)
            if shelved is not None and shelved.held:
                shelved.indexed, shelved.failed = state["indexed"], state["failed"]

    async def _held(self) -> dict[str, Any]:
        return (await self._engine.call(GetCorpora()))["corpora"]

    async def _give(self, shelved: Shelved) -> None:
        record = shelved.record
        shelved.forget_engine()

        def wanted() -> bool:
            return self._shelf.get(record.name) is shelved and self._engine.pid == self._pid

        try:
            self._check_tokenizer(record)
            room = self._most_tokens - sum(
                other.progress.tokens for other in self._shelf.values() if other is not shelved
            )
            await deliver(record, self._store, self._engine, room, shelved.progress, wanted)
            if not shelved.progress.tokens:
                raise Refused("Its text has no tokens.")
            shelved.held = True
        except Replaced:
            return
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
        }

    def _reason(self, shelved: Shelved) -> str | None:
        if shelved.failed is not None or self._engine.state == "ready":
            return shelved.failed
        return f"It waits for the engine, whose state is {self._engine.state}."

    # Last, because inside this class `list` means this method in every annotation after it.
    def list(self) -> list[dict[str, Any]]:
        return [self._shown(self._shelf[name]) for name in sorted(self._shelf)]
