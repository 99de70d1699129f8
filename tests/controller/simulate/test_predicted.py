"""Calibration: predictions against what came, as the same kind of mean."""

from __future__ import annotations

from typing import Any

import pytest

from controller.simulate.load import Phase
from controller.simulate.policy import Choice
from controller.simulate.predicted import EVERY_STEPS, WARM_STEPS, Predictions
from tests.controller.simulate.small import run

STEPS = WARM_STEPS + 4 * EVERY_STEPS


class Reports:
    """A controller that predicts so many tokens and ms of every step."""

    def __init__(self, tokens: float, ms: float) -> None:
        self.recent = {"tokens": tokens, "ms": ms}

    def report(self) -> dict[str, object]:
        return {"recent": self.recent}


def predictions(controller: Any, steps: int = STEPS) -> Predictions:
    found = Predictions(controller)
    for step in range(steps):
        found.add(8 if step % 2 else 12, 5.0)
    return found


def test_errors_are_relative_to_what_came() -> None:
    assert predictions(Reports(11.0, 4.5)).errors() == {
        "tokens": pytest.approx(0.1, abs=2e-3),
        "ms": pytest.approx(-0.1, abs=1e-4),
    }


def test_a_short_run_and_a_controller_that_predicts_nothing_have_none() -> None:
    assert predictions(Reports(10.0, 5.0), WARM_STEPS).errors() is None

    class Silent:
        asked = 0

        def report(self) -> dict[str, object]:
            self.asked += 1
            return {"policy": {}}

    silent = Silent()
    assert predictions(silent).errors() is None
    assert silent.asked == 1


def test_the_controller_that_serves_is_calibrated_and_others_do_not_say() -> None:
    phases = (Phase(4, "mixed", 1400),)
    found = run(phases).calibration
    assert found is not None
    assert abs(found["ms"]) < 0.02
    assert abs(found["tokens"]) < 0.08
    assert run((Phase(1, "mixed", 30),), choice=Choice("ucb")).calibration is None
