"""A peer in its process, from our side: started, asked, and ended, whatever it does."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Annotated, NamedTuple, Self

import msgspec
from msgspec import Meta

from app.failures import SettingsError
from app.foreign_json import decode

MARK = b"@@ "
FOLDER = Path(__file__).parent
START_S = 900.0
ANSWER_S = 1800.0
STOP_S = 20.0
POLL_S = 0.5
LONGEST_LINE = 64 << 20

SCRIPTS = {
    "transformers": ("peer_transformers.py", ("", "lookup", "assisted")),
    "llama.cpp": ("peer_llama.py", ("", "lookup")),
    "vllm": ("peer_vllm.py", ("", "lookup")),
}
"""By engine: its script, and the variants that it has."""


class PeerError(Exception):
    """A peer that is not there, or not any more; the message says why."""


class Wanted(NamedTuple):
    """A peer to be measured: its name ("vllm+lookup"), and the interpreter that has it."""

    name: str
    python: str

    @property
    def engine(self) -> str:
        return self.name.partition("+")[0]

    @property
    def variant(self) -> str:
        return self.name.partition("+")[2]


class Setup(msgspec.Struct, frozen=True):
    """model: a folder or a Hugging Face id. gguf: llama.cpp's file. threads: 0 is its default."""

    model: str
    dtype: str
    threads: int
    variant: str
    gguf: str = ""
    assistant: str = ""


class Line(msgspec.Struct, frozen=True):
    """Any answer of a peer's script."""

    ready: str = ""
    batches: bool = False
    missing: str = ""
    seconds: Annotated[float, Meta(ge=0)] = 0.0
    tokens: list[list[Annotated[int, Meta(ge=0)]]] = []


def known_peers() -> list[str]:
    return [
        f"{engine}+{variant}" if variant else engine
        for engine, (_, variants) in SCRIPTS.items()
        for variant in variants
    ]


def wanted(given: str, python: str) -> Wanted:
    """The peer of NAME or NAME=PYTHON. Raises SettingsError."""
    name, _, interpreter = given.partition("=")
    if name not in known_peers():
        raise SettingsError(f"--peer {name}: one of {', '.join(known_peers())}")
    return Wanted(name, interpreter or python)


class Peer:
    """A loaded peer. Use `start`; `stop` ends its process."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, errors: IO[bytes]) -> None:
        self.name = name
        self.described = ""
        self.batches = False
        self._process, self._errors = process, errors

    @classmethod
    async def start(cls, peer: Wanted, setup: Setup) -> Self:
        """Raises PeerError when it is not installed or cannot load the model."""
        script = FOLDER / SCRIPTS[peer.engine][0]
        errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed by stop)
        try:
            process = await asyncio.create_subprocess_exec(
                peer.python,
                str(script),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
                limit=LONGEST_LINE,
                env={name: os.environ[name] for name in os.environ if "KEY" not in name},
                start_new_session=True,
            )
        except OSError as error:
            errors.close()
            raise PeerError(f"cannot run {peer.python}: {error.strerror}") from None
        found = cls(peer.name, process, errors)
        try:
            line = await found._ask(msgspec.json.encode(setup), START_S)
            if line.missing:
                raise PeerError(f"not installed: {line.missing}")
        except BaseException:
            await found.stop()
            raise
        found.described, found.batches = line.ready, line.batches
        return found

    async def generate(
        self, prompts: Sequence[Sequence[int]], max_tokens: int
    ) -> tuple[float, list[list[int]]]:
        """Seconds that it took by its own clock, and the tokens of each prompt. Raises PeerError
        when it failed; then it has ended."""
        request = {"prompts": prompts, "max_tokens": max_tokens}
        line = await self._ask(msgspec.json.encode(request), ANSWER_S)
        if len(line.tokens) != len(prompts) or line.seconds <= 0:
            raise PeerError(f"{len(line.tokens)} answers to {len(prompts)} prompts")
        return line.seconds, line.tokens

    async def _ask(self, request: bytes, limit_s: float) -> Line:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(request + b"\n")
            await self._process.stdin.drain()
            async with asyncio.timeout(limit_s):
                while text := await self._line():
                    if text.startswith(MARK):  # an engine may print what it likes
                        return decode(text[len(MARK) :], Line)
        except TimeoutError:
            raise PeerError(f"no answer within {limit_s:g} s") from None
        except (ValueError, msgspec.MsgspecError) as error:
            raise PeerError(f"what it answers makes no sense: {error}") from None
        except (BrokenPipeError, ConnectionResetError):
            pass  # it has ended; why is in what it wrote
        raise PeerError(f"it ended: {self._last_words()}")

    async def _line(self) -> bytes:
        """The next line, empty at the end: also when it has ended and a worker of it lives on,
        which holds its output open."""
        assert self._process.stdout is not None
        reading = asyncio.create_task(self._process.stdout.readline())
        try:
            while not reading.done():
                ended = self._process.returncode is not None
                await asyncio.wait([reading], timeout=POLL_S)
                if ended and not reading.done():
                    return b""
            return reading.result()
        finally:
            reading.cancel()
            await asyncio.wait([reading])

    def _last_words(self) -> str:
        """The last line that it wrote to standard error."""
        size = self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(0, size - 4096))
        said = self._errors.read().decode("utf-8", "replace").split("\n")
        return next((line.strip()[:300] for line in reversed(said) if line.strip()), "no message")

    async def stop(self) -> None:
        """End the process, by force when it does not end by itself, and what it started: an
        engine's workers outlive a process that died."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        limit_s = STOP_S if self.described else 1.0
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(limit_s):
                    await self._process.wait()
        finally:
            with contextlib.suppress(ProcessLookupError):  # a session of its own: see start
                os.killpg(self._process.pid, signal.SIGKILL)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await self._process.wait()
                if self._process.stdout is not None:
                    await self._process.stdout.read()  # to its end, which closes the pipe
        self._errors.close()
