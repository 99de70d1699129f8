"""Sampled steps as the console tells them."""

from __future__ import annotations

from typing import Any

import pytest

from ui import steps

RECORD: dict[str, Any] = {
    "time": 1795969880.3,
    "step": 512,
    "requests": 3,
    "context": 210.5,
    "prefill_rows": 0,
    "drafts": {"mtp+ngram": {"requests": 2, "tokens": 9}, "ngram": {"requests": 1, "tokens": 4}},
    "predicted_tokens": 7.25,
    "predicted_ms": 20.0,
    "realised_tokens": 6,
    "realised_ms": 21.0,
    "price": 0.06,
    "probe": False,
    "guard": None,
}


def test_a_sampled_step_is_a_row_of_what_was_predicted_and_measured() -> None:
    (row,) = steps.record_rows([RECORD])
    assert row["Drafts"] == "mtp+ngram: 9 for 2, ngram: 4 for 1"
    assert (row["Tokens, predicted"], row["Tokens"]) == (7.25, 6)
    assert (row["ms, predicted"], row["ms"]) == (20.0, 21.0)
    assert row["Notes"] == ""
    assert steps.drafts({}) == "–"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"probe": True}, "probe"),
        ({"guard": "HARM_GUARD"}, "HARM_GUARD"),
        ({"probe": True, "guard": "REQUEST_GUARD"}, "probe, REQUEST_GUARD"),
    ],
)
def test_notes_name_what_was_special(changes: dict[str, Any], said: str) -> None:
    assert steps.notes({**RECORD, **changes}) == said


def test_the_errors_are_said_with_how_many_steps_they_are_of() -> None:
    found = {
        "records": 1500,
        "records_without_prefill": 1400,
        "tokens": {"error": 0.25, "bias": -0.011},
        "ms": {"error": 0.03, "bias": 0.002},
    }
    assert steps.calibration_sentence(found) == (
        "On average a step differs from its prediction in tokens by 25.0 % (in sum -1.1 %) and in "
        "ms by 3.0 % (in sum +0.2 %); 1,500 sampled steps, 1,400 of them without prefill."
    )
    assert "of them" not in steps.calibration_sentence({**found, "records_without_prefill": 1500})
    assert steps.calibration_sentence({**found, "tokens": None, "ms": None}) == ""
