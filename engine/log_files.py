"""The log of the engine process: each start begins a new one and keeps the last one beside it."""

from __future__ import annotations

from pathlib import Path

MOST_BYTES = 8 * 2**20
"""Above this an engine that is restarted begins a new log; before it goes on with the old one."""


def older(path: Path) -> Path:
    """Where the log before this one is kept."""
    return path.with_name(f"{path.name}.1")


def begin(path: Path, above: int = 0) -> None:
    """Move a log of more than `above` bytes aside, in place of the one that lay there, so that the
    next process begins a new one. Where that cannot be done it goes on with the old one."""
    try:
        if path.stat().st_size > above:
            path.replace(older(path))
    except OSError:
        return  # there is none yet, or the folder is closed: to open the log says so
