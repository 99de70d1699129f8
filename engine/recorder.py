"""Records what the steps of a live engine gave, as lines that the simulator can replay.

The lines hold counts and times: no text, no token id, and no name of a request, key or tenant. They
go to the API process in small parts, which keeps the file; while nothing is recorded, the loop asks
`running` and does nothing else. The format is in docs/simulate.md."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING

import msgspec

from controller.contract import StepOutcome
from engine.errors import RequestError
from engine.recorded_lines import ArrivalLine, Arrived, Done, DoneLine, row, step_line
from engine.wire import (
    MAX_RECORDING_BYTES,
    MAX_RECORDING_S,
    Recorded,
    RecordingEnd,
    StartRecording,
)

if TYPE_CHECKING:
    from engine.request import Request

log = logging.getLogger(__name__)

Emit = Callable[[Recorded], None]

PART_BYTES = 64 * 1024
"""Lines are sent when there are so many bytes of them, and at every tick."""


class Recorder:
    """One recording at a time. Called by the engine loop's thread only.

    Nothing that goes wrong in here ends a step: the recording ends instead."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.running = False
        self._emit: Emit = _nobody
        self._clock = clock
        self._encode = msgspec.json.Encoder().encode
        self._name = ""
        self._began = 0.0
        self._limit_s = 0.0
        self._room = 0
        self._known: set[int] = set()
        """Requests that have arrived and not ended."""
        self._lines: list[bytes] = []
        self._waiting = 0

    def start(self, body: StartRecording, emit: Emit) -> None:
        """emit: takes the parts until the last, which says why it ended. RequestError while another
        one runs, and for limits that are out of range."""
        if self.running:
            raise RequestError("recording_running", "a recording runs already; stop it first.")
        for field, value, most in (
            ("seconds", body.seconds, MAX_RECORDING_S),
            ("limit_bytes", body.limit_bytes, MAX_RECORDING_BYTES),
        ):
            if not 1 <= value <= most:
                message = f"{field} must be between 1 and {most}, not {value}."
                raise RequestError("invalid_request", message, field)
        self._emit = emit
        self._name, self._limit_s, self._room = body.name, body.seconds, body.limit_bytes
        self._began = self._clock()
        self._lines, self._waiting = [], 0
        self._known.clear()
        self.running = True

    def stop(self) -> None:
        """Send the rest; nothing where none runs."""
        with self._own_fault():
            if self.running:
                self._end("stopped")

    def tick(self) -> None:
        """Called about once a second, also while there is no step."""
        if not self.running:
            return
        with self._own_fault():
            if self._now() >= self._limit_s:
                self._end("duration")
            else:
                self._send()

    # --- what the loop tells ------------------------------------------------------------------

    def arrived(self, request: Request) -> None:
        """A request was queued."""
        with self._own_fault():
            self._arrive(request.id, request.prompt_length)

    def step(self, outcome: StepOutcome, requests: Sequence[Request]) -> None:
        """After a step was committed. requests: those that decoded in it."""
        with self._own_fault():
            lengths = {request.id: len(request.tokens) for request in requests}
            rows = [row(one, lengths[one.request] - one.committed) for one in outcome.per_request]
            for one in rows:
                if one.request not in self._known:
                    self._arrive(one.request, one.context - 1)
            self._add(step_line(self._now(), outcome, rows))

    def finished(self, request: Request) -> None:
        """A request ended, however it did."""
        with self._own_fault():
            if request.id in self._known:
                self._known.remove(request.id)
                self._add(DoneLine(self._now(), Done(request.id, request.produced)))

    # --- parts --------------------------------------------------------------------------------

    def _arrive(self, request: int, prompt: int) -> None:
        self._known.add(request)
        self._add(ArrivalLine(self._now(), Arrived(request, prompt)))

    def _now(self) -> float:
        return round(self._clock() - self._began, 4)

    def _add(self, line: msgspec.Struct) -> None:
        """Nothing once the recording has ended."""
        if not self.running:
            return
        data = self._encode(line) + b"\n"
        if len(data) > self._room:
            self._end("size")
            return
        self._room -= len(data)
        self._lines.append(data)
        self._waiting += len(data)
        if self._waiting >= PART_BYTES:
            self._send()

    def _send(self) -> None:
        if self._lines:
            lines, self._lines, self._waiting = b"".join(self._lines), [], 0
            self._emit(Recorded(self._name, lines))

    def _end(self, why: RecordingEnd) -> None:
        lines, self._lines, self._waiting = b"".join(self._lines), [], 0
        self._emit(Recorded(self._name, lines, why))
        self.running = False

    @contextlib.contextmanager
    def _own_fault(self) -> Generator[None]:
        try:
            yield
        except Exception:
            log.exception("the recording %s failed", self._name)
            if self.running:
                self.running = False
                self._lines, self._waiting = [], 0
                with contextlib.suppress(Exception):
                    self._emit(Recorded(self._name, b"", "failed"))


def _nobody(recorded: Recorded) -> None:
    """Before the first recording."""
