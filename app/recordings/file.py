"""The file of one recording: whole lines only, whatever happens to the disk or the process."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
from pathlib import Path
from typing import Any

import msgspec

PART, WHOLE = ".part", ".jsonl"
MOST_END_BYTES = 4096
CHUNK = 1 << 20
STEP, ARRIVAL = b'"verify_ms":', b'"arrived":'
"""What each line of a step, and each of a request that came, holds once."""

log = logging.getLogger(__name__)


class RecordingFile:
    """While it is written it ends in `.part`, afterwards in `.jsonl`. Blocking; for one thread at a
    time. Raises OSError.

    A write that fails leaves the lines before it. steps, requests, size: lines that are steps and
    arrivals, and bytes. A lock on it tells other processes that it is being written."""

    def __init__(self, folder: Path, name: str, head: dict[str, Any]) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._path = folder / (name + PART)
        self.steps = self.requests = self.size = 0
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        self._file = os.open(self._path, flags, 0o600)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.write(_line(head))
        except OSError:
            self.discard()
            raise

    def write(self, lines: bytes) -> None:
        """Add whole lines, each with its line end."""
        done = 0
        try:
            while done < len(lines):
                done += os.write(self._file, memoryview(lines)[done:])
        except OSError:
            os.ftruncate(self._file, self.size)
            os.lseek(self._file, self.size, os.SEEK_SET)
            raise
        self.size += len(lines)
        self.steps += lines.count(STEP)
        self.requests += lines.count(ARRIVAL)

    def finish(self, end: dict[str, Any]) -> Path:
        """Close it with what there is to say of its end; a full disk keeps it without that."""
        whole = self._path.with_suffix(WHOLE)
        try:
            with contextlib.suppress(OSError):  # what was written before is whole
                self.write(_line({**end, "steps": self.steps, "requests": self.requests}))
                os.fsync(self._file)
            self._path.replace(whole)
        finally:
            os.close(self._file)
        return whole

    def discard(self) -> None:
        """Close and remove it."""
        os.close(self._file)
        self._path.unlink(missing_ok=True)


class Tally(msgspec.Struct, frozen=True):
    """What a file without a last word holds: seconds until its last line; whole: bytes of its whole
    lines."""

    steps: int
    requests: int
    seconds: float
    whole: int


def tally(path: Path) -> Tally:
    """Count a recording's lines. Reads all of it. Raises OSError."""
    steps = requests = whole = begin = 0
    rest = last = b""
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            lines, newline, tail = (rest + chunk).rpartition(b"\n")
            begin += len(chunk)
            if newline:
                steps += lines.count(STEP)
                requests += lines.count(ARRIVAL)
                whole, last = begin - len(tail), lines[lines.rfind(b"\n") + 1 :]
            rest = tail
    seconds = number(_object(last).get("s"))
    return Tally(steps, requests, seconds, whole)


def recover(folder: Path) -> None:
    """Make whole files of what a process left that was killed, but for those that another process
    still writes, and of those that are empty."""
    for path in sorted(folder.glob("*" + PART)):
        try:
            _close(path)
        except OSError as error:
            log.warning("the recording %s cannot be closed: %s", path.name, error)


def _close(path: Path) -> None:
    with path.open("r+b") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        found = tally(path)
        file.truncate(found.whole)
        file.seek(found.whole)
        end = {"end": "interrupted", "s": found.seconds}
        file.write(_line({**end, "steps": found.steps, "requests": found.requests}))
    if found.whole:
        path.replace(path.with_suffix(WHOLE))
    else:
        path.unlink()


def ends_of(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The first and the last line of a recording; empty for what is no JSON object. Raises
    OSError."""
    with path.open("rb") as file:
        first = file.readline(MOST_END_BYTES)
        file.seek(0, os.SEEK_END)
        file.seek(max(0, file.tell() - MOST_END_BYTES))
        tail = file.read().rstrip(b"\n")
    return _object(first), _object(tail[tail.rfind(b"\n") + 1 :])


def number(value: object) -> float:
    """A number that a line holds; 0 for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 0.0
    return float(value)


def _line(fields: dict[str, Any]) -> bytes:
    return msgspec.json.encode(fields) + b"\n"


def _object(line: bytes) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(line)
    except msgspec.DecodeError:
        return {}
    return found if isinstance(found, dict) else {}
