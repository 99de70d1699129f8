"""One engine child process and the Unix socket to it: spawn, connect, send, receive, kill."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import struct
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import msgspec

from engine.config import EngineConfig
from engine.frames import encode
from engine.wire import MAX_FRAME_BYTES, FromEngine, ToEngine

SECRETS = ("PACELINE_ADMIN_KEY", "PACELINE_CONSOLE_KEY", "PACELINE_DATABASE_URL")
"""Variables, also with _FILE, that the child has no use for."""

HUGE_PAGES = "THP_MEM_ALLOC_ENABLE"
"""Has torch ask for huge pages when it allocates: moving weights there afterwards copies them."""

CONNECT_POLL_S = 0.05
CONNECT_S = 300.0
TERMINATE_S = 5.0
TERMINATE_HUNG_S = 1.0
DUMP_S = 0.5
UNSENT_BYTES = 4 * 1024 * 1024

_decoder = msgspec.msgpack.Decoder(FromEngine)
_length = struct.Struct(">I")


class EngineProcess:
    """A child of its own session, so that Ctrl-C in a terminal reaches the API process only.

    `messages` ends when the child closes the socket or dies."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self._process = process
        self._reader = reader
        self._writer = writer

    @classmethod
    async def spawn(
        cls, config: EngineConfig, log_path: Path, command: Sequence[str] = ()
    ) -> EngineProcess:
        """Start the child and connect to it. Its output is appended to log_path.

        command: the program that takes --socket and --config; by default `python -m
        engine.worker`. Raises ChildProcessError (its argument is the exit status) when the child
        ends before it listens, TimeoutError when it does not listen within 300 s."""
        folder = Path(tempfile.mkdtemp(prefix="paceline-"))
        socket_path = folder / "engine.sock"
        arguments = [
            *(command or (sys.executable, "-m", "engine.worker")),
            "--socket",
            str(socket_path),
            "--config",
            msgspec.json.encode(config).decode(),
        ]
        process: asyncio.subprocess.Process | None = None
        try:
            log_path.parent.mkdir(parents=True, exist_ok=True)
            with log_path.open("ab") as log:
                process = await asyncio.create_subprocess_exec(
                    *arguments,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=child_environment(),
                    start_new_session=True,
                )
            async with asyncio.timeout(CONNECT_S):
                reader, writer = await _connect(process, socket_path)
        except BaseException:
            if process is not None:
                await _end(process)
            raise
        finally:  # connected or not, nobody connects here again
            shutil.rmtree(folder, ignore_errors=True)
        return cls(process, reader, writer)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def clogged(self) -> bool:
        """True while the child does not read: 4 MiB wait to be sent. Send no new work then."""
        return self._writer.transport.get_write_buffer_size() > UNSENT_BYTES

    def send(self, message: ToEngine) -> None:
        """Queue one frame. Writing to a dead engine is ignored: its end is seen by `messages`.
        Raises ValueError for a message above the frame limit."""
        frame = encode(message)
        if not self._writer.is_closing():
            self._writer.write(frame)

    async def messages(self) -> AsyncIterator[FromEngine]:
        """Every message until the connection ends, also in the middle of a frame. Raises
        msgspec.MsgspecError on a frame that is not part of the contract."""
        while True:
            try:
                (size,) = _length.unpack(await self._reader.readexactly(_length.size))
                if size > MAX_FRAME_BYTES:
                    raise msgspec.DecodeError(f"frame of {size} bytes exceeds the limit")
                payload = await self._reader.readexactly(size)
            except (asyncio.IncompleteReadError, ConnectionError):
                return
            yield _decoder.decode(payload)

    async def stop(self, grace_s: float = TERMINATE_S) -> int:
        """End the child (terminate, after the grace kill) and return its exit status."""
        self._writer.close()
        status = await _end(self._process, grace_s)
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()
        return status

    async def stop_hung(self) -> int:
        """Have the child write its stacks to its log, then end it."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGUSR1)
            await asyncio.sleep(DUMP_S)
        return await self.stop(TERMINATE_HUNG_S)

    async def wait(self, timeout_s: float) -> int:
        """Exit status of a child whose connection has ended; stops it if it lingers."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._process.wait()
        return await self.stop()


def child_environment() -> dict[str, str]:
    """The child imports the same packages as this process, wherever it was started from."""
    root = str(Path(__file__).resolve().parent.parent)
    paths = [root, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    kept = {name: value for name, value in os.environ.items() if not name.startswith(SECRETS)}
    return {HUGE_PAGES: "1", **kept, "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths))}


async def _connect(
    process: asyncio.subprocess.Process, path: Path
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    while True:
        try:
            return await asyncio.open_unix_connection(str(path))
        except (FileNotFoundError, ConnectionRefusedError):
            if process.returncode is not None:
                raise ChildProcessError(process.returncode) from None
            await asyncio.sleep(CONNECT_POLL_S)


async def _end(process: asyncio.subprocess.Process, grace_s: float = TERMINATE_S) -> int:
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            async with asyncio.timeout(grace_s):
                await process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
    return await process.wait()
