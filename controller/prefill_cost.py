"""What prefill rows add to a step, learned from the steps that carry some."""

from __future__ import annotations

KEEP = 1.0 - 1.0 / 64
DOUBT = 4.0
"""A step that takes more than so many times as long as thought counts as that, so that one stall
does not move the price far."""


class PrefillCost:
    """Milliseconds per prefill row: over about 64 steps with prefills, the time beyond that of
    their decoding rows over their prefill rows. None before the first such step."""

    def __init__(self) -> None:
        self._ms = self._rows = 0.0

    @property
    def per_row(self) -> float | None:
        return self._ms / self._rows if self._rows else None

    def learn(self, rows: int, beyond_ms: float) -> None:
        """A step with so many prefill rows took so much longer than its decoding rows alone."""
        ms = max(beyond_ms, 0.0)
        if self._ms:
            ms = min(ms, DOUBT * self._ms / self._rows * rows)
        self._ms = KEEP * self._ms + ms
        self._rows = KEEP * self._rows + rows

    def scale(self, factor: float) -> None:
        """The machine has become slower by `factor`: prefills are too rare to wait for."""
        self._ms *= factor
