"""Writer: the one task that stores what the service records, off the serving path."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import ParamSpec, TypedDict, TypeVar

from sqlalchemy.ext.asyncio import AsyncEngine

from app.db.errors import explain
from app.telemetry import records
from app.telemetry.batch import write_batch
from app.telemetry.queue import LineQueue
from app.telemetry.records import AuditRecord, RequestRecord
from app.telemetry.rollup import run_rollup
from app.telemetry.second import OpenSecond
from app.telemetry.spill import Spill
from engine.wire import Snapshot

logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

BATCH_LINES = 500
BATCH_BYTES = 1 << 20
IDLE_SECOND_S = 3.0
"""A second is closed this long after it began when no later snapshot comes."""


class WriterStatus(TypedDict):
    """queued: records in memory. spilled: records on disk that wait for the database.
    dropped: records lost since the start. degraded: the database did not take the last batch."""

    queued: int
    spilled: int
    dropped: int
    degraded: bool
    last_error: str | None


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds, lines and bytes. Above keep_* records move from memory to disk while the database
    is away; above max_* (the disk does not take them either) the oldest are dropped."""

    flush_s: float = 1.0
    retry_s: float = 1.0
    retry_max_s: float = 30.0
    rollup_s: float = 60.0
    keep_lines: int = 5_000
    keep_bytes: int = 4 << 20
    max_lines: int = 20_000
    max_bytes: int = 16 << 20
    spill_bytes: int = 256 << 20


