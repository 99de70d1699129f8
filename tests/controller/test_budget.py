"""The draft budget: never exceeded, given to the best positions, and told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller import reasons
from controller.contract import CostPoint, DrafterInfo, Features, Offer, Plan, Setting, Wish
from controller.controller import AdaptiveController
from controller.cost import CostModel
from tests.controller.simulated_engine import Clock, batch, offer, request, simulate

DRAFTERS = ("ngram", "suffix", "mtp")


def budget(tokens: int, setting: Setting | None = None) -> Setting:
    return replace(setting or Setting(), draft_budget=tokens)


def controller(setting: Setting, slope: float = 0.1) -> AdaptiveController:
    """Steps of 10 ms and `slope` ms for each drafted row, whatever the batch."""
    table = [CostPoint(n, n + m, 128, 10.0 + slope * m) for n in (1, 2, 4, 8) for m in (0, 64)]
    clock = Clock()
    return AdaptiveController(
        ["ngram", "suffix"], CostModel(table), setting, tails=("ngram", "suffix"), clock=clock
    )


def drafted(plan: Plan) -> int:
    return sum(one.length + one.tail_length for one in plan.allotments)


def test_the_budget_goes_to_the_most_likely_positions() -> None:
    views = [request(0), request(1)]
    offers = [offer(0, length=8, match=9), offer(1, length=8, match=1)]
    free = controller(Setting()).plan(batch(*views), offers)
    scarce = controller(budget(3)).plan(batch(*views), offers)
    assert [one.length for one in scarce.allotments] == [3, 0]
    assert drafted(free) > 3


def test_a_budget_that_suffices_changes_nothing() -> None:
    free, bounded = (simulate(size=4, match=lambda step: 0.7) for _ in range(2))
    bounded.controller.configure(budget(400))
    one, other = free.run(200), bounded.run(200)
    assert [plan.allotments for plan in one.plans] == [plan.allotments for plan in other.plans]


@pytest.mark.parametrize(
    ("setting", "wish"),
    [
        (Setting("pinned", "ngram", 6), None),
        (Setting("pinned", "ngram", schedule=((4, 6),)), None),
        (Setting(), Wish(drafter="ngram", draft_length=6)),
    ],
)
def test_pins_and_wishes_stay_within_it(setting: Setting, wish: Wish | None) -> None:
    views = [request(i, wish=wish) for i in range(3)]
    offers = [offer(i, length=8) for i in range(3)]
    assert drafted(controller(setting).plan(batch(*views), offers)) == 18
    found = controller(budget(8, setting)).plan(batch(*views), offers)
    assert [one.length for one in found.allotments] == [6, 2, 0]


@settings(max_examples=25, deadline=None)
@given(
    st.integers(1, 12),
    st.lists(
        st.lists(
            st.tuples(
                st.integers(0, 5),
                st.sampled_from(DRAFTERS),
                st.integers(1, 8),
                st.integers(0, 9),
                st.sampled_from([0, 0, 300]),
            ),
            max_size=8,
        ),
        min_size=1,
        max_size=6,
    ),
    st.sampled_from([None, 2, 20]),
)
def test_no_plan_exceeds_it_and_no_probe_does(
    tokens: int,
    steps: Sequence[Sequence[tuple[int, str, int, int, int]]],
    wished: int | None,
) -> None:
    subject = controller(budget(tokens))
    subject.add_drafter(DrafterInfo("mtp", model=True, rho=0.05))
    wish = None if wished is None else Wish(draft_length=wished)
    views = [request(i, wish=wish if i == 5 else None) for i in range(6)]
    for number, raw in enumerate(steps):
        offers = {
            (who, name): Offer(who, name, length, Features(match), rows if name == "mtp" else 0)
            for who, name, length, match, rows in raw
        }
        for step in range(6):  # so that probes come due
            plan = subject.plan(batch(*views, step=6 * number + step), list(offers.values()))
            assert drafted(plan) <= tokens
            subject._probing.elapse(1e6)


def test_a_scarce_budget_chooses_the_drafter_of_the_best_positions() -> None:
    """suffix has the longer drafts and ngram the likelier first tokens: one token a request."""
    views = [request(i) for i in range(4)]
    subject = controller(Setting())
    teach(subject, "ngram", Features(2), [0.9, 0.05])
    teach(subject, "suffix", Features(2), [0.7, 0.95])
    offers = [offer(i, name, 8, 2) for i in range(4) for name in ("ngram", "suffix")]
    free = subject.plan(batch(*views), offers)
    assert {one.drafter for one in free.allotments} == {"suffix"}
    subject.configure(budget(4))
    scarce = subject.plan(batch(*views, step=2), offers)
    assert {(one.drafter, one.length) for one in scarce.allotments} == {("ngram", 1)}


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(*[st.floats(0.05, 0.95)] * 4), min_size=2, max_size=3), st.integers(1, 6))
def test_with_two_drafters_the_tokens_of_a_budget_are_close_to_the_most_there_can_be(
    rates: list[tuple[float, float, float, float]], tokens: int
) -> None:
    """Rows cost next to nothing here, so the best plan has most expected tokens."""
    subject = controller(budget(tokens), slope=1e-6)
    survivals: dict[tuple[int, str], list[float]] = {}
    offers: list[Offer] = []
    for i, (a, b, c, d) in enumerate(rates):
        for name, pair, match in (("ngram", (a, b), i), ("suffix", (c, d), i + 4)):
            features = Features(match)
            teach(subject, name, features, pair)
            offers.append(Offer(i, name, 4, features))
    for one in offers:
        key = (one.request, one.drafter)
        survivals[key] = subject.acceptance.survival(one.request, one.drafter, one.features, 4)
    views = [request(i) for i in range(len(rates))]
    plan = subject.plan(batch(*views), offers)
    found = sum(
        sum(survivals[one.request, one.drafter][: one.length])
        for one in plan.allotments
        if one.length
    )
    assert found >= 0.9 * most(survivals, len(rates), tokens)


def most(survivals: dict[tuple[int, str], list[float]], size: int, tokens: int) -> float:
    """The most expected tokens of any drafters and lengths, by dynamic programming."""
    best = [0.0] * (tokens + 1)
    for i in range(size):
        values = [[0.0, *np.add.accumulate(survivals[i, name])] for name in ("ngram", "suffix")]
        best = [
            max(best[room - d] + v[d] for v in values for d in range(min(room, 4) + 1))
            for room in range(tokens + 1)
        ]
    return best[-1]


def teach(
    subject: AdaptiveController, drafter: str, features: Features, rates: Sequence[float]
) -> None:
    """Have it learn these conditional rates of two positions."""
    for number in range(200):
        place = (number * 0.618034) % 1.0
        accepted = 0 if place >= rates[0] else 1 if place >= rates[0] * rates[1] else 2
        subject.acceptance.learn(99, drafter, features, 2, accepted)
    subject.acceptance.settle()


def test_what_the_budget_decides_is_told() -> None:
    subject = controller(budget(2))
    views, offers = [request(0), request(1)], [offer(i, length=8, match=9) for i in range(2)]
    decision = subject.plan(batch(*views), offers).decision
    assert decision is not None
    assert "at most 2 draft tokens per step" in decision.sentence
    assert "draft tokens per step, over the budget of 2." in decision.sentence
    assert decision.inputs["draft_budget"] == 2
    assert decision.inputs["budget_decides"] == 1.0
    wanted = decision.inputs["unbudgeted_draft_tokens"]
    assert isinstance(wanted, float)
    assert wanted > 2


def test_a_budget_that_begins_to_decide_is_a_decision_with_its_own_reason() -> None:
    world = simulate(size=4, rates=lambda step: (0.9, 0.9) if step > 200 else (0.02, 0.5))
    world.controller.configure(budget(4))
    world.run(600)
    found = [d for d in world.controller.take_decisions() if d.reason == reasons.DRAFT_BUDGET]
    assert found
    assert "over the budget of 4" in found[0].sentence
    assert max(sum(a.length for a in plan.allotments) for plan in world.plans) == 4
