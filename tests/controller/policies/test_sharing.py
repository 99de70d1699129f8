"""What each arm of a comparison caused of a step: its rows, its drafts, looking for them."""

from __future__ import annotations

from typing import Any

import pytest

from controller.contract import Allotment, Plan, Proposal, RequestOutcome, StepOutcome
from controller.cost import CostModel
from controller.policies import PolicyInputs
from controller.policies.sharing import NOBODY, Asked, part_of
from controller.policies.split import in_arm_b
from controller.policies.switchable import PolicyChoice, Switchable
from tests.controller.simulated_engine import BF16, Clock, batch, offer, points, request

A = [number for number in range(40) if not in_arm_b(number, 0.5)][:3]
B = [number for number in range(40) if in_arm_b(number, 0.5)][:1]


def step(*proposals: Proposal, looking_ms: float = 0.0, **drafted: int) -> StepOutcome:
    """A step of requests `a0`, `a1`, ... `b0`, each with so many drafted tokens by mtp."""
    results = [
        RequestOutcome((A if name[0] == "a" else B)[int(name[1])], "mtp" if n else "none", n, 0, 1)
        for name, n in drafted.items()
    ]
    rows = sum(1 + n for n in drafted.values())
    draft_ms = looking_ms + sum(one.ms for one in proposals)
    size = len(results)
    return StepOutcome(1, size, rows, 0, 128 * size, 10.0, draft_ms, 0.4, tuple(results), proposals)


def parts(outcome: StepOutcome, asked: Asked) -> tuple[StepOutcome, StepOutcome]:
    own = [tuple([r for r in outcome.per_request if r.request in some]) for some in (A, B)]
    return part_of(outcome, own[0], 0, asked), part_of(outcome, own[1], 1, asked)


def mtp(request: int, length: int = 3) -> Allotment:
    return Allotment(request, "mtp", length)


def test_a_drafter_is_shared_by_the_requests_that_it_drafted_for() -> None:
    asked = NOBODY.after((True, True), ([mtp(one) for one in A], [mtp(one) for one in B]))
    outcome = step(Proposal("mtp", 4, 3, 8.0, 100), a0=3, a1=3, a2=3, b0=3)
    a, b = parts(outcome, asked)
    assert a.proposals == (Proposal("mtp", 3, 3, 6.0, 75),)
    assert b.proposals == (Proposal("mtp", 1, 3, 2.0, 25),)
    assert (a.draft_ms, b.draft_ms) == (6.0, 2.0)


def test_what_a_probe_caught_up_with_is_charged_to_its_arm() -> None:
    """The drafter drafted nothing yet for the request that it was probed for."""
    asked = NOBODY.after((True, True), ([mtp(A[0])], []))
    a, b = parts(step(Proposal("mtp", 0, 0, 5.0, 64), a0=0, a1=0, b0=0), asked)
    assert (a.draft_ms, b.draft_ms) == (5.0, 0.0)
    assert a.proposals == (Proposal("mtp", 0, 0, 5.0, 64),)
    assert b.proposals == ()


def test_drafts_that_a_bar_kept_out_whole_are_charged_as_well() -> None:
    asked = NOBODY.after((True, True), ([mtp(A[0])], [mtp(B[0])]))
    a, b = parts(step(Proposal("mtp", 2, 3, 5.0), a0=0, b0=3), asked)
    assert (a.draft_ms, b.draft_ms) == (2.5, 2.5)


def test_text_that_is_taken_in_is_charged_to_those_who_asked_last() -> None:
    asked = NOBODY.after((True, True), ([mtp(A[0])], []))
    later = asked.after((True, True), ([Allotment(A[0], "ngram", 2)], []))
    outcome = step(Proposal("mtp", 0, 0, 4.0, 64), a0=0, b0=0)
    assert [one.draft_ms for one in parts(outcome, later)] == [4.0, 0.0]
    assert [one.draft_ms for one in parts(outcome, later.without("mtp"))] == [2.0, 2.0]


def test_what_nobody_asked_for_is_shared_by_requests() -> None:
    a, b = parts(step(Proposal("mtp", 0, 0, 4.0, 64), a0=0, a1=0, a2=0, b0=0), NOBODY)
    assert (a.draft_ms, b.draft_ms) == (3.0, 1.0)


def test_an_arm_that_does_not_look_pays_nothing_for_looking() -> None:
    asked = NOBODY.after((True, False), ([], []))
    a, b = parts(step(looking_ms=0.8, a0=0, a1=0, a2=0, b0=0), asked)
    assert (a.draft_ms, b.draft_ms) == pytest.approx((0.6, 0.0))
    alone = step(looking_ms=0.8, b0=0)
    assert part_of(alone, alone.per_request, 1, asked).draft_ms == 0.0
    assert part_of(alone, alone.per_request, 0, asked).draft_ms == 0.8


def test_of_a_step_of_its_own_an_arm_has_all_whoever_asked_last() -> None:
    asked = NOBODY.after((True, True), ([mtp(A[0])], []))
    outcome = step(Proposal("mtp", 0, 0, 4.0, 64), b0=0)
    part = part_of(outcome, outcome.per_request, 1, asked)
    assert (part.draft_ms, part.overhead_ms, part.rows) == (4.0, 0.4, 1)


# --- in a comparison ------------------------------------------------------------------------------


def played(first: str, second: str, *, spent_ms: float, looking_ms: float) -> dict[str, Any]:
    """The figures of both arms after steps of one request each, whose drafts are never accepted."""
    inputs = PolicyInputs(("ngram",), CostModel(points(BF16, (1, 2))), clock=Clock())
    subject = Switchable(inputs, PolicyChoice(first, "", second, "", 0.5))
    views = [request(A[0]), request(B[0])]
    for number in range(1, 40):
        plan: Plan = subject.plan(
            batch(*views, step=number), [offer(one.id, length=4) for one in views]
        )
        results = [
            RequestOutcome(one.request, one.drafter, one.length, 0, 1) for one in plan.allotments
        ]
        users = sum(one.length > 0 for one in plan.allotments)
        made = (Proposal("ngram", users, 4, spent_ms),) if users else ()
        rows = sum(1 + one.length for one in plan.allotments)
        draft_ms = looking_ms + sum(one.ms for one in made)
        subject.observe(
            StepOutcome(number, 2, rows, 0, 256, 10.0, draft_ms, 0.0, tuple(results), made)
        )
    for view in views:
        subject.forget(view.id)
    report: Any = subject.report()
    return report["ab"]["arms"]


def test_the_costlier_drafts_of_one_arm_do_not_burden_the_other() -> None:
    found = played("fixed", "off", spent_ms=6.0, looking_ms=1.0)
    a, b = (found[label]["tokens_per_row_second"]["value"] for label in "AB")
    assert a == pytest.approx(1000.0 / (10.0 * 5 / 6 + 6.0 + 0.5), abs=0.01)
    assert b == pytest.approx(1000.0 / (10.0 / 6), abs=0.01)
    waited = [found[label]["tokens_per_request_second"]["value"] for label in "AB"]
    assert waited == pytest.approx([1000.0 / 17.0] * 2, abs=0.01)
