"""The TPOT target: which plans it admits, what it does to asked lengths, and what is said of it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from controller import reasons
from controller.choices import Choices, Table
from controller.contract import (
    NONE,
    BatchView,
    CostPoint,
    DrafterInfo,
    Plan,
    RequestOutcome,
    Setting,
    StepOutcome,
    Wish,
)
from controller.controller import AdaptiveController
from controller.cost import CostModel
from controller.draft_cost import FREE, DraftPrice
from controller.mixing import Pass, Tail, chained
from controller.planner import Allocation, allocate
from controller.target import Target, within
from tests.controller.simulated_engine import (
    Clock,
    batch,
    choices,
    offer,
    request,
    simulate,
)

RATES = st.lists(st.floats(0.05, 0.99), min_size=1, max_size=4)
COSTS = st.lists(st.floats(1.0, 50.0), min_size=17, max_size=17)
TARGETS = st.floats(0.5, 60.0)
NOBODY_ELSE = float("inf")


def survival(rates: Sequence[float]) -> list[float]:
    return np.multiply.accumulate(np.array(rates)).tolist()


def tpot_ms(found: Allocation, of: Choices, target: Target) -> float:
    return target.tpot_ms(of, found.lengths, found.ms)


def aimed(costs: Table, tokens: float, of: Choices, target: Target) -> Allocation:
    """The plan as the controller makes it: the best goodput where that meets the target."""
    best = allocate(costs, tokens, of)
    return best if tpot_ms(best, of, target) <= target.ms else within(costs, tokens, of, target)


@st.composite
def steps(draw: st.DrawFn) -> tuple[Table, Choices, Target]:
    """A step with drafts that cost something beside their rows, of one drafter, of one for each
    request, or of a model whose drafts are continued. The target is of 1 ms."""
    survivals = [survival(rates) for rates in draw(st.lists(RATES, min_size=1, max_size=4))]
    n, kind = len(survivals), draw(st.sampled_from(["one", "each", "chain"]))
    prices = draw(st.lists(st.floats(0.0, 5.0), min_size=n, max_size=n))
    found = choices(*survivals, draft_ms=prices if kind == "each" else None)
    if kind == "chain":
        model = draw(st.lists(st.booleans(), min_size=n, max_size=n))
        assume(any(model))
        found = replace(
            found,
            names=("mtp", "ngram"),
            who=np.array([0 if mine else 1 for mine in model], np.intp),
            prices=[DraftPrice(prices[0], 0.0, draw(st.floats(0.0, 3.0))), FREE],
        )
        tail = Tail("ngram", np.full(8, 0.5), np.array([draw(st.floats(0.0, 1.0))] * 8))
        depth = int(found.longest[found.who == 0].max())
        found = chained(found, Pass("mtp", depth, tail), found.longest + draw(st.integers(0, 2)))
    costs = np.array(draw(COSTS))[: int(found.longest.sum()) + 1]
    slowest = draw(st.sampled_from([NOBODY_ELSE, NOBODY_ELSE, 1.0, 1.5]))
    return costs, found, Target(1.0, draw(st.sampled_from([0.0, 7.0])), slowest)


@given(steps(), st.lists(TARGETS, min_size=2, max_size=8))
def test_a_tighter_target_never_leads_to_a_longer_wait_than_a_looser_one(
    step: tuple[Table, Choices, Target], targets: list[float]
) -> None:
    costs, of, target = step
    before = 0.0
    for ms in sorted(targets):
        one = target._replace(ms=ms)
        found = tpot_ms(aimed(costs, float(len(of)), of, one), of, one)
        assert found >= before * (1.0 - 1e-9)
        before = found


@given(steps(), TARGETS)
def test_of_the_plans_that_meet_the_target_the_best_is_taken_and_plain_decoding_is_one_of_them(
    step: tuple[Table, Choices, Target], ms: float
) -> None:
    costs, of, target = step
    target, tokens = target._replace(ms=ms), float(len(of))
    found = within(costs, tokens, of, target)
    wait = tpot_ms(found, of, target)
    plain = target.tpot_ms(of, np.zeros(len(of), np.intp), costs.item(0))
    if plain <= ms:
        assert wait <= ms * (1.0 + 1e-9)
        assert found.goodput >= tokens / costs.item(0) * (1.0 - 1e-9)
    else:
        assert wait <= plain * (1.0 + 1e-9)
    if len(costs) > 1:
        assert found.lengths.sum() == found.rows <= len(costs) - 1
        assert (found.lengths <= of.longest).all()


@given(st.lists(RATES, min_size=1, max_size=3), COSTS, TARGETS)
def test_no_combination_of_lengths_meets_a_target_that_the_cuts_miss_by_far(
    rates: list[list[float]], costs: list[float], ms: float
) -> None:
    """With every request drafting and a cost that rises, the cuts contain the shortest wait."""
    survivals = [survival(one) for one in rates]
    of, rising = choices(*survivals), np.maximum.accumulate(np.array(costs))
    rising = rising[: int(of.longest.sum()) + 1]
    target = Target(ms, 0.0, NOBODY_ELSE)
    found = within(rising, float(len(of)), of, target)
    shortest = min(
        rising[sum(lengths)]
        / (1.0 + min(sum(s[:d]) for s, d in zip(survivals, lengths, strict=True)))
        for lengths in product(*(range(len(s) + 1) for s in survivals))
        if sum(lengths) < len(rising)
    )
    wait = tpot_ms(found, of, target)
    assert wait <= ms or wait == pytest.approx(shortest)


def test_a_request_without_a_draft_waits_the_whole_step() -> None:
    """Long drafts for one request lengthen the step of the other: the target shortens them."""
    costs = np.array([10.0 + 1.0 * m for m in range(17)])
    of = choices(survival([0.9] * 16))
    target = Target(14.0, 0.0, 1.0)
    best = allocate(costs, 2.0, of)
    assert best.rows > 4
    assert tpot_ms(best, of, target) > 14.0
    found = within(costs, 2.0, of, target)
    assert found.lengths.tolist() == [4]
    assert tpot_ms(found, of, target) == 14.0


def test_drafts_for_everybody_meet_a_target_that_plain_decoding_misses() -> None:
    """The best goodput gives all rows to the first request; the target takes some for the other."""
    costs = np.array([10.0, *[14.0] * 4, *[40.0] * 12])
    of = choices(survival([0.95] * 8), survival([0.6] * 8))
    target = Target(9.0, 0.0, NOBODY_ELSE)
    best = allocate(costs, 2.0, of)
    assert best.lengths.tolist() == [4, 0]
    assert tpot_ms(best, of, target) == 14.0
    found = within(costs, 2.0, of, target)
    assert found.lengths.tolist() == [2, 2]
    assert tpot_ms(found, of, target) < 9.0 < 10.0


def test_where_nothing_meets_the_target_and_plain_decoding_is_fastest_nobody_drafts() -> None:
    costs = np.array([10.0 + 8.0 * m for m in range(9)])
    of = choices(survival([0.7] * 4), survival([0.7] * 4))
    found = within(costs, 2.0, of, Target(1.0, 0.0, NOBODY_ELSE))
    assert (found.rows, found.ms, found.lengths.tolist()) == (0, 10.0, [0, 0])


def test_under_a_target_too_drafts_must_beat_plain_decoding_by_more_than_noise() -> None:
    costs = np.array([10.0, 10.45, *[14.0] * 6, 12.0])
    of, target = choices([0.1] * 8), Target(11.0, 0.0, 1.0)
    assert allocate(costs, 2.0, of).lengths.tolist() == [8]
    assert 2.1 / costs[1] > 2.0 / costs[0]
    assert within(costs, 2.0, of, target).lengths.tolist() == [0]


def test_what_prefill_takes_counts_for_the_wait_and_not_for_the_goodput() -> None:
    costs = np.array([10.0 + 1.0 * m for m in range(17)])
    of, target = choices(survival([0.9] * 16)), Target(20.0, 0.0, 1.0)
    alone, shared = (
        within(costs, 2.0, of, target),
        within(costs, 2.0, of, target._replace(beside_ms=5.0)),
    )
    assert alone.rows > shared.rows == 5
    assert shared.ms == 15.0


def test_the_pass_of_a_model_gives_way_where_it_is_what_takes_too_long() -> None:
    costs = np.array([10.0 + 0.5 * m for m in range(9)])
    of = replace(
        choices(survival([0.9] * 4), survival([0.8] * 4)),
        names=("mtp", "ngram"),
        who=np.array([0, 1], np.intp),
        prices=[DraftPrice(0.0, 0.0, 0.8), FREE],
    )
    of = chained(of, Pass("mtp", 4, None), of.longest)
    target = Target(12.5, 0.0, 1.0)
    assert allocate(costs, 3.0, of).lengths.tolist() == [4, 4]
    found = within(costs, 3.0, of, target)
    assert found.lengths.tolist() == [0, 4]


# --- the controller -----------------------------------------------------------------------------


def controller(setting: Setting, slope: float = 1.0) -> AdaptiveController:
    """Steps of 10 ms and `slope` ms for each drafted row, whatever the batch."""
    table = [CostPoint(n, n + m, 128, 10.0 + slope * m) for n in (1, 2, 4) for m in (0, 64)]
    clock = Clock()
    return AdaptiveController(["ngram", "suffix"], CostModel(table), setting, clock=clock)


def lengths(plan: Plan) -> list[int]:
    return [one.length + one.tail_length for one in plan.allotments]


def planned(
    setting: Setting, *wishes: Wish | None, slope: float = 1.0, offers: int = 9
) -> list[int]:
    """D of each request; the first so many of them have a long match."""
    views = [request(i, wish=wish) for i, wish in enumerate(wishes)]
    subject = controller(setting, slope)
    return lengths(
        subject.plan(
            batch(*views), [offer(i, length=8, match=9) for i in range(min(offers, len(views)))]
        )
    )


def aim(ms: float, setting: Setting | None = None) -> Setting:
    return replace(setting or Setting(), tpot_target_ms=ms)


@pytest.mark.parametrize("seed", range(3))
def test_a_target_that_every_plan_meets_changes_nothing(seed: int) -> None:
    free, aimed_at = (simulate(size=4, seed=seed, match=lambda step: 0.7) for _ in range(2))
    aimed_at.controller.configure(aim(1000.0))
    one, other = free.run(300), aimed_at.run(300)
    assert [plan.allotments for plan in one.plans] == [plan.allotments for plan in other.plans]
    assert one.plans[0].probes == other.plans[0].probes


def test_steps_are_as_long_as_the_request_without_a_draft_may_wait() -> None:
    assert planned(Setting(), None, None, offers=1)[0] > 3
    assert planned(aim(13.0), None, None, offers=1) == [3, 0]
    assert planned(aim(9.0), None, None, offers=1) == [0, 0]


def test_a_pinned_drafter_without_d_gets_the_d_that_the_target_leaves() -> None:
    assert planned(aim(13.0, Setting("pinned", "ngram")), None, None, offers=1) == [3, 0]


@pytest.mark.parametrize(
    "setting", [Setting("pinned", "ngram", 6), Setting("pinned", "ngram", schedule=((4, 6),))]
)
def test_a_pinned_d_is_cut_to_what_meets_the_target(setting: Setting) -> None:
    assert planned(setting, None, None, offers=1) == [6, 0]
    assert planned(aim(13.0, setting), None, None, offers=1) == [3, 0]
    assert planned(aim(17.0, setting), None, None, offers=1) == [6, 0]
    assert planned(aim(5.0, setting), None, None, offers=1) == [0, 0]


def test_a_wish_is_cut_like_a_pin() -> None:
    wish = Wish(drafter="ngram", draft_length=6)
    assert planned(Setting(), wish, Wish(enabled=False)) == [6, 0]
    assert planned(aim(12.0), wish, Wish(enabled=False)) == [2, 0]


def test_what_nobody_asked_for_gives_way_before_what_somebody_did() -> None:
    wish = Wish(drafter="ngram", draft_length=3)
    found = planned(aim(14.0), wish, None, Wish(enabled=False))
    assert found[0] == 3
    assert sum(found) <= 4


@given(
    st.lists(st.sampled_from([None, 0, 2, 6]), min_size=1, max_size=4),
    st.floats(0.2, 6.0),
    st.lists(st.floats(2.0, 40.0), min_size=2, max_size=4),
    st.integers(0, 4),
    st.sampled_from([0, 40]),
)
def test_with_wishes_too_a_tighter_target_never_leads_to_a_longer_wait(
    asked: list[int | None], slope: float, targets: list[float], offers: int, prefill_rows: int
) -> None:
    views = [
        request(i, wish=None if d is None else Wish(draft_length=d)) for i, d in enumerate(asked)
    ]
    given_offers = [offer(i, length=8, match=9) for i in range(min(offers, len(views)))]
    before = 0.0
    for ms in sorted(targets):
        subject = controller(aim(ms), slope)
        plan = subject.plan(replace(batch(*views), prefill_rows=prefill_rows), given_offers)
        assert plan.decision is not None
        found = plan.decision.inputs["tpot_ms"]
        assert isinstance(found, float)
        assert found >= before - 1e-3
        before = found


def test_prefills_in_the_step_count_with_what_they_were_measured_to_take() -> None:
    subject = controller(aim(30.1))
    views, offers = [request(0), request(1)], [offer(0, length=8, match=9)]
    alone = lengths(subject.plan(batch(*views), offers))
    for step in range(2, 40):
        outcome = StepOutcome(
            step, 2, 2, 100, 256, 10.0 + 17.0, 0.0, 0.0,
            tuple(RequestOutcome(i, NONE, 0, 0, 1) for i in range(2)),
        )  # fmt: skip
        subject.observe(outcome)
    assert subject.cost.prefill_ms(2, 100, 256) == pytest.approx(17.0)
    shared = lengths(subject.plan(replace(batch(*views, step=50), prefill_rows=100), offers))
    assert alone[0] > shared[0] == 3


def test_one_stalled_prefill_does_not_set_the_price_of_all_others() -> None:
    cost = CostModel()
    result = (RequestOutcome(1, NONE, 0, 0, 1),)
    step = StepOutcome(1, 1, 1, 100, 128, 0.0, 0.0, 0.0, result)
    for ms in [20.0] * 20 + [10_000.0]:
        cost.observe(replace(step, verify_ms=ms))
    assert 10.0 <= cost.prefill_ms(1, 100, 128) < 13.0
    cost.observe(replace(step, verify_ms=5000.0, requests=2))  # an arm's part of a step
    assert cost.prefill_ms(1, 100, 128) < 13.0


def test_the_other_arm_counts_for_the_length_of_the_step_and_not_among_those_who_wait() -> None:
    subject = controller(aim(9.5))
    views, offers = [request(0), request(1)], [offer(0, length=8, match=9)]
    view = replace(batch(*views), elsewhere=frozenset([1]))
    alone = subject.plan(view, offers)
    assert lengths(alone)[0] > 3
    beside = subject.plan(replace(view, step=2, elsewhere_rows=30), offers)
    assert alone.decision is not None
    found = alone.decision.inputs["tpot_ms"]
    assert isinstance(found, float)
    assert found < 9.5
    assert lengths(beside)[0] >= lengths(alone)[0]


# --- what is recorded ---------------------------------------------------------------------------


def test_without_constraints_a_decision_says_nothing_of_them() -> None:
    plan = controller(Setting()).plan(batch(request(0)), [offer(0)])
    assert plan.decision is not None
    assert not [name for name in plan.decision.inputs if "tpot" in name or "budget" in name]


def test_the_operators_change_says_what_the_target_decides() -> None:
    subject = controller(Setting())
    views, offers = [request(0), request(1)], [offer(0, length=8, match=9)]
    subject.plan(batch(*views), offers)
    subject.configure(aim(13.0))
    decision = subject.plan(batch(*views, step=2), offers).decision
    assert decision is not None
    assert decision.reason == reasons.OPERATOR
    assert "TPOT at most 13 ms" in decision.sentence
    assert "The best goodput was " in decision.sentence
    assert "over the target of 13 ms; the plan's is 13.0 ms." in decision.sentence
    assert decision.inputs["tpot_target_ms"] == 13.0
    assert decision.inputs["tpot_ms"] == pytest.approx(13.0)
    assert decision.inputs["target_decides"] == 1.0
    assert decision.draft_length == 1.5


def test_a_plan_that_the_target_changes_later_is_a_decision_with_its_own_reason() -> None:
    """Half of the requests lose their drafts: now they wait for the others' long steps."""
    world = simulate(
        {1: 10.0, 2: 10.1, 4: 10.3, 64: 40.0},
        size=4,
        rates=lambda step: (0.9, 0.9),
        match=lambda step: 1.0 if step <= 300 else 0.5,
    )
    world.cost = lambda rows, step: 10.0 + 0.48 * (rows - 4)
    world.controller.configure(aim(13.0))
    world.run(300)
    before = world.mean_length
    assert before > 3
    world.run(600)
    found = [d for d in world.controller.take_decisions() if d.reason == reasons.TPOT_TARGET]
    assert found
    assert "over the target of 13 ms" in found[-1].sentence
    assert found[-1].draft_length < before / 2


