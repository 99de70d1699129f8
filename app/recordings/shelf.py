"""The recordings of a server: one that runs at most, and those that have ended."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import shutil
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, BinaryIO

from app.errors import ApiError
from app.recordings import listing
from app.recordings.file import WHOLE, RecordingFile, recover
from app.recordings.listing import DISK, NAME, SHUTDOWN, WORDS, Recording
from controller.contract import RECORDING_VERSION
from engine.client import EngineCallError
from engine.wire import CallBody, Recorded, StartRecording, StopRecording

MOST_KEPT = 32
MOST_WAITING_BYTES = 32 * 1024 * 1024
"""Lines that may wait for the disk."""
SPARE_BYTES = 64 * 1024 * 1024
"""A recording is not begun where the disk would be left with less."""

log = logging.getLogger(__name__)

Call = Callable[[CallBody], Awaitable[object]]


class _Running:
    """The one that is written. limits: seconds and bytes. parts: what waits for the disk, and
    waiting its bytes."""

    def __init__(
        self, name: str, file: RecordingFile, began: float, limits: tuple[float, int]
    ) -> None:
        self.name, self.file, self.began, self.limits = name, file, began, limits
        self.parts: asyncio.Queue[Recorded | None] = asyncio.Queue()
        self.waiting = 0
        self.end, self.reason = "", ""
        self.written: asyncio.Task[None] | None = None

    def close(self, end: str, reason: str = "") -> None:
        """Nothing more is taken. The first reason counts."""
        if not self.end:
            self.end, self.reason = end, reason or WORDS[end]
            self.parts.put_nowait(None)


class Recordings:
    """Writes what the engine sends into files, off the event loop. Of a single event loop.

    Raises ApiError. Neither a full disk nor an engine that dies takes more with it than the
    recording, whose lines until then are kept."""

    def __init__(self, folder: Path, call: Call) -> None:
        self._folder = folder
        self._call = call
        self._running: _Running | None = None
        self._changing = asyncio.Lock()
        """Held while one begins or is stopped."""
        self._telling: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Close what an earlier process left open."""
        await asyncio.to_thread(recover, self._folder)

    async def start(self, head: dict[str, Any], seconds: float, limit_bytes: int) -> Recording:
        """Begin one. head: what its first line says of the server."""
        async with self._changing:
            if self._running is not None:
                raise ApiError(409, "recording_running", "A recording runs already; stop it first.")
            began = time.time()
            name = f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime(began))}-{secrets.token_hex(2)}"
            limits = {"seconds": seconds, "bytes": limit_bytes}
            first = {
                "recording": RECORDING_VERSION,
                "time": round(began, 3),
                "limits": limits,
                **head,
            }
            try:
                await asyncio.to_thread(self._check_room, limit_bytes)
                file = await asyncio.to_thread(RecordingFile, self._folder, name, first)
            except OSError as error:
                raise _disk(error) from None
            running = self._running = _Running(name, file, began, (seconds, limit_bytes))
            try:
                await self._call(StartRecording(name, seconds, limit_bytes))
            except BaseException:
                self._running = None
                self._tell_to_stop()  # it may have begun, and only its answer is missing
                await asyncio.to_thread(file.discard)
                raise
            running.written = asyncio.create_task(self._write(running), name="recording")
            return _state(running)

    async def stop(self) -> Recording:
        """End the one that runs and wait until its file is whole."""
        async with self._changing:
            running = self._running
            if running is None:
                raise ApiError(409, "no_recording", "No recording runs.")
            with contextlib.suppress(EngineCallError, ApiError):  # its death has ended it too
                await self._call(StopRecording())
            return await self._closed(running, "stopped")

    async def close(self) -> None:
        """The server stops."""
        if (running := self._running) is not None:
            with contextlib.suppress(EngineCallError, ApiError, TimeoutError):
                async with asyncio.timeout(2.0):
                    await self._call(StopRecording())
            await self._closed(running, SHUTDOWN)

    async def _closed(self, running: _Running, end: str) -> Recording:
        running.close(end)
        if running.written is not None:
            await asyncio.shield(running.written)
        return _state(running, False)

    def receive(self, recorded: Recorded) -> None:
        """A part from the engine, or word of its death."""
        running = self._running
        if running is None or running.end or recorded.name not in ("", running.name):
            return
        running.waiting += len(recorded.lines)
        if running.waiting > MOST_WAITING_BYTES:
            self._fail(running, "The disk did not keep up with the recording.")
            return
        running.parts.put_nowait(recorded)
        if recorded.end:
            running.close(recorded.end)

    async def _write(self, running: _Running) -> None:
        try:
            while (part := await running.parts.get()) is not None:
                try:
                    await asyncio.to_thread(running.file.write, part.lines)
                except OSError as error:
                    self._fail(running, f"It could not be written: {error.strerror or error}.")
                    break
                running.waiting -= len(part.lines)
            seconds = round(time.time() - running.began, 3)
            end = {"end": running.end, "reason": running.reason, "s": seconds}
            try:
                await asyncio.to_thread(running.file.finish, end)
            except OSError as error:
                log.error("the recording %s could not be closed: %s", running.name, error)
        finally:
            self._running = None

    def _fail(self, running: _Running, reason: str) -> None:
        """Its disk is full or slow: the engine need not send more."""
        log.error("the recording %s ended: %s", running.name, reason)
        running.close(DISK, reason)
        self._tell_to_stop()

    def _tell_to_stop(self) -> None:
        async def tell() -> None:
            with contextlib.suppress(EngineCallError, ApiError):
                await self._call(StopRecording())

        task = asyncio.create_task(tell(), name="recording-stop")
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)

    # --- those that there are -----------------------------------------------------------------

    async def list(self) -> list[Recording]:
        """The newest first; each once, also while one begins or ends."""
        while True:
            running = self._running
            found = await asyncio.to_thread(listing.ended, self._folder)
            if self._running is running:
                break
        if running is None:
            return found
        return [_state(running), *(one for one in found if one.name != running.name)]

    async def read(self, name: str) -> BinaryIO:
        """The file of one that has ended, opened."""
        path = self._find(name)
        try:
            return await asyncio.to_thread(path.open, "rb")
        except FileNotFoundError:
            raise _unknown(name) from None
        except OSError as error:
            raise _disk(error) from None

    async def remove(self, name: str) -> None:
        path = self._find(name)
        try:
            await asyncio.to_thread(path.unlink)
        except FileNotFoundError:
            raise _unknown(name) from None
        except OSError as error:
            raise _disk(error) from None

    def _find(self, name: str) -> Path:
        if self._running is not None and name == self._running.name:
            raise ApiError(409, "recording_running", "This recording still runs; stop it first.")
        if not NAME.fullmatch(name):
            raise _unknown(name)
        return self._folder / (name + WHOLE)

    def _check_room(self, limit_bytes: int) -> None:
        if len(listing.paths(self._folder)) >= MOST_KEPT:
            raise ApiError(
                409,
                "too_many_recordings",
                f"There are {MOST_KEPT} recordings; download and remove some first.",
            )
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        free = shutil.disk_usage(self._folder).free
        if free < limit_bytes + SPARE_BYTES:
            raise ApiError(
                507,
                "disk_full",
                f"The disk has {free / 2**20:,.0f} MB free, less than the recording may take and "
                f"{SPARE_BYTES / 2**20:,.0f} MB to spare; make room or record less.",
                "megabytes",
            )


def _state(running: _Running, still: bool = True) -> Recording:
    seconds, size = running.limits
    return Recording(
        running.name,
        still,
        round(running.began, 3),
        round(time.time() - running.began, 3),
        running.file.steps,
        running.file.requests,
        running.file.size,
        seconds,
        size,
        "" if still else running.end,
        "" if still else running.reason,
    )


def _unknown(name: str) -> ApiError:
    return ApiError(404, "unknown_recording", f"There is no recording '{name[:64]}'.", "name")


def _disk(error: OSError) -> ApiError:
    reason = error.strerror or "unknown error"
    return ApiError(507, "disk_failed", f"The recording's file cannot be kept: {reason}.")
