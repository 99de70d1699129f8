"""Several drafters in one step: who overrides whom, shared passes, chains, credit by part."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.choices import Choices, own_ms
from controller.contract import (
    Allotment,
    Features,
    Part,
    RequestOutcome,
    Setting,
    StepOutcome,
    Wish,
)
from controller.controller import AdaptiveController
from controller.cost import CostModel
from controller.draft_cost import DraftPrice
from controller.mixing import Grid, Tail, chained, mix, tail_key
from controller.planner import allocate
from controller.pricing import Price
from tests.controller.mixed_engine import CHAIN, MODEL, SUFFIX, MixedWorld, Rates
from tests.controller.simulated_engine import batch, offer, request


def none(request: int) -> tuple[float, ...]:
    return ()


# --- one drafter or the other -------------------------------------------------------------------


def test_each_request_gets_the_drafter_that_is_worth_more_there() -> None:
    world = MixedWorld(
        suffix=lambda r: (0.95,) if r % 2 else (0.1, 0.3), start_ms=0.05, depth_ms=0.05, tails=()
    )
    world.settle(400).run(200)
    for r in range(world.size):
        model, suffix = world.mean_depth(MODEL, r), world.mean_depth(SUFFIX, r)
        assert suffix > 5 * model if r % 2 else model > 5 * suffix


def test_a_model_pass_that_one_request_alone_would_pay_is_not_run() -> None:
    """What the pass costs is shared: alone it does not pay, for everybody it does."""

    def world(suffix: Rates) -> MixedWorld:
        found = MixedWorld(16, lambda r: (0.6,), suffix, start_ms=1.0, depth_ms=1.0, tails=())
        return found.settle(500).run(200)

    alone, shared = world(lambda r: (0.9,) if r else ()), world(none)
    assert alone.mean_depth(MODEL) < 0.02
    assert alone.mean_depth(SUFFIX) > 3.0
    assert shared.mean_depth(MODEL) > 1.0


def test_dear_passes_make_shorter_model_drafts() -> None:
    cheap = MixedWorld(depth_ms=0.1, tails=()).settle(300).run(100)
    dear = MixedWorld(depth_ms=2.0, tails=()).settle(300).run(100)
    assert cheap.mean_depth(MODEL) > 1.5 * dear.mean_depth(MODEL) > 0.5


@pytest.mark.parametrize("seed", [1, 2])
def test_the_mix_is_as_good_as_the_best_drafter_alone(seed: int) -> None:
    def goodput(*drafters: str, tails: tuple[str, ...] = (SUFFIX,)) -> float:
        world = MixedWorld(
            size=6,
            suffix=lambda r: ((0.9,), (0.3, 0.6), ())[r % 3],
            tail=lambda r: (0.6, 0.8) if r % 2 else (),
            drafters=drafters,
            tails=tails,
            seed=seed,
        )
        return world.settle(600).run(1200).goodput

    mixed = goodput(MODEL, SUFFIX)
    assert mixed > 1.05 * goodput(MODEL)
    assert mixed > 1.05 * goodput(SUFFIX)
    assert mixed > 0.99 * goodput(MODEL, SUFFIX, tails=())


@st.composite
def batches(draw: st.DrawFn) -> list[tuple[list[float], list[float]]]:
    rates = st.lists(st.floats(0.05, 0.95), min_size=3, max_size=3)
    return draw(st.lists(st.tuples(rates, rates | st.just([])), min_size=1, max_size=3))


@given(
    batches(),
    st.floats(0.05, 1.0),
    st.builds(DraftPrice, st.floats(0.0, 3.0), st.floats(0.0, 0.2), st.floats(0.0, 2.0)),
)
def test_the_mix_is_close_to_the_best_of_all_assignments(
    requests: list[tuple[list[float], list[float]]], row_ms: float, price: DraftPrice
) -> None:
    """At the price that its own goodput gives, against every drafter and length of each request."""
    count, free = len(requests), DraftPrice(0.0, 0.0, 0.0)
    places, names, survivals, spans = [], [], [], []
    drafters = (MODEL, SUFFIX)
    for i, pair in enumerate(requests):
        begin = len(places)
        for name, rates in zip((MODEL, SUFFIX), pair, strict=True):
            if rates:
                places.append(i)
                names.append(name)
                survivals.append(np.multiply.accumulate(rates))
        spans.append((begin, len(places)))
    lengths = np.full(len(places), 3)
    who = np.array([drafters.index(name) for name in names])
    table = np.array(survivals)
    own = own_ms([price, free], who, None)
    choices = Choices(np.array(places), drafters, who, table, lengths, [price, free], own)
    grid, caps = Grid(choices, count), np.zeros(len(places), np.intp)
    costs = np.array([10.0 + row_ms * m for m in range(3 * count + 1)])

    worth = count / 10.0
    for _ in range(8):
        mixed = mix(grid, caps, [MODEL], [], Price(worth, worth * row_ms), {})
        picked = choices.take(mixed.picked)
        if mixed.shared is not None:
            picked = chained(picked, mixed.shared, caps.take(mixed.picked))
        found = allocate(costs[: int(picked.longest.sum()) + 1], float(count), picked)
        worth = found.goodput

    options = []
    for begin, end in spans:
        drafts = [(names[c], survivals[c], d) for c in range(begin, end) for d in (1, 2, 3)]
        options.append([("", np.zeros(0), 0), *drafts])
    best = 0.0
    for combination in product(*options):
        rows = sum(d for _, _, d in combination)
        depths = [d for name, _, d in combination if name == MODEL]
        ms = costs[rows] + price.ms(len(depths), max(depths, default=0))
        best = max(best, (count + sum(float(s[:d].sum()) for _, s, d in combination)) / ms)
    assert worth >= 0.97 * best


# --- chains -------------------------------------------------------------------------------------


def test_a_good_tail_continues_the_models_drafts_and_decisions_name_the_chain() -> None:
    world = MixedWorld(model=lambda r: (0.85,), tail=lambda r: (0.8,), depth_ms=1.5)
    decisions = [plan.decision for plan in world.run(900).plans if plan.decision is not None]
    late = [a for plan in world.plans[600:] for a in plan.allotments]
    tails = [a for a in late if a.tail]
    assert len(tails) > 0.8 * len(late)
    assert {(a.drafter, a.tail) for a in tails} == {(MODEL, SUFFIX)}
    assert all(a.length and 1 <= a.tail_length <= 8 for a in tails)
    assert len({a.length for plan in world.plans[-1:] for a in plan.allotments if a.tail}) == 1
    assert CHAIN in [decision.drafter for decision in decisions]
    report = world.controller.report()
    assert set(report["tails"]) == {SUFFIX}  # type: ignore[arg-type]


def test_a_tail_lets_the_expensive_pass_end_earlier_and_pays() -> None:
    def goodput(tails: tuple[str, ...]) -> MixedWorld:
        world = MixedWorld(model=lambda r: (0.85,), tail=lambda r: (0.85,), depth_ms=1.5)
        return (
            MixedWorld(model=world.model, tail=world.tail, depth_ms=1.5, tails=tails, seed=3)
            .settle(600)
            .run(600)
        )

    chained_world, plain = goodput((SUFFIX,)), goodput(())
    assert chained_world.mean_depth(MODEL) < plain.mean_depth(MODEL)
    assert chained_world.goodput > 1.05 * plain.goodput


def test_a_useless_tail_is_given_up_and_costs_next_to_nothing() -> None:
    def world(tails: tuple[str, ...]) -> MixedWorld:
        found = MixedWorld(tail=lambda r: (0.02,), tails=tails, row_ms=0.4, seed=5)
        return found.settle(500).run(800)

    useless = world((SUFFIX,))
    assert sum(a.tail_length for a in useless.allotments) < 0.1 * len(useless.allotments)
    assert useless.goodput > 0.99 * world(()).goodput


def test_a_tail_that_is_rarely_there_is_not_counted_on() -> None:
    """An empty tail costs no rows, so it may be asked for; predictions do not contain it."""
    world = MixedWorld(tail=none).settle(300).run(500)
    recent = world.controller.report()["recent"]
    assert isinstance(recent, dict)
    assert world.goodput == pytest.approx(recent["tokens"] / recent["ms"], rel=0.05)


@pytest.mark.parametrize(
    ("setting", "wish"),
    [
        (Setting("pinned", MODEL, 3), Wish()),
        (Setting("pinned", MODEL), Wish()),
        (Setting(), Wish(drafter=MODEL)),
        (Setting(), Wish(drafter=MODEL, draft_length=2)),
    ],
)
def test_who_asks_for_a_drafter_gets_no_other_ones_tail(setting: Setting, wish: Wish) -> None:
    controller = AdaptiveController(
        (MODEL, SUFFIX), CostModel(), setting, models=(MODEL,), tails=(SUFFIX,)
    )
    for step in range(30):
        plan = controller.plan(
            batch(request(1, wish=wish), step=step), [offer(1, MODEL, 8, 0), offer(1, SUFFIX)]
        )
        assert not plan.allotments[0].tail
        assert plan.allotments[0].drafter in (MODEL, "none")


def test_a_disabled_drafter_is_no_tail() -> None:
    world = MixedWorld(tail=lambda r: (0.9,), drafters=(MODEL,))
    world.run(300)
    assert not [a for a in world.allotments if a.tail]


@given(
    st.lists(st.tuples(st.integers(1, 20), st.integers(1, 16)), min_size=1, max_size=4),
    st.integers(0, 20),
    st.integers(0, 16),
)
def test_a_chain_stays_within_every_limit(
    requests: list[tuple[int, int]], free_rows: int, limit: int
) -> None:
    controller = AdaptiveController(
        (MODEL, SUFFIX),
        CostModel(),
        Setting(max_draft_length=limit),
        models=(MODEL,),
        tails=(SUFFIX,),
    )
    views = [request(i, remaining=remaining) for i, (remaining, _) in enumerate(requests)]
    offers = [offer(i, MODEL, most, 0) for i, (_, most) in enumerate(requests)]
    for step in range(3):
        plan = controller.plan(batch(*views, step=step, free_rows=free_rows), offers)
        assert sum(a.length + a.tail_length for a in plan.allotments) <= free_rows
        for one, (remaining, most) in zip(plan.allotments, requests, strict=True):
            assert one.length + one.tail_length <= min(limit, remaining - 1)
            assert one.length <= most
            assert bool(one.tail) == (one.tail_length > 0) <= (one.length > 0)


# --- credit -------------------------------------------------------------------------------------


def controller() -> AdaptiveController:
    return AdaptiveController((MODEL, SUFFIX), CostModel(), models=(MODEL,), tails=(SUFFIX,))


def credit(one: AdaptiveController, head: Part, tail: Part, *, cut: bool = False) -> None:
    kept = head.accepted + tail.accepted
    drafted = head.drafted + tail.drafted
    result = RequestOutcome(
        1, MODEL, drafted, kept, kept if cut else kept + 1, cut, parts=(head, tail)
    )
    one.observe(StepOutcome(1, 1, 1 + drafted, 0, 128, 11.0, 0.0, 0.0, (result,)))


def evidence(one: AdaptiveController, name: str) -> list[tuple[float, float]]:
    """(accepted, reached) by position."""
    report = one.acceptance.report().get(name)
    if report is None:
        return []
    assert isinstance(report, dict)
    return [(p["accepted"], p["reached"]) for p in report["positions"]]


def test_a_tail_behind_a_rejected_head_was_not_reached() -> None:
    one = controller()
    credit(one, Part(MODEL, 3, 1), Part(SUFFIX, 4, 0))
    assert evidence(one, MODEL) == [(1.0, 1.0), (0.0, 1.0)]
    assert evidence(one, tail_key(SUFFIX)) == []


def test_a_reached_tail_is_credited_under_its_own_name_only() -> None:
    one = controller()
    credit(one, Part(MODEL, 3, 3), Part(SUFFIX, 4, 1))
    assert evidence(one, MODEL) == [(1.0, 1.0)] * 3
    assert evidence(one, tail_key(SUFFIX)) == [(1.0, 1.0), (0.0, 1.0)]
    assert one.acceptance.evidence(SUFFIX) == 0.0


def test_text_that_ends_inside_a_chain_counts_no_rejection() -> None:
    one = controller()
    credit(one, Part(MODEL, 3, 2), Part(SUFFIX, 4, 0), cut=True)
    credit(one, Part(MODEL, 3, 3), Part(SUFFIX, 4, 0), cut=True)
    credit(one, Part(MODEL, 3, 3), Part(SUFFIX, 4, 2), cut=True)
    assert [round(reached) for _, reached in evidence(one, MODEL)] == [3, 3, 2]
    assert all(kept == reached for kept, reached in evidence(one, MODEL))
    assert evidence(one, tail_key(SUFFIX)) == [(1.0, 1.0), (1.0, 1.0)]


def test_an_allotment_without_a_tail_is_what_it_was() -> None:
    assert Allotment(1, "ngram", 3) == Allotment(1, "ngram", 3, "", 0)
    assert Features(3) == Features(3, 0, "")


def test_a_chain_ends_the_head_at_the_shared_depth_and_goes_on_where_there_is_room() -> None:
    survival = np.array([[0.9, 0.8, 0.7], [0.9, 0.5, 0.0], [0.6, 0.5, 0.4]])
    choices = Choices(
        np.arange(3),
        (MODEL, SUFFIX),
        np.array([0, 0, 1]),
        survival,
        np.array([3, 2, 3]),
        [DraftPrice(0.1, 0.0, 1.0), DraftPrice(0.0, 0.0, 0.0)],
    )
    tail, caps = Tail(SUFFIX, np.full(8, 0.5), np.ones(8)), np.array([10, 3, 0])
    mixed = mix(Grid(choices, 3), caps, [MODEL], [tail], Price(0.3, 0.05), {})
    assert mixed.shared is not None
    assert mixed.picked.tolist() == [0, 1, 2]
    mixed.shared.depth = 2
    found = chained(choices, mixed.shared, caps)
    assert found.longest.tolist() == [10, 3, 3]
    assert found.survival[0, :4].tolist() == pytest.approx([0.9, 0.8, 0.4, 0.4])
    assert found.survival[1, :4].tolist() == pytest.approx([0.9, 0.5, 0.25, 0.0])
    assert found.survival[2, :4].tolist() == pytest.approx([0.6, 0.5, 0.4, 0.0])
    assert (found.depth(0, 5), found.depth(0, 2), found.depth(1, 3)) == (2, 2, 3)


@pytest.mark.parametrize(("per_request", "drafter"), [(0.0, MODEL), (2.0, SUFFIX)])
def test_a_pass_costs_each_request_its_own_part(per_request: float, drafter: str) -> None:
    """At 0.3 tokens a millisecond 2 ms are worth the .6 tokens that the model adds to the .3."""
    prices, who = [DraftPrice(0.0, per_request, 0.0), DraftPrice(0.0, 0.0, 0.0)], np.array([0, 1])
    choices = Choices(
        np.array([0, 0]),
        (MODEL, SUFFIX),
        who,
        np.array([[0.8], [0.3]]),
        np.array([1, 1]),
        prices,
        own_ms(prices, who, None),
    )
    mixed = mix(Grid(choices, 1), np.zeros(2, np.intp), [MODEL], [], Price(0.3, 0.05), {})
    assert choices.drafter(mixed.picked.item(0)) == drafter
