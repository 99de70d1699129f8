"""A stage of training in a process of its own, and its progress as bars."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec
from rich.console import Console

from app.failures import Failure
from app.progress import Bars
from app.signals import handled

STAGE = (sys.executable, "-m", "engine.training")
FITTING = "engine.training.fitting"
SEVERAL = "engine.training.several"
SIGNALS = (signal.SIGINT, signal.SIGTERM)
STOP_S = 15.0
"""More than a stage takes to keep what is done."""
LOG_S = 30.0
"""Where there is no terminal to draw on, a line of progress is printed this often."""


class Interrupted(Failure):
    """SIGINT or SIGTERM came; the exit code is the usual one of its number."""

    def __init__(self, number: int) -> None:
        super().__init__("Stopped. The same command goes on from what is kept.")
        self.exit_code = 128 + number


def run(stage: str, job: dict[str, Any]) -> dict[str, Any]:
    """The result of a stage. Raises Failure when it has none."""
    return _results(stage, STAGE, msgspec.json.encode({"type": stage, **job}) + b"\n")


def run_fit(job: dict[str, Any], processes: int) -> dict[str, Any]:
    """The result of fitting, by so many processes under torchrun. The first one leaves its job in
    the run's folder, for those who start torchrun themselves. Raises Failure when it has none."""
    with contextlib.ExitStack() as kept:
        try:
            folder = kept.enter_context(tempfile.TemporaryDirectory(prefix="paceline-fit-"))
            file = Path(folder) / "job.json"
            file.write_bytes(msgspec.json.encode({"type": "fit", **job}))
        except OSError as error:
            where = error.filename or tempfile.gettempdir()
            raise Failure(f"Cannot write {where}: {error.strerror}. Free space there.") from error
        command = [sys.executable, "-m", FITTING, str(file), "--owned"]
        if processes > 1:
            command = [sys.executable, "-m", SEVERAL, str(processes), str(file)]
        return _results("fit", command, b"")


def _results(stage: str, command: Sequence[str], told: bytes) -> dict[str, Any]:
    """It ends with its standard input, which we hold: also when we are killed."""
    end: dict[str, Any] = {"error": None, "result": None}
    with (
        _interruptible(),
        Bars(Console(stderr=True)) as bars,
        subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # a terminal's Ctrl-C reaches us only, and we end it in order
        ) as process,
    ):
        shown = _Sparing(bars)
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            with contextlib.suppress(BrokenPipeError):  # it ended early; why is on its output
                process.stdin.write(told)
                process.stdin.flush()
            for text in process.stdout:
                line = read_line(text)
                if line is None:  # a library's own words
                    words = text.decode(errors="replace").rstrip()
                    bars.console.print(words, markup=False, highlight=False)
                elif line["stage"]:
                    shown.update(line["stage"], line["fraction"], line["message"])
                else:
                    end = line
            process.wait()
        except BaseException:
            _end(process)
            raise
        finally:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
    if end["error"]:
        raise Failure(end["error"])
    if end["result"] is None:
        how = f"status {process.returncode}"
        if process.returncode < 0:
            how = f"signal {-process.returncode} ({signal.strsignal(-process.returncode)})"
        if process.returncode == -signal.SIGKILL:
            how += "; the system may have run out of memory"
        raise Failure(
            f"The stage {stage} ended with {how}; see above. The same command goes on from what "
            "is kept."
        )
    return end["result"]


def _end(process: subprocess.Popen[bytes]) -> None:
    """It keeps what it has, and is killed when that takes too long."""
    for number in SIGNALS:  # it is ending already
        signal.signal(number, signal.SIG_IGN)
    process.terminate()
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()


@contextlib.contextmanager
def _interruptible() -> Generator[None]:
    """SIGTERM and Ctrl-C raise Interrupted. By default SIGTERM would leave no word."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise Interrupted(number)

    with handled(SIGNALS, interrupt):
        yield


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
