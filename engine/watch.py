"""Whether an engine process hangs, judged by what it sends."""

from __future__ import annotations

from engine.wire import Heartbeat, Hello

START_SILENCE_S = 300.0
FIRST_STEP_FACTOR = 5.0


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
