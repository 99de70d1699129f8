"""A cost model that is corrupted on purpose while serving: it shows, it is alarmed, it heals."""

from __future__ import annotations

import pytest

from controller.contract import Setting
from controller.cost_table import CostTable
from tests.controller.simulated_engine import BF16, World, points, simulate


def corrupt(world: World) -> None:
    """From here on steps are thought to take 60 % of what they do, and drafted rows a third of
    that."""
    plain = BF16[1]
    wrong = {rows: 0.6 * (plain + (ms - plain) / 3) for rows, ms in BF16.items()}
    cost = world.controller.cost
    cost._table = CostTable(points(wrong))
    cost._curves.clear()


def goodput(world: World, steps: int) -> float:
    """Tokens per ms of the last steps."""
    last = world.outcomes[-steps:]
    tokens = sum(one.committed for step in last for one in step.per_request)
    return tokens / sum(step.verify_ms + step.draft_ms + step.overhead_ms for step in last)


def test_a_cost_model_corrupted_while_serving_is_noticed_and_overcome() -> None:
    world = simulate(rates=lambda step: (0.55, 0.6))
    world.run(600)
    before, cost = goodput(world, 300), world.controller.cost
    assert not cost.drifting

    corrupt(world)
    world.controller.configure(Setting(max_draft_length=15))
    world.controller.take_decisions()
    alarm, intervals = None, {}
    for step in range(200):
        world.one()
        if alarm is None and cost.drifting:
            alarm = step
            intervals = dict(world.controller._probing._interval)
    (*_, decision) = [d for d in world.controller.take_decisions() if d.reason == "OPERATOR"]
    assert decision.realised.goodput < 0.9 * decision.predicted_goodput
    assert alarm is not None
    assert alarm < 60
    assert all(steps <= 8 for steps in intervals.values())

    world.run(800)
    assert not cost.drifting
    assert goodput(world, 300) > 0.95 * before
    assert cost.verify_ms(1, 9, 128) == pytest.approx(12.54, rel=0.1)


def test_without_corruption_nothing_is_alarmed() -> None:
    world = simulate(rates=lambda step: (0.55, 0.6))
    for _ in range(800):
        world.one()
        assert not world.controller.cost.drifting
