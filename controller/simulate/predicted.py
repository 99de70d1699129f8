"""Calibration: what a controller predicted of its plans against what came of them.

The controller reports exponential means of the tokens and ms that its recent plans predicted. The
same means of what really came are kept here and compared now and then; over a run this says how far
predictions are off on the whole, and neither what a single step was nor how they scatter."""

from __future__ import annotations

from collections.abc import Mapping

from controller.averages import MEMORY_STEPS
from controller.contract import Controller

WARM_STEPS = 256
"""Steps before these count: the first rest on priors."""
EVERY_STEPS = 128


class Predictions:
    """Of one run. steps that looked for no drafts are left out: the controller predicts nothing of
    them."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self._steps = 0
        self._tokens = self._ms = 0.0
        self._predicted = [0.0, 0.0]
        self._real = [0.0, 0.0]
        self._tells = True

    def add(self, tokens: int, ms: float) -> None:
        """A step that looked for drafts."""
        self._steps += 1
        rate = max(1.0 / MEMORY_STEPS, 1.0 / self._steps)
        self._tokens += rate * (tokens - self._tokens)
        self._ms += rate * (ms - self._ms)
        if self._tells and self._steps > WARM_STEPS and self._steps % EVERY_STEPS == 0:
            self._compare()

    def _compare(self) -> None:
        recent = self._controller.report().get("recent")
        if not isinstance(recent, Mapping):
            self._tells = False
            return
        for i, (key, real) in enumerate((("tokens", self._tokens), ("ms", self._ms))):
            self._predicted[i] += float(recent[key])
            self._real[i] += real

    def errors(self) -> dict[str, float] | None:
        """Relative errors of tokens and ms, above 0 where more was predicted than came. None of a
        controller that predicts nothing, and of a short run."""
        if not all(self._real):
            return None
        tokens, ms = (p / r - 1.0 for p, r in zip(self._predicted, self._real, strict=True))
        return {"tokens": round(tokens, 4), "ms": round(ms, 4)}
