"""The errors of sampled steps, taken together."""

from __future__ import annotations

from typing import Any

import pytest

from app.admin.calibration import calibration


def record(tokens: tuple[float | None, int], ms: tuple[float, float], prefill: int = 0) -> Any:
    return {
        "predicted_tokens": tokens[0],
        "realised_tokens": tokens[1],
        "predicted_ms": ms[0],
        "realised_ms": ms[1],
        "prefill_rows": prefill,
    }


def test_errors_do_not_cancel_out_and_biases_do() -> None:
    found = calibration([record((2.0, 3), (10.0, 12.0)), record((2.0, 1), (10.0, 8.0))])
    assert found["tokens"] == {"error": pytest.approx(0.5), "bias": pytest.approx(0.0)}
    assert found["ms"] == {"error": pytest.approx(0.2), "bias": pytest.approx(0.0)}


def test_a_bias_weighs_steps_by_what_they_were_predicted_to_give() -> None:
    found = calibration([record((1.0, 2), (10.0, 10.0)), record((9.0, 9), (10.0, 10.0))])
    assert found["tokens"] == {"error": pytest.approx(0.5), "bias": pytest.approx(0.1)}


def test_the_time_of_steps_with_prefill_says_nothing_of_predictions() -> None:
    found = calibration([record((2.0, 2), (10.0, 40.0), 64), record((2.0, 2), (10.0, 11.0))])
    assert (found["records"], found["records_without_prefill"]) == (2, 1)
    assert found["ms"] == {"error": pytest.approx(0.1), "bias": pytest.approx(0.1)}


def test_without_predictions_there_are_no_errors() -> None:
    assert calibration([])["tokens"] is None
    found = calibration([record((None, 2), (0.0, 4.0))])
    assert (found["records"], found["tokens"], found["ms"]) == (1, None, None)
