"""The gate with a pause: closes on poor acceptance, opens by itself."""

from __future__ import annotations

from tests.controller.policies.stage import Stage, at_most, everything, nothing, policy


def test_it_closes_after_a_window_of_poor_drafts_and_tries_again_after_the_pause() -> None:
    stage = Stage(policy("acceptance_gate", window=8, threshold=0.3, pause_steps=20))
    assert stage.lengths(8, accept=nothing) == [4] * 8
    assert stage.lengths(19, accept=nothing) == [0] * 19
    assert stage.lengths(8, accept=nothing) == [4] * 8
    assert stage.lengths(1) == [0]


def test_it_stays_open_at_the_threshold() -> None:
    stage = Stage(policy("acceptance_gate", draft_length=4, threshold=0.25, window=8))
    assert stage.lengths(100, accept=at_most(1)) == [4] * 100


def test_good_drafts_after_the_pause_keep_it_open() -> None:
    stage = Stage(policy("acceptance_gate", window=8, pause_steps=20))
    stage.lengths(8, accept=nothing)
    stage.lengths(19)
    assert stage.lengths(100, accept=everything) == [4] * 100


def test_its_decisions_are_a_guard_that_fired_and_drafting_again() -> None:
    stage = Stage(policy("acceptance_gate", window=8, pause_steps=100))
    stage.lengths(8, accept=nothing)
    stage.lengths(150, accept=everything)
    opened = stage.opened
    assert [(one.reason, one.guard) for one in opened] == [
        ("START", None),
        ("GATE_CLOSED", "GATE_CLOSED"),
        ("GATE_OPEN", None),
    ]
    assert "below 0.3" in opened[1].sentence
    assert opened[1].previous_drafter == "ngram"
    assert opened[1].drafter == "none"
