"""Probes back off, start again on a change, and never exceed their share of time."""

from __future__ import annotations

import numpy as np
import pytest

from controller.contract import NONE, Setting
from controller.guards import HarmGuard, RequestGuard
from controller.planner import allocate
from controller.probing import BUDGET, LONGEST, RENEWED_AFTER, SHORTEST, Probing
from tests.controller.simulated_engine import choices, offer, simulate


def gaps(probing: Probing, steps: int) -> list[int]:
    found, last = [], 0
    for i in range(1, steps + 1):
        probing.elapse(1000.0)
        if probing.due("ngram") and probing.affordable(0.01):
            probing.fire("ngram", 0.01)
            found.append(i - last)
            last = i
    return found


def test_intervals_double_from_4_to_512_and_stay_there() -> None:
    assert gaps(Probing(), 3000)[:10] == [4, 8, 16, 32, 64, 128, 256, 512, 512, 512]
    assert (SHORTEST, LONGEST) == (4, 512)


def test_a_change_brings_the_interval_back_to_4() -> None:
    probing = Probing()
    gaps(probing, 1000)
    probing.reset()
    assert gaps(probing, 20)[:2] == [4, 8]


def test_nothing_is_disabled_for_good() -> None:
    assert len(gaps(Probing(), 10_000)) > 15


def test_an_idle_drafter_is_tried_again_once_half_of_the_requests_are_new() -> None:
    probing = Probing()
    gaps(probing, 3000)
    assert not probing.renewed("ngram")
    probing.batch([1, 2, 3, 4])
    probing.fire("ngram", 0.01)
    for _ in range(RENEWED_AFTER):
        assert not probing.due("ngram")
    probing.batch([3, 5, 4, 2])
    assert not probing.renewed("ngram")
    probing.batch([6, 5, 4, 3])
    assert probing.renewed("ngram")
    assert not probing.renewed("suffix")
    probing.put_off("ngram")
    assert not probing.renewed("ngram")
    probing.batch([9, 8, 7, 6])
    assert probing.renewed("ngram")
    probing.fire("ngram", 0.01)
    probing.batch([99, 98, 97, 96])
    assert not probing.renewed("ngram")


def test_the_budget_holds_however_often_a_probe_is_due() -> None:
    probing, spent, elapsed = Probing(), 0.0, 0.0
    for _ in range(20_000):
        probing.elapse(10.0)
        elapsed += 10.0
        probing.reset()
        due = [probing.due("ngram") for _ in range(SHORTEST)]
        if due[-1] and probing.affordable(3.0):
            probing.fire("ngram", 3.0)
            spent += 3.0
    assert 0.5 * BUDGET < spent / elapsed <= BUDGET


def test_a_drafter_left_out_by_the_plan_is_probed_on_one_request() -> None:
    probing = Probing()
    probing.elapse(1e6)
    found = choices([0.05, 0.01], [0.1, 0.02, 0.01])
    costs = np.array([10.0 + 4.0 * m for m in range(6)])
    best = allocate(costs, 2.0, found)
    assert best.lengths.tolist() == [0, 0]
    probes = [probing.select(found, costs, best) for _ in range(SHORTEST)]
    assert probes[:-1] == [None] * (SHORTEST - 1)
    probe = probes[-1]
    assert probe is not None
    assert (probe.lengths.tolist(), probe.idle) == ([0, 3], "ngram")


def test_plain_decoding_is_measured_again_while_everything_drafts() -> None:
    probing = Probing()
    probing.elapse(1e6)
    found = choices([0.9, 0.8])
    costs = np.array([10.0, 10.1, 10.2])
    best = allocate(costs, 1.0, found)
    assert best.lengths.tolist() == [2]
    probes = [probing.select(found, costs, best) for _ in range(SHORTEST)]
    assert probes[-1] is not None
    assert probes[-1].lengths.tolist() == [0]
    assert probing.report()["interval_steps"] == {NONE: 2 * SHORTEST}


@pytest.mark.parametrize("first", [0.03, 0.3, 0.7])
def test_probes_of_a_live_controller_stay_within_the_budget(first: float) -> None:
    world = simulate(rates=lambda step: (first, 0.7)).run(3000)
    report = world.controller.report()["probing"]
    assert isinstance(report, dict)
    assert report["time_share"] <= BUDGET


def test_pinned_and_off_are_never_probed() -> None:
    world = simulate(rates=lambda step: (0.05,))
    for setting in (Setting("pinned", "ngram", 2), Setting("off")):
        world.controller.configure(setting)
        world.plans.clear()
        world.run(600)
        assert not any(p.probes for p in world.plans)
        assert len({a.length for p in world.plans for a in p.allotments}) == 1
    assert offer().drafter == "ngram"


def lose(guard: HarmGuard, steps: int, share: float, *, drafting: bool = True) -> bool:
    return any(guard.record(10.0, 10.0 * (1.0 + share), drafting) for _ in range(steps))


def test_the_guard_stops_probes_at_one_percent_and_drafts_at_two() -> None:
    guard = HarmGuard()
    assert not lose(guard, 600, 0.015)
    assert not guard.probes_allowed
    assert not guard.active
    assert lose(guard, 600, 0.05)
    assert guard.active


def test_the_guard_lets_go_after_its_dwell_and_doubles_it_when_it_fires_again() -> None:
    guard = HarmGuard()
    lose(guard, 300, 0.2)
    first = guard.dwell_left
    assert [guard.tick() for _ in range(first)].count(True) == 1
    assert not guard.active
    lose(guard, 300, 0.2)
    assert guard.dwell_left == 2 * first


def test_the_guard_ignores_plain_steps_and_bad_luck_within_the_noise() -> None:
    guard = HarmGuard()
    assert not lose(guard, 1000, 0.5, drafting=False)
    losses = [0.3, 0.3, -0.55]
    assert not any(guard.record(10.0, 10.0 * (1 + losses[i % 3]), True) for i in range(2000))


def test_a_request_that_keeps_losing_is_stood_down_and_tried_again() -> None:
    guard = RequestGuard()
    for _ in range(20):
        guard.record(1, drafted=8, accepted=0, price=0.2)
        guard.record(2, drafted=8, accepted=4, price=0.2)
    assert guard.blocks(1)
    assert not guard.blocks(2)
    blocked = sum(guard.blocks(1) for _ in range(2000))
    assert 0 < blocked < 2000
    guard.forget(1)
    assert not guard.blocks(1)


def test_misses_of_long_drafts_that_else_hit_in_full_stand_nobody_down() -> None:
    guard = RequestGuard()
    for _ in range(50):
        for accepted in (0, 0, 12):
            guard.record(1, drafted=12, accepted=accepted, price=0.25)
    assert not guard.blocks(1)


def test_shadows_that_pay_lift_a_stand_down_and_bad_ones_do_not() -> None:
    guard = RequestGuard()
    for request in (1, 2):
        for _ in range(5):
            guard.record(request, drafted=8, accepted=0, price=0.2)
    for _ in range(3):
        guard.shadow(1, accepted=6)
        guard.shadow(2, accepted=0)
    assert not guard.blocks(1)
    assert guard.blocks(2)
