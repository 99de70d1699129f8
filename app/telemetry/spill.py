"""Spill: records on disk while the database is away, oldest first, within a size cap."""

from __future__ import annotations

import contextlib
import logging
import os
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Segment:
    path: Path
    lines: int
    size: int


class Spill:
    """JSON-lines files `NNNNNNNNNN.jsonl` in one folder, read back in the order written.

    Blocking; call it from a worker thread. Not safe for two threads or processes at once.
    count and size are the lines and bytes on disk that have not been read back."""

    def __init__(
        self, folder: Path, *, cap_bytes: int = 256 << 20, segment_bytes: int = 4 << 20
    ) -> None:
        self._folder = folder
        self._cap = cap_bytes
        self._segment_bytes = min(segment_bytes, cap_bytes)
        self._segments: deque[_Segment] = deque()
        self._next = 0
        self._sealed = True

    @property
    def count(self) -> int:
        return sum(segment.lines for segment in self._segments)

    @property
    def size(self) -> int:
        return sum(segment.size for segment in self._segments)

    def open(self) -> None:
        """Finds what an earlier process left. A folder or file that cannot be read is skipped."""
        self._segments.clear()
        self._sealed = True
        try:
            paths = sorted(self._folder.glob("*.jsonl"))
        except OSError as error:
            logger.warning("Spill folder %s cannot be read: %s", self._folder, error)
            return
        for path in paths:
            if not path.stem.isdecimal():
                continue
            self._next = max(self._next, int(path.stem) + 1)
            try:
                data = path.read_bytes()
            except OSError as error:
                logger.warning("Spill file %s cannot be read: %s", path, error)
                continue
            self._segments.append(_Segment(path, len(_lines(data)), len(data)))

    def append(self, lines: Sequence[bytes]) -> int:
        """Stores lines behind those already there; returns how many of the oldest lines were
        dropped to stay below the cap. Raises OSError, and then none of `lines` is stored."""
        data = b"".join(line + b"\n" for line in lines)
        if len(data) > self._cap:
            return len(lines)
        dropped = 0
        while self._segments and self.size + len(data) > self._cap:
            dropped += self.remove_oldest()
        self._write(data, len(lines))
        return dropped

    def oldest(self) -> list[bytes]:
        """The lines of the oldest segment; empty when there is none. Raises OSError."""
        if not self._segments:
            return []
        segment = self._segments[0]
        if len(self._segments) == 1:
            self._sealed = True  # what comes while it is read back goes to a new segment
        return _lines(segment.path.read_bytes())

    def remove_oldest(self) -> int:
        """Forgets the oldest segment and deletes its file; returns how many lines it held.

        A file that cannot be deleted stays for the next start, where it is read back again."""
        path = self._segments[0].path
        lines = self.forget_oldest()
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            logger.warning("Spill file %s cannot be deleted: %s", path, error)
        return lines

    def forget_oldest(self) -> int:
        """Leaves the oldest segment's file as it is; returns how many lines it held."""
        segment = self._segments.popleft()
        if not self._segments:
            self._sealed = True
        return segment.lines

    def _write(self, data: bytes, count: int) -> None:
        if self._sealed or self._segments[-1].size + len(data) > self._segment_bytes:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._segments.append(_Segment(self._folder / f"{self._next:010d}.jsonl", 0, 0))
            self._next += 1
            self._sealed = False
        segment = self._segments[-1]
        try:
            _append(segment.path, data)
        except OSError:
            # Undo a partial write; where that fails too, the torn line is skipped on reading.
            with contextlib.suppress(OSError):
                os.truncate(segment.path, segment.size)
            self._sealed = True
            if not segment.lines:
                self._segments.pop()
                with contextlib.suppress(OSError):
                    segment.path.unlink(missing_ok=True)
            raise
        segment.lines += count
        segment.size += len(data)


def _append(path: Path, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _lines(data: bytes) -> list[bytes]:
    return [line for line in data.split(b"\n") if line]
