"""What follows the end of an engine process: when to start again, whom to retry, what to say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from engine.death import Death
from engine.stream import Stream
from engine.wire import Failed, Finished

State = Literal["starting", "ready", "restarting", "failed", "stopped"]

BACKOFF_FIRST_S = 0.5
BACKOFF_MAX_S = 30.0
HEALTHY_S = 60.0
MOST_DEATHS = 2
MOST_RETRIES = 4

CLOGGED = ("queue_full", "The engine takes no requests at the moment. Try again shortly.")
"""Code and message while the engine does not read what is sent to it."""


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
