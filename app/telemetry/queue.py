"""A bounded queue of lines that drops its oldest lines when it is full."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence


class LineQueue:
    """First in, first out, bounded by lines and by bytes. dropped counts what did not fit."""

    def __init__(self, max_lines: int, max_bytes: int) -> None:
        self._lines: deque[bytes] = deque()
        self._max_lines = max_lines
        self._max_bytes = max_bytes
        self.size = 0
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._lines)

    def append(self, line: bytes) -> None:
        """Adds a line at the end; the oldest lines make room. A line larger than the whole queue
        is dropped itself."""
        if len(line) > self._max_bytes:
            self.dropped += 1
            return
        self._lines.append(line)
        self.size += len(line)
        self._trim()

    def take(self, max_lines: int, max_bytes: int) -> list[bytes]:
        """Removes and returns the oldest lines within both limits, one at least if there is any."""
        taken: list[bytes] = []
        size = 0
        while self._lines and len(taken) < max_lines:
            size += len(self._lines[0])
            if taken and size > max_bytes:
                break
            taken.append(self._lines.popleft())
        self.size -= sum(map(len, taken))
        return taken

    def put_back(self, lines: Sequence[bytes]) -> None:
        """Returns taken lines to the front, in their old order."""
        self._lines.extendleft(reversed(lines))
        self.size += sum(map(len, lines))
        self._trim()

    def _trim(self) -> None:
        while len(self._lines) > self._max_lines or self.size > self._max_bytes:
            self.size -= len(self._lines.popleft())
            self.dropped += 1
