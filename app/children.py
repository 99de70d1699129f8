"""Child processes of `paceline up`: started, watched, stopped together, never left behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

STOP_S = 40.0
"""More than the server's own worst case: 10 s of answers, cancelling, connections, its engine."""

TAIL_BYTES = 64 * 1024
"""Of a log, of which an error message shows the last lines."""


@dataclass(frozen=True, slots=True)
class Child:
    """name: as shown to the user. log: where its output goes."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    def ended(self) -> bool:
        return self.process.poll() is not None

    def last_lines(self, count: int = 5) -> str:
        """The end of its log, for an error message."""
        try:
            with self.log.open("rb") as file:
                end = file.seek(0, os.SEEK_END)
                file.seek(max(0, end - TAIL_BYTES))
                text = file.read().decode("utf-8", "replace")
        except OSError:
            return ""
        return "\n".join(line for line in text.splitlines()[-count:] if line.strip())


def spawn(name: str, arguments: list[str], environment: Mapping[str, str], log: Path) -> Child:
    """Start a child in a session of its own, so that a terminal's Ctrl-C reaches only us and the
    children end in order. The log of the last start is kept beside it, as NAME.1; where it cannot
    be moved, the new one goes on with it."""
    with contextlib.suppress(OSError):
        log.replace(log.with_name(f"{log.name}.1"))
    with log.open("ab") as output:
        process = subprocess.Popen(
            arguments,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    return Child(name, process, log)


def python(*arguments: str) -> list[str]:
    return [sys.executable, *arguments]


def terminate(children: list[Child]) -> None:
    """SIGTERM to each that runs, last started first; the second one makes the server hurry."""
    for child in reversed(children):
        if not child.ended():
            child.process.terminate()


def stop(children: list[Child]) -> None:
    """SIGTERM to each, last started first; SIGKILL to a whole session that takes too long."""
    terminate(children)
    deadline = time.monotonic() + STOP_S
    for child in reversed(children):
        try:
            child.process.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.process.pid, signal.SIGKILL)
            child.process.wait()
