"""How a training process ends: by a signal, with who started it, or with its result."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import msgspec

from engine.errors import StartError
from engine.training.job import Line

STOP_S = 10.0
"""For keeping what is done after a signal; a process that computes on does not hear of it."""
ORPHAN_S = 2.0
"""Likewise once nobody waits for it: the same command may be started again at once."""
SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stopped(KeyboardInterrupt):
    """A signal came: what is done is kept."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def stop_on_signals() -> None:
    """The first SIGINT or SIGTERM raises Stopped in the main thread; the next change nothing."""
    for number in SIGNALS:
        signal.signal(number, _stop)


def _stop(number: int, frame: FrameType | None) -> None:
    for one in SIGNALS:
        signal.signal(one, signal.SIG_IGN)
    _leave_after(STOP_S, 128 + number)
    raise Stopped(number)


def _leave_after(seconds: float, status: int) -> None:
    def leave() -> None:
        time.sleep(seconds)
        os._exit(status)

    threading.Thread(target=leave, name="leave", daemon=True).start()


def end_with_input() -> None:
    """End this process when its standard input does, a pipe that who started it holds: it closes
    however that one ends."""
    source = sys.stdin.fileno()

    def watch() -> None:
        while os.read(source, 4096):
            pass
        _leave_after(ORPHAN_S, 128 + signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="parent", daemon=True).start()


def write_line(line: Line) -> None:
    """A Line on standard output, past its buffer: a reader that has gone leaves nothing in it.
    Raises BrokenPipeError."""
    left = memoryview(msgspec.json.encode(line) + b"\n")
    while left:
        left = left[os.write(1, left) :]


def finish(work: Callable[[], dict[str, Any]], tell: Callable[[Line], None]) -> int:
    """Do the work and tell its result, or in a sentence why there is none. The exit code: 0, 1, or
    128 and the number of the signal that stopped it."""
    try:
        try:
            tell(Line(result=work()))
        except StartError as error:
            tell(Line(error=error.message))
            return 1
        except Stopped as stopped:
            name = signal.Signals(stopped.number).name
            tell(Line(error=f"stopped by {name}. The same command goes on from what is kept."))
            return 128 + stopped.number
        except BrokenPipeError:
            raise
        except OSError as error:  # a full disk, a file that may not be read
            where = error.filename or "a file of this stage"
            tell(Line(error=f"cannot read or write {where}: {error.strerror or error}."))
            return 1
    except BrokenPipeError:  # who started it is gone
        return 128 + signal.SIGTERM
    return 0