def test_a_pinned_d_that_is_cut_and_then_free_again_is_recorded() -> None:
    setting = aim(13.0, Setting("pinned", "ngram", 6))
    subject = controller(setting)
    views = [request(0), request(1)]
    for step in range(1, 400):
        offers = [offer(i, length=8, match=9) for i in range(2 if 100 < step < 250 else 1)]
        subject.plan(batch(*views, step=step), offers)
    told = [(d.reason, d.draft_length) for d in subject.take_decisions()]
    assert [reason for reason, _ in told] == [
        reasons.START,
        reasons.TPOT_TARGET,
        reasons.TPOT_TARGET,
    ]
    assert [length for _, length in told] == [1.5, 6.0, pytest.approx(1.5, abs=0.8)]


def test_random_steps_under_a_target_never_fail() -> None:
    """Chains, cold models, wishes, no room: whatever comes, every request has one allotment."""
    rng = random.Random(5)
    subject = AdaptiveController(
        ["ngram", "suffix"], CostModel(), aim(15.0), tails=("ngram",), clock=Clock()
    )
    subject.add_drafter(DrafterInfo("mtp", model=True, rho=0.1))
    for step in range(1, 300):
        views = [
            request(
                i,
                wish=rng.choice([None, None, Wish(draft_length=3)]),
                remaining=rng.randrange(1, 20),
            )
            for i in range(rng.randrange(1, 6))
        ]
        offers = [
            offer(one.id, name, rng.randrange(1, 9), rng.randrange(9))
            for one in views
            for name in ("ngram", "suffix", "mtp")
            if rng.random() < 0.6
        ]
        view = BatchView(step, views, rng.choice([0, 64]), rng.choice([0, 3, 100]))
        budget = rng.choice([None, 1, 4])
        subject.configure(replace(aim(rng.choice([5.0, 15.0, 40.0])), draft_budget=budget))
        plan = subject.plan(view, offers)
        assert [one.request for one in plan.allotments] == [one.id for one in views]
        assert sum(lengths(plan)) <= min(view.free_rows, budget or 1000)
