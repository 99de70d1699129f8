"""Why an engine process ended, or did not start, in a sentence."""

from __future__ import annotations

import signal
import time
from typing import Literal

import msgspec


class Death(msgspec.Struct, frozen=True):
    """The end of an engine process, or a start that failed. time: seconds since the epoch.
    reason: a sentence. log_line: the last thing in its log that may be the reason, None for
    nothing of that kind."""

    time: float
    kind: Literal["exit", "signal", "hang", "protocol", "start"]
    reason: str
    log_line: str | None = None


def ended(status: int, line: str | None) -> Death:
    """The death of a process with this exit status (negative: minus the signal). line: what its
    log says of it."""
    if status >= 0:
        return Death(time.time(), "exit", f"The engine process ended with status {status}.", line)
    number = -status
    known = {int(item): item.name for item in signal.Signals}
    reason = f"The engine process was killed by signal {number} ({known.get(number, 'unknown')})"
    if number == signal.SIGKILL:
        reason += "; the system may have run out of memory"
    return Death(time.time(), "signal", reason + ".", line)
