"""The file of one recording: whole lines only, whatever happens to the disk or the process."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec

PART, WHOLE = ".part", ".jsonl"
MOST_END_BYTES = 4096


class RecordingFile:
    """While it is written it ends in `.part`, afterwards in `.jsonl`. Blocking; for one thread at a
    time. Raises OSError.

    A write that fails leaves the lines before it. steps, size: lines that are steps, and bytes."""

    def __init__(self, folder: Path, name: str, head: dict[str, Any]) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._path = folder / (name + PART)
        self.steps = self.size = 0
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        self._file = os.open(self._path, flags, 0o600)
        try:
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
        self.steps += lines.count(b'"verify_ms":')

    def finish(self, end: dict[str, Any]) -> Path:
        """Close it with what there is to say of its end; a full disk keeps it without that."""
        try:
            try:
                self.write(_line({**end, "steps": self.steps}))
                os.fsync(self._file)
            finally:
                os.close(self._file)
        except OSError:
            pass  # what was written before is whole
        whole = self._path.with_suffix(WHOLE)
        self._path.replace(whole)
        return whole

    def discard(self) -> None:
        """Close and remove it."""
        os.close(self._file)
        self._path.unlink(missing_ok=True)


def recover(folder: Path) -> None:
    """Make whole files of what a process left that was killed. Raises OSError."""
    for path in sorted(folder.glob("*" + PART)):
        with path.open("r+b") as file:
            begin, size = 0, 0
            while chunk := file.read(1 << 20):
                if (place := chunk.rfind(b"\n")) >= 0:
                    size = begin + place + 1
                begin += len(chunk)
            file.truncate(size)
            file.seek(size)
            file.write(_line({"end": "interrupted"}))
        path.replace(path.with_suffix(WHOLE))


def ends_of(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The first and the last line of a recording; empty for what is no JSON object. Raises
    OSError."""
    with path.open("rb") as file:
        first = file.readline(MOST_END_BYTES)
        file.seek(0, os.SEEK_END)
        file.seek(max(0, file.tell() - MOST_END_BYTES))
        tail = file.read().rstrip(b"\n")
    return _object(first), _object(tail[tail.rfind(b"\n") + 1 :])


def _line(fields: dict[str, Any]) -> bytes:
    return msgspec.json.encode(fields) + b"\n"


def _object(line: bytes) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(line)
    except msgspec.DecodeError:
        return {}
    return found if isinstance(found, dict) else {}
