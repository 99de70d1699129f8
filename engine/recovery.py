"""What follows the end of an engine process: why it ended, when to start again, whom to retry."""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence
from typing import Literal

import msgspec

from engine.stream import Stream
from engine.wire import Failed, Finished, Heartbeat, Hello

State = Literal["starting", "ready", "restarting", "failed", "stopped"]

BACKOFF_FIRST_S = 0.5
BACKOFF_MAX_S = 30.0
HEALTHY_S = 60.0
START_SILENCE_S = 300.0
FIRST_STEP_FACTOR = 5.0
MOST_DEATHS = 2
MOST_RETRIES = 4


class Death(msgspec.Struct, frozen=True):
    """The end of an engine process, or a start that failed. time: seconds since the epoch.
    reason: a sentence. log_line: the last thing in its log that may be the reason, None for
    nothing of that kind."""

    time: float
    kind: Literal["exit", "signal", "hang", "protocol", "start"]
    reason: str
    log_line: str | None = None


class Backoff:
    """Seconds to wait before a start: doubling from 0.5 to 30, from the beginning after a life of
    a minute."""

    def __init__(self, first_s: float = BACKOFF_FIRST_S, largest_s: float = BACKOFF_MAX_S) -> None:
        self._first, self._largest = first_s, largest_s
        self._next = first_s

    def take(self) -> float:
        delay, self._next = self._next, min(2 * self._next, self._largest)
        return delay

    def lived(self, seconds: float) -> None:
        """An engine served so long before it ended."""
        if seconds >= HEALTHY_S:
            self._next = self._first


class Watch:
    """Judges by what an engine sends whether it hangs. Counts calls of `tick`, not time: while the
    API process itself is stopped or starved nothing counts as silence of the engine."""

    def __init__(self, silence_s: float, step_s: float) -> None:
        self.period_s = min(1.0, silence_s / 10)
        self._silence_s = silence_s
        self._step_s = step_s
        self._quiet = 0
        self._serving = False
        self._beat = Heartbeat(0, None)

    def heard(self, message: object) -> None:
        """A message came in."""
        self._quiet = 0
        if isinstance(message, Heartbeat):
            self._beat = message
        elif isinstance(message, Hello):
            self._serving = True

    def tick(self) -> str | None:
        """Call every period_s: what hangs, or None. While the engine starts it may be silent for
        minutes (a library that holds the interpreter), and no step counts."""
        self._quiet += 1
        silence_s = self._silence_s if self._serving else max(self._silence_s, START_SILENCE_S)
        if self._quiet * self.period_s > silence_s:
            return f"sent nothing for {silence_s:g} s"
        beat = self._beat
        limit_s = self._step_s * (FIRST_STEP_FACTOR if beat.step <= 1 else 1)
        if self._serving and beat.step_ms is not None and beat.step_ms > 1e3 * limit_s:
            return f"has been running step {beat.step} for {beat.step_ms / 1e3:.1f} s"
        return None


def blame(streams: Sequence[Stream], max_batch: int) -> None:
    """Count the death for the requests that the engine may have been running: those that got
    something, and of the others as many as a batch holds, in the order they are admitted."""
    silent = sorted((s for s in streams if not s.started), key=lambda s: s.request.priority)
    for stream in [s for s in streams if s.started] + silent[:max_batch]:
        stream.deaths += 1


def may_retry(stream: Stream) -> bool:
    """Whether a request of a dead engine begins anew: nobody has seen anything of it, and it was
    not there at two deaths, which it may have caused."""
    if stream.read or stream.cancelled:
        return False
    return stream.deaths < MOST_DEATHS and stream.retries < MOST_RETRIES


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


# --- what requests are told -----------------------------------------------------------------------

CLOGGED = ("queue_full", "The engine takes no requests at the moment. Try again shortly.")


def away(state: State) -> tuple[str, str]:
    """Code and message while no engine serves."""
    match state:
        case "starting":
            return "engine_starting", "The engine is still loading. Try again shortly."
        case "failed":
            return "engine_failed", "The engine could not start. See the server's log."
        case "stopped":
            return "draining", "The server is shutting down."
        case _:
            return "engine_restarting", "The engine stopped and is restarting. Try again shortly."


def bereaved(stream: Stream, death: Death) -> Finished | Failed:
    """The end of a request whose engine died."""
    if stream.cancelled:
        return stream.cancelled_away()
    if stream.deaths >= MOST_DEATHS:
        what = "It stopped twice while this request ran, which is not tried a third time."
    else:
        what = "It is restarting; send the request again."
    return Failed(stream.request.id, "engine_restarting", f"{death.reason} {what}")
