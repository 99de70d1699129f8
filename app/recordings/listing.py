"""The recordings that have ended: which files there are, and what each says of itself."""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path

import msgspec

from app.recordings.file import WHOLE, Tally, ends_of, number, tally

NAME = re.compile(r"\d{8}-\d{6}-[0-9a-f]{4}", re.ASCII)
SECOND = len("20260101-000000")

DISK, SHUTDOWN = "disk", "shutdown"
WORDS = {
    "stopped": "It was stopped.",
    "duration": "Its time was over.",
    "size": "It reached its size.",
    "failed": "The engine could not go on recording; its log says why.",
    "engine_died": "The engine process ended.",
    "interrupted": "The server ended without closing it.",
    DISK: "The disk was full.",
    SHUTDOWN: "The server was stopped.",
}


class Recording(msgspec.Struct, frozen=True):
    """began: seconds since the epoch. seconds: how long it lasts or lasted. requests: that decoded
    in it or waited to. limit_seconds, limit_bytes: when it ends by itself. end: "" while it runs,
    else a code, of which reason is the sentence."""

    name: str
    running: bool
    began: float
    seconds: float
    steps: int
    requests: int
    bytes: int
    limit_seconds: float
    limit_bytes: int
    end: str = ""
    reason: str = ""


def paths(folder: Path) -> list[Path]:
    """The files."""
    return [path for path in folder.glob("*" + WHOLE) if NAME.fullmatch(path.stem)]


def ended(folder: Path) -> list[Recording]:
    """What each file says, the newest first. Blocking."""
    found: list[Recording] = []
    for path in paths(folder):
        try:
            found.append(_read(path))
        except OSError:
            continue  # removed meanwhile
    # A name tells the second; what is no recording tells no time.
    return sorted(found, key=lambda one: (one.name[:SECOND], one.began, one.name), reverse=True)


def _read(path: Path) -> Recording:
    first, last = ends_of(path)
    stat = path.stat()
    if "end" in last:
        counted = Tally(
            int(number(last.get("steps"))),
            int(number(last.get("requests"))),
            number(last.get("s")),
            stat.st_size,
        )
    else:  # the disk had no room for its end
        counted = _counted(path, stat.st_size, stat.st_mtime_ns)
    limits = first.get("limits")
    limits = limits if isinstance(limits, dict) else {}
    end = str(last.get("end", DISK))
    return Recording(
        path.stem,
        False,
        number(first.get("time")),
        counted.seconds,
        counted.steps,
        counted.requests,
        stat.st_size,
        number(limits.get("seconds")),
        int(number(limits.get("bytes"))),
        end,
        str(last.get("reason", WORDS.get(end, ""))),
    )


@lru_cache(maxsize=64)
def _counted(path: Path, size: int, changed: int) -> Tally:
    """Of a file as it is, which is read once."""
    return tally(path)
