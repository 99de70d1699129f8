"""Tables of D by batch size as vLLM and TensorRT-LLM read them, and the latter's one-way switch."""

from __future__ import annotations

import pytest

from controller.contract import Setting
from controller.policies.gate import Gate
from controller.policies.tensorrt_schedule import TensorrtSchedule
from tests.controller.policies.stage import Stage, everything, nothing, people, policy


@pytest.mark.parametrize(
    ("size", "length"),
    [(1, 3), (16, 3), (17, 3), (31, 3), (32, 2), (128, 2), (129, 2), (255, 2), (256, 0), (3000, 0)],
)
def test_vllm_ranges_carry_their_d_over_gaps_and_past_the_end(size: int, length: int) -> None:
    stage = Stage(policy("batch_table", table="1-16:3,32-128:2,256-2048:0"))
    plan = stage.plan(people(size), room=10_000)
    assert {one.length for one in plan.allotments} == {length}


@pytest.mark.parametrize(
    ("size", "length"), [(1, 4), (4, 4), (5, 2), (8, 2), (9, 1), (32, 1), (33, 0), (500, 0)]
)
def test_tensorrt_schedule_holds_up_to_each_bound_and_is_none_above(size: int, length: int) -> None:
    stage = Stage(policy("tensorrt_schedule", schedule="4:4,8:2,32:1"))
    plan = stage.step(size)
    assert {one.length for one in plan.allotments} == {length}


def test_a_d_above_the_operators_limit_is_cut() -> None:
    setting = Setting(max_draft_length=3)
    stage = Stage(policy("batch_table", setting=setting, table="1-8:7"))
    assert stage.step().allotments[0].length == 3


# --- the switch -----------------------------------------------------------------------------------


def test_the_switch_waits_for_its_window() -> None:
    gate = Gate(window=3, threshold=0.5)
    assert [gate.record(rate) for rate in (0.8, 0.8)] == [False, False]
    assert gate.mean is None
    assert not gate.record(0.8)
    assert gate.mean == pytest.approx(0.8)
    assert not gate.closed


def test_the_switch_turns_drafting_off_below_its_threshold_and_stays_off() -> None:
    gate = Gate(window=3, threshold=0.3)
    assert [gate.record(rate) for rate in (0.1, 0.2, 0.3)] == [False, False, True]
    assert gate.mean == pytest.approx(0.2)
    assert not any(gate.record(1.0) or gate.tick() for _ in range(1000))
    assert gate.closed


def test_the_switch_looks_at_the_last_samples_only() -> None:
    gate = Gate(window=3, threshold=0.7)
    assert not any(gate.record(0.9) for _ in range(3))
    assert gate.record(0.2)
    assert gate.mean == pytest.approx(0.667, abs=1e-3)


def test_off_for_good_survives_good_drafts_and_the_operator() -> None:
    subject = policy("tensorrt_schedule", acceptance_window=3, acceptance_threshold=0.5)
    stage = Stage(subject)
    assert stage.lengths(3, accept=everything) == [4, 4, 4]
    assert stage.lengths(2, accept=nothing) == [4, 4]
    assert stage.lengths(200, accept=everything) == [0] * 200
    subject.set_enabled("ngram", False)
    subject.set_enabled("ngram", True)
    assert stage.lengths(50, accept=everything) == [0] * 50
    assert isinstance(subject, TensorrtSchedule)
    assert subject.describe() == {"off_for_good": True, "acceptance_rate": pytest.approx(0.3333)}
    last = stage.decisions[-1]
    closed = next(one for one in stage.decisions if one.reason == "GATE_CLOSED")
    assert closed.guard == "GATE_CLOSED"
    assert closed.drafter == "none"
    assert "off for good" in closed.sentence
    assert last.drafter == "none"


def test_without_a_window_nothing_turns_it_off() -> None:
    assert Stage(policy("tensorrt_schedule")).lengths(500) == [4] * 500