class Writer:
    """Takes records on the event loop's thread without waiting or raising, and stores them once a
    second in batches. While the database is away it keeps them, then spills them, then drops the
    oldest, and catches up in order when it is back."""

    def __init__(
        self,
        engine: AsyncEngine,
        spill_dir: Path,
        *,
        model: str = "",
        limits: Limits = Limits(),
    ) -> None:
        self._engine = engine
        self._model = model
        self._limits = limits
        self._queue = LineQueue(limits.max_lines, limits.max_bytes)
        self._spill = Spill(spill_dir, cap_bytes=limits.spill_bytes)
        self._spill_opened = False
        self._second = OpenSecond(model)
        self._lost = 0
        self._degraded = False
        self._last_error: str | None = None
        self._retry_s = limits.retry_s
        self._retry_at = 0.0
        self._rollup_at = 0.0
        self._flushing = asyncio.Lock()
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._stopped = False
        self._deadline: float | None = None
        self._timeout: asyncio.Timeout | None = None

    # --- recording ------------------------------------------------------------------------------

    def record_request(self, record: RequestRecord) -> None:
        self._record(lambda: [records.request_line(record)])

    def record_audit(self, record: AuditRecord) -> None:
        self._record(lambda: [records.audit_line(record)])

    def record_key_use(self, key_id: str, when: float) -> None:
        """Sets a key's last_used; the caller limits how often."""
        self._record(lambda: [records.key_use_line(key_id, when)])

    def record_snapshot(self, snapshot: Snapshot) -> None:
        """Stores the snapshot's aggregates, its decisions with their outcome so far, and its
        sampled steps."""
        self._record(lambda: self._second.add(snapshot))
        for decision in snapshot.decisions:
            self._record(lambda d=decision: [records.decision_line(d, self._model)])
        for step in snapshot.step_records:
            self._record(lambda s=step: [records.step_record_line(s, self._model)])

    def status(self) -> WriterStatus:
        return {
            "queued": len(self._queue),
            "spilled": self._spill.count,
            "dropped": self._lost + self._queue.dropped,
            "degraded": self._degraded,
            "last_error": self._last_error,
        }

    def _record(self, make_lines: Callable[[], Iterable[bytes]]) -> None:
        if self._stopped:
            self._lost += 1
            return
        try:
            for line in make_lines():
                self._queue.append(line)
        except Exception:
            # A record that cannot be encoded must not fail the request that it is about.
            logger.exception("A record could not be queued")
            self._lost += 1
        # While the database is away the task looks once a second; waking it would not help.
        if self._above_keep() and not self._degraded:
            self._wake.set()

    def _above_keep(self) -> bool:
        limits = self._limits
        return len(self._queue) > limits.keep_lines or self._queue.size > limits.keep_bytes

    # --- storing --------------------------------------------------------------------------------

    async def start(self) -> None:
        """Starts the task on the running event loop; does not wait for the database."""
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="writer")

    async def stop(self, deadline_s: float = 5.0) -> None:
        """Stores what is queued. What the database has not taken by the deadline is spilled for
        the next start. Later records count as dropped."""
        self._stopped = True
        self._deadline = asyncio.get_running_loop().time() + deadline_s
        if self._timeout is not None:
            self._timeout.reschedule(self._deadline)
        self._wake.set()
        if self._task is not None:
            await self._task
            self._task = None
        self._enqueue_second()
        if await self.flush():
            return
        async with self._flushing:
            await self._spill_down_to(0, 0)
        left = len(self._queue)
        if left:
            self._queue.take(left, self._queue.size)
            self._lost += left
            logger.error("%d records could be stored neither in the database nor on disk", left)

    async def flush(self) -> bool:
        """Tries once to store everything spilled and queued; True when nothing is left over."""
        async with self._flushing:
            try:
                async with self._until_deadline():
                    await self._replay()
                    await self._store_queue()
            except Exception as error:
                self._failed(error)
                await self._make_room()
                return False
            self._recovered()
            return True

    async def _run(self) -> None:
        while not self._stopped:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), self._limits.flush_s)
            self._wake.clear()
            try:
                await self._cycle()
            except Exception:
                logger.exception("The writer met an unexpected error and goes on")

    async def _cycle(self) -> None:
        bucket = self._second.bucket
        if bucket is not None and time.time() - bucket > IDLE_SECOND_S:
            self._enqueue_second()
        now = time.monotonic()
        if now < self._retry_at:
            async with self._flushing:
                await self._make_room()
        elif await self.flush() and now >= self._rollup_at:
            self._rollup_at = now + self._limits.rollup_s
            try:
                async with self._until_deadline():
                    await run_rollup(self._engine, time.time())
            except Exception as error:
                self._failed(error)

    def _enqueue_second(self) -> None:
        for line in self._second.close():
            self._queue.append(line)

    @contextlib.asynccontextmanager
    async def _until_deadline(self) -> AsyncGenerator[None]:
        """Bounds work on the database once stop() has set a deadline, also work under way."""
        async with asyncio.timeout_at(self._deadline) as self._timeout:
            try:
                yield
            finally:
                self._timeout = None

    async def _replay(self) -> None:
        """Spilled records are older than queued ones, so they go first."""
        if not self._spill_opened:
            await _on_disk(self._spill.open)
            self._spill_opened = True
        while self._spill.count:
            try:
                lines = await _on_disk(self._spill.oldest)
            except OSError as error:
                logger.error("A spill file cannot be read and is left out: %s", error)
                self._lost += self._spill.forget_oldest()
                continue
            for first in range(0, len(lines), BATCH_LINES):
                batch = lines[first : first + BATCH_LINES]
                self._lost += await write_batch(self._engine, batch)
            await _on_disk(self._spill.remove_oldest)
            if self._above_keep():
                await self._spill_down_to(self._limits.keep_lines, self._limits.keep_bytes)

    async def _store_queue(self) -> None:
        while batch := self._queue.take(BATCH_LINES, BATCH_BYTES):
            try:
                self._lost += await write_batch(self._engine, batch)
            except BaseException:  # also when cancelled: what was taken must not get lost
                self._queue.put_back(batch)
                raise

    async def _make_room(self) -> None:
        if self._degraded and self._above_keep():
            limits = self._limits
            await self._spill_down_to(limits.keep_lines // 2, limits.keep_bytes // 2)

    async def _spill_down_to(self, lines: int, size: int) -> None:
        while len(self._queue) > lines or self._queue.size > size:
            batch = self._queue.take(BATCH_LINES, BATCH_BYTES)
            try:
                self._lost += await _on_disk(self._spill.append, batch)
            except OSError as error:
                self._queue.put_back(batch)
                self._last_error = f"The spill folder cannot be written: {error}"
                logger.warning("%s", self._last_error)
                return
            except BaseException:  # cancelled: the batch may be on disk already, twice is harmless
                self._queue.put_back(batch)
                raise

    def _failed(self, error: Exception) -> None:
        problem = explain(error, self._engine.url)
        if not self._degraded:
            unexpected = error if problem.code == "failed" else None
            logger.error(
                "Records are kept until the database is back. %s", problem, exc_info=unexpected
            )
        self._degraded = True
        self._last_error = problem.message
        self._retry_at = time.monotonic() + self._retry_s
        self._retry_s = min(2 * self._retry_s, self._limits.retry_max_s)

    def _recovered(self) -> None:
        if self._degraded:
            logger.warning("The database takes records again")
        self._degraded = False
        self._last_error = None
        self._retry_s = self._limits.retry_s
        self._retry_at = 0.0


async def _on_disk(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Runs blocking work on a thread and to its end, so that no two touch the spill at once."""
    task = asyncio.create_task(asyncio.to_thread(work, *args, **kwargs))
    try:
        return await asyncio.shield(task)
    finally:
        if not task.done():
            await asyncio.wait([task])
