"""Steps until a policy is near the best again, added up over breaks of one kind."""

from __future__ import annotations

import pytest

from controller.policies import ADAPTIVE
from controller.simulate.cells import SETTING, library_of, machine, points_of
from controller.simulate.load import Phase
from controller.simulate.policy import Choice, build
from controller.simulate.recovery import BIN_STEPS, added_up, best_after, steps_to_recover
from controller.simulate.run import Clock, closed
from tests.controller.simulate.small import library, run

PHASES = tuple(Phase(2, corpus, 10, fresh=True) for corpus in "abab")
NAMES = {"a": "A"}


def test_bins_are_added_up_by_the_kind_of_break_and_the_first_phase_has_none() -> None:
    bins = [
        [(9, 9.0)],
        [(1, 1.0), (2, 2.0), (4, 1.0)],
        [(3, 1.0)],
        [(10, 3.0), (20, 4.0)],
    ]
    assert added_up(PHASES, bins, NAMES) == {
        "A to b": [(11, 4.0), (22, 6.0)],
        "b to A": [(3, 1.0)],
    }


def test_the_best_after_a_break_is_that_of_all_phases_of_its_kind() -> None:
    best = [(99, 1.0), (10, 5.0), (30, 2.0), (20, 10.0)]
    assert best_after(PHASES, best, NAMES) == {"A to b": 2.0, "b to A": 15.0}


@pytest.mark.parametrize(
    ("speeds", "steps"),
    [
        ([100] * 8, 0),
        ([99] * 8, 0),
        ([50, 100, 100, 100, 100, 100], BIN_STEPS),
        # A window counts as a whole: one good bin among bad ones is none.
        ([50, 100, 50, 50, 50, 100, 100, 100, 100], 5 * BIN_STEPS),
        ([50] * 8, None),
        ([50, 100], None),
        ([100, 100], 0),
        ([], None),
    ],
)
def test_recovered_is_within_two_percent_over_the_next_steps(
    speeds: list[int], steps: int | None
) -> None:
    assert steps_to_recover([(speed, 1.0) for speed in speeds], 100.0) == steps


def test_a_fresh_phase_begins_with_new_requests_only() -> None:
    """With requests that stay, the second phase of one request would finish its first text."""
    kept, fresh = (
        run((Phase(1, "mixed", 5), Phase(1, "mixed", 40, fresh=fresh)), texts=library())
        for fresh in (False, True)
    )
    assert [sum(tokens for tokens, _ in bins) for bins in fresh.bins] == [
        tokens for tokens, _ in fresh.phases
    ]
    assert sum(ms for bins in fresh.bins for _, ms in bins) == pytest.approx(fresh.ms)
    assert kept.bins[0] == fresh.bins[0]
    assert kept.bins[1] != fresh.bins[1]


def test_a_model_comes_back_with_new_texts_after_long_useless_ones() -> None:
    """No shadow shows what a model would draft, and its probes have backed off by then."""
    simulated = machine(16)
    texts = library_of(("mixed", "useless"))
    kinds = ("mixed", "useless", "mixed")
    phases = [
        Phase(16, kind, count, fresh=True)
        for kind, count in zip(kinds, (500, 300, 500), strict=True)
    ]
    clock = Clock()
    controller = build(Choice(ADAPTIVE), simulated, points_of(simulated, 0), clock, SETTING)
    found = closed(simulated, texts, phases, controller, clock, 0)
    before, _, after = (tokens / ms for tokens, ms in found.phases)
    assert after > 0.95 * before
