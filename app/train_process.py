"""A stage of training in a process of its own, and its progress as bars."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console

from app.failures import Failure
from app.progress import Bars

STAGE = (sys.executable, "-m", "engine.training")
FITTING = "engine.training.fitting"
LOG_S = 30.0
"""Where there is no terminal to draw on, a line of progress is printed this often."""


def run(stage: str, job: dict[str, Any]) -> dict[str, Any]:
    """The result of a stage. Raises Failure when it has none."""
    return _results(stage, STAGE, msgspec.json.encode({"type": stage, **job}))


def run_fit(job: dict[str, Any], processes: int) -> dict[str, Any]:
    """The result of fitting, by so many processes under torchrun. Its job lies as a file in the
    run's folder, for those who start torchrun themselves. Raises Failure when it has none."""
    folder = Path(job["run"])
    file = folder / "job.json"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        told = msgspec.json.encode({"type": "fit", **job})
        file.write_bytes(msgspec.json.format(told) + b"\n")
    except OSError as error:
        raise Failure(f"Cannot write {file}: {error.strerror}.") from error
    command = [sys.executable, "-m", FITTING, str(file)]
    if processes > 1:
        torchrun = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
        command = [sys.executable, "-m", *torchrun, "-m", FITTING, str(file)]
    return _results("fit", command, b"")


def _results(stage: str, command: Sequence[str], told: bytes) -> dict[str, Any]:
    end: dict[str, Any] = {"error": None, "result": None}
    with (
        _terminable(),
        Bars(Console(stderr=True)) as bars,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process,
    ):
        shown = _Sparing(bars)
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            with process.stdin:
                process.stdin.write(told)
        except BrokenPipeError:
            pass  # it ended early; why is on its output
        try:
            for text in process.stdout:
                line = read_line(text)
                if line is None:  # a library's own words
                    words = text.decode(errors="replace").rstrip()
                    bars.console.print(words, markup=False, highlight=False)
                elif line["stage"]:
                    shown.update(line["stage"], line["fraction"], line["message"])
                else:
                    end = line
        except BaseException:
            process.terminate()  # it keeps what it has
            raise
    if end["error"]:
        raise Failure(end["error"])
    if end["result"] is None:
        raise Failure(f"The stage {stage} ended with status {process.returncode}; see above.")
    return end["result"]


@contextlib.contextmanager
def _terminable() -> Generator[None]:
    """SIGTERM ends us as Ctrl-C does: by default it would leave the stage running by itself."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def read_line(text: bytes) -> dict[str, Any] | None:
    """A Line of a stage (engine.training.job) by its fields; None for anything else."""
    try:
        line = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    fields = ("stage", "fraction", "message", "result", "error")
    return line if isinstance(line, dict) and all(name in line for name in fields) else None


class _Sparing:
    """Bars that print no more than a line in LOG_S where there is no terminal to draw on."""

    def __init__(self, bars: Bars) -> None:
        self._bars = bars
        self._stage = ""
        self._shown = 0.0

    def update(self, stage: str, fraction: float, message: str) -> None:
        now = time.monotonic()
        due = stage != self._stage or fraction >= 1.0 or now - self._shown >= LOG_S
        if self._bars.console.is_terminal or due:
            self._stage, self._shown = stage, now
            self._bars.update(stage, fraction, message)
