"""What the log of an engine process says about its end."""

from __future__ import annotations

import os
import re
from pathlib import Path

TAIL_BYTES = 64 * 1024
LINE_CHARS = 300

_RECORD = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} \S+ ([A-Z]+) ")
_SERIOUS = ("WARNING", "ERROR", "CRITICAL")
_TRACEBACK = "Traceback (most recent call last):"
_FATAL = ("Fatal Python error:", "terminate called", "what():")
"""What the interpreter's and the C++ library's last lines begin with."""


def log_end(path: Path) -> int:
    """The size of the log in bytes: what a process writes that starts now comes after it."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def last_words(path: Path, since: int) -> str | None:
    """The last line from byte `since` on that may say why the process ended: a record that is a
    warning or worse, or the error at the end of a traceback. None when there is none. Without
    control characters, cut to 300."""
    try:
        with path.open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(since if since <= end else 0, end - TAIL_BYTES))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return None
    found: str | None = None
    in_frames = False
    for line in text.splitlines():
        if record := _RECORD.match(line):
            in_frames = False
            if record[1] in _SERIOUS:
                found = line
        elif line.startswith(_TRACEBACK):
            in_frames = True
        elif line.strip().startswith(_FATAL) or (in_frames and line and not line[0].isspace()):
            found, in_frames = line, False
    if found is None:
        return None
    clean = "".join(character if character.isprintable() else " " for character in found.strip())
    return clean[:LINE_CHARS]
