"""Static choices and the clairvoyant without a controller, held equal to the full loop."""

from __future__ import annotations

from dataclasses import replace

import pytest

from controller.contract import NONE, Setting
from controller.simulate.direct import Result, Static, grid, run_clairvoyant, run_statics
from controller.simulate.load import Phase
from controller.simulate.machines import HARDWARE, MODELS
from controller.simulate.policy import Choice
from controller.simulate.step_cost import roofline
from tests.controller.simulate.small import library, machine, run

PHASES = (
    Phase(4, "mixed", 150),
    Phase(9, "mixed", 60),
    Phase(2, "mixed", 100),
    Phase(3, "mixed", 80, fresh=True),
)


def static(choice: Static) -> Result:
    return run_statics(machine(), library(), PHASES, [choice], seed=5)[0]


@pytest.mark.parametrize(("drafter", "length"), [("eagle", 3), ("ngram", 7), ("eagle", 20)])
def test_a_static_choice_is_the_full_loop_with_a_pinned_controller(
    drafter: str, length: int
) -> None:
    """Token by token and to the microsecond: without noise nothing is left to chance."""
    full = run(PHASES, Setting("pinned", drafter, length, 20), seed=5)
    direct = static(Static(drafter, length))
    assert (direct.tokens, direct.steps, direct.drafted) == (full.tokens, full.steps, full.drafted)
    assert direct.request_steps == full.request_steps
    assert direct.ms == pytest.approx(full.ms)
    assert [tokens for tokens, _ in direct.phases] == [tokens for tokens, _ in full.phases]


def test_it_is_the_full_loop_up_to_the_noise_of_steps() -> None:
    full = run(PHASES, Setting("pinned", "eagle", 3, 20), on=machine(noise=0.05), seed=5)
    assert full.ms != static(Static("eagle", 3)).ms
    assert full.ms == pytest.approx(static(Static("eagle", 3)).ms, rel=0.02)


def test_a_machine_that_gets_slower_does_so_for_the_bounds_too() -> None:
    """Else a policy would be held against what nobody could have done."""
    usual = static(Static("eagle", 3)).ms
    slowdowns = ((0.3e-3 * usual, 2.0), (0.6e-3 * usual, 1.5))
    slow = replace(machine(), slowdowns=slowdowns)
    for choice in (Static("eagle", 3), Static("ngram", 7)):
        setting = Setting("pinned", choice.drafter, choice.length, 20)
        full = run(PHASES, setting, on=slow, seed=5)
        (direct,) = run_statics(slow, library(), PHASES, [choice], seed=5)
        assert direct.ms == pytest.approx(full.ms)
        assert direct.ms > 1.2 * static(choice).ms
    best = run_clairvoyant(slow, library(), PHASES, seed=5)
    assert best.ms > 1.2 * run_clairvoyant(machine(), library(), PHASES, seed=5).ms
    every = run_statics(slow, library(), PHASES, grid(slow), seed=5)
    assert max(result.throughput for result in every) < best.throughput


def test_plain_decoding_is_the_off_policy() -> None:
    full = run(PHASES, choice=Choice("off"), seed=5)
    assert static(Static(NONE, 0)).ms == pytest.approx(full.ms)


def test_the_grid_has_every_drafter_with_every_length() -> None:
    names = [choice.name for choice in grid(machine())]
    assert len(set(names)) == len(names) == 41
    assert names[0] == "none"
    assert {"ngram:1", "ngram:20", "eagle:1", "eagle:20"} <= set(names)


def test_side_by_side_is_one_by_one() -> None:
    choices = grid(machine())[::7]
    together = run_statics(machine(), library(), PHASES, choices, seed=5)
    for choice, result in zip(choices, together, strict=True):
        assert result.ms == pytest.approx(static(choice).ms)
        assert result.tokens == static(choice).tokens


@pytest.mark.parametrize("chains", [False, True])
@pytest.mark.parametrize("cost", ["fitted", "experts"])
def test_nobody_beats_the_clairvoyant(chains: bool, cost: str) -> None:
    on = machine(chains=chains)
    if cost == "experts":
        mixture = roofline(HARDWARE["H200"], MODELS["qwen3-30b-a3b"])
        on = machine(chains=chains, cost=mixture)
    best = run_clairvoyant(on, library(), PHASES, seed=5).throughput
    statics = run_statics(on, library(), PHASES, grid(on), seed=5)
    assert max(result.throughput for result in statics) < best
    assert run(PHASES, on=on, seed=5).throughput < best


def test_chains_let_the_clairvoyant_see_further() -> None:
    speeds = [
        run_clairvoyant(machine(chains=chains), library(), PHASES, seed=5).throughput
        for chains in (False, True)
    ]
    assert speeds[1] > speeds[0] * 1.01
