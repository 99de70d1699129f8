"""Cases that went wrong in other engines, run against the whole engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from controller import reasons
from controller.contract import NONE, CostPoint, Setting, StepOutcome, Wish
from controller.controller import AdaptiveController
from controller.cost import CostModel
from engine.draw import Draw
from engine.request import Request
from engine.wire import Finished
from tests.engine.scripted import Harness, ScriptedDrafter

VOCABULARY = 16


def counting(last: int, position: int) -> Sequence[float]:
    """A greedy target that counts up."""
    return [8.0 if token == (last + 1) % VOCABULARY else 0.0 for token in range(VOCABULARY)]


def right(tokens: list[int], length: int) -> list[int]:
    """The drafter that is always right about it."""
    return [(tokens[-1] + 1 + place) % VOCABULARY for place in range(length)]


class Observed(AdaptiveController):
    """The real controller; keeps what it is told."""

    def __init__(self, setting: Setting) -> None:
        cost = CostModel([CostPoint(1, rows, 64, 10.0 + 0.1 * rows) for rows in (1, 4, 16)])
        super().__init__(["ngram"], cost, setting)
        self.outcomes: list[StepOutcome] = []

    def observe(self, outcome: StepOutcome) -> None:
        self.outcomes.append(outcome)
        super().observe(outcome)


def engine_with(setting: Setting, **sizes: Any) -> tuple[Harness, Observed]:
    harness = Harness(VOCABULARY, counting, [ScriptedDrafter(right)], **sizes)
    controller = Observed(setting)
    harness.engine.controller = harness.engine.drafting.controller = controller
    return harness, controller


def text(harness: Harness, request: Request) -> list[int]:
    return [piece.token for piece in harness.pieces(request)]


def finished(harness: Harness, request: Request) -> Finished:
    end = harness.end(request)
    assert isinstance(end, Finished)
    return end


def test_prompts_in_prefill_do_not_count_for_the_table_of_d_by_batch_size() -> None:
    """Case 1: {1-4: D = 2, more: 0}; 3 requests decode while 6 long prompts prefill."""
    setting = Setting("pinned", "ngram", schedule=((4, 2),))
    harness, controller = engine_with(setting, chunk_rows=16)
    for start in range(3):
        harness.add([start], 400)
    harness.engine.step()
    for _ in range(6):
        harness.add([1] * 160, 4)
    harness.drain()
    beside_prefill = [one for one in controller.outcomes if one.prefill_rows and one.requests]
    assert len(beside_prefill) > 40
    for outcome in controller.outcomes:
        drafted = {one.drafted for one in outcome.per_request if one.drafted}
        assert drafted <= {1, 2}
        assert bool(drafted) <= (outcome.requests <= 4)
    assert all(
        one.drafted == 2
        for outcome in beside_prefill
        for one in outcome.per_request[:3]
        if outcome.requests <= 4
    )
    switches = [
        decision
        for decision in controller.take_decisions()
        if decision.reason in (reasons.BATCH_TABLE, reasons.OPERATOR)
    ]
    assert len(switches) <= 1


def test_nothing_is_drafted_above_the_limit_on_drafting_requests() -> None:
    """Case 2: no speculation above 2 requests, 4 concurrent."""
    harness, controller = engine_with(Setting("pinned", "ngram", 4, max_drafting_requests=2))
    requests = [harness.add([start], 20 + 20 * start) for start in range(4)]
    harness.drain()
    crowded = [one for one in controller.outcomes if one.requests >= 3]
    quiet = [one for one in controller.outcomes if one.requests <= 2]
    assert crowded
    assert quiet
    assert sum(one.drafted for outcome in crowded for one in outcome.per_request) == 0
    assert sum(one.drafted for outcome in quiet for one in outcome.per_request) > 0
    for start, request in enumerate(requests):
        assert text(harness, request) == [
            (start + 1 + place) % VOCABULARY for place in range(20 + 20 * start)
        ]


def test_one_request_without_speculation_beside_one_with_it() -> None:
    """Case 3: the one reports 0 drafted from every drafter, the other still speculates."""
    harness, _ = engine_with(Setting("pinned", "ngram", 4))
    plain, speculating = harness.add([2], 40), harness.add([5], 40)
    plain.wish = Wish(enabled=False)
    harness.drain()
    counts = finished(harness, plain).speculation
    assert (counts.drafted, counts.accepted, set(counts.drafters)) == (0, 0, {NONE})
    assert finished(harness, speculating).speculation.drafted > 20
    assert text(harness, plain) == [(3 + place) % VOCABULARY for place in range(40)]
    assert text(harness, speculating) == [(6 + place) % VOCABULARY for place in range(40)]


def test_acceptance_counts_are_those_of_the_steps() -> None:
    """Case 6: (drafted, accepted) = (3,0) (3,3) (3,2) (3,3) (3,1)."""
    hits = iter((0, 3, 2, 3, 1))

    def script(tokens: list[int], length: int) -> list[int]:
        good = next(hits)
        return [tokens[-1] + 1 + place if place < good else 999 for place in range(length)]

    harness = Harness(
        1000,
        lambda last, position: [8.0 if token == last + 1 else 0.0 for token in range(1000)],
        [ScriptedDrafter(script)],
        lambda step, request, names: ("ngram", 3),
    )
    request = harness.add([100], 100, end_ids=frozenset({115}))
    harness.drain()
    counts = finished(harness, request).speculation
    assert (counts.steps, counts.drafted, counts.accepted) == (5, 15, 9)
    assert counts.histogram[:4] == (1, 1, 1, 2)
    assert (counts.accepted + counts.steps) / counts.steps == pytest.approx(2.8)
    assert finished(harness, request).completion_tokens == 1 + counts.steps + counts.accepted


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_counts_of_any_run_with_a_varying_d_add_up(temperature: float) -> None:
    """Case 6: 0 <= accepted <= drafted, and the completion tokens are those of the steps."""

    def half_right(tokens: list[int], length: int) -> list[int]:
        drafted = right(tokens, length)
        return [t if (t + len(tokens)) % 3 else (t + 1) % VOCABULARY for t in drafted]

    harness = Harness(
        VOCABULARY,
        counting,
        [ScriptedDrafter(half_right)],
        lambda step, request, names: ("ngram", (step * 7 + request) % 6),
    )
    requests = [harness.add([start], 50 + start, Draw(temperature)) for start in range(4)]
    harness.drain()
    for request in requests:
        mine = [
            one
            for outcome in harness.controller.outcomes
            for one in outcome.per_request
            if one.request == request.id
        ]
        end = finished(harness, request)
        assert all(0 <= one.accepted <= one.drafted for one in mine)
        assert end.speculation.drafted == sum(one.drafted for one in mine)
        assert end.speculation.accepted == sum(one.accepted for one in mine)
        assert end.completion_tokens == 1 + sum(one.committed for one in mine)
        assert sum(end.speculation.histogram) == end.speculation.steps == len(mine)
