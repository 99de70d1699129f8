"""Drafters with a model of their own: their cost, catching up, probes, and coming and going."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.acceptance import Acceptance
from controller.choices import Table
from controller.contract import (
    NONE,
    Allotment,
    CostPoint,
    DrafterInfo,
    Offer,
    Proposal,
    RequestOutcome,
    Setting,
    ShadowScore,
    StepOutcome,
    Wish,
)
from controller.controller import AdaptiveController
from controller.cost import CostModel
from controller.draft_cost import DraftCost, DraftPrice
from controller.exploring import DOUBT, LEAST_MS, LONGEST_MS, ROWS, Explorer
from controller.lineup import Lineup, line_up
from controller.planner import Allocation, allocate
from controller.pricing import Price
from controller.probing import BUDGET, SHORTEST, Probing
from controller.usable import COLD_ROWS, TRUST
from tests.controller.mixed_engine import BESIDE_MS, MODEL, PLAIN_MS, SUFFIX, MixedWorld, Rates
from tests.controller.simulated_engine import batch, offer, request

GOOD = (0.5, 0.45, 0.4)
RHO = 0.07
TABLE = [CostPoint(1, rows, 128, 10.0 + 0.1 * (rows - 1)) for rows in (1, 9, 65)]


def world(model: tuple[float, ...], size: int = 1, **options: object) -> MixedWorld:
    """A model whose drafted token costs RHO of a plain step, and nothing beside it."""
    given: dict[str, object] = {
        "size": size, "model": lambda request: model, "start_ms": 0.0, "depth_ms": RHO * PLAIN_MS,
        "rho": RHO, "tails": (),
    }  # fmt: skip
    return MixedWorld(**(given | options))  # type: ignore[arg-type]


# --- gain and harm ------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 4])
@pytest.mark.parametrize("rates", [GOOD, (0.8, 0.75, 0.7), (0.4, 0.9, 0.9, 0.5)])
def test_a_model_gains_what_the_formula_says(rates: tuple[float, ...], size: int) -> None:
    """Tokens per time at the best D: (1 + S_1 + ... + S_D) / (1 + rho D + rows)."""
    found = []
    for depth in range(9):
        tokens = survival = 1.0
        for k in range(depth):
            survival *= rates[min(k, len(rates) - 1)]
            tokens += survival
        ms = PLAIN_MS + BESIDE_MS + depth * (RHO * PLAIN_MS + size * MixedWorld.row_ms)
        found.append(size * tokens / ms)
    best = max(found)
    assert best > 1.3 * found[0]
    assert world(rates, size, seed=2).settle(300).run(900).goodput > 0.96 * best


@pytest.mark.parametrize("size", [1, 8])
@pytest.mark.parametrize("behind", [0, 400])
def test_a_useless_model_costs_less_than_one_percent_from_the_start(size: int, behind: int) -> None:
    def goodput(drafters: tuple[str, ...]) -> float:
        found = world((0.0,), size, drafters=drafters, behind=lambda r: behind, life=200)
        return found.run(1500).goodput

    assert goodput((MODEL, SUFFIX)) > 0.99 * goodput((SUFFIX,))


def test_each_request_gets_the_better_of_suffix_and_head_and_chains() -> None:
    def goodput(*drafters: str) -> float:
        suffix: Rates = lambda r: (0.85,) if r == 0 else ()  # noqa: E731
        found = world(
            GOOD, 3, suffix=suffix, tail=lambda r: (0.6,), tails=(SUFFIX,), drafters=drafters
        )
        return found.settle(400).run(800).goodput

    both = goodput(MODEL, SUFFIX)
    assert both > 1.1 * goodput(MODEL)
    assert both > 1.1 * goodput(SUFFIX)


# --- catching up --------------------------------------------------------------------------------


def test_a_cold_model_that_pays_catches_up_with_every_new_request() -> None:
    def goodput(drafters: tuple[str, ...]) -> MixedWorld:
        found = world(GOOD, drafters=drafters, behind=lambda r: 300, life=200)
        return found.settle(1200).run(600)

    warm = goodput((MODEL, SUFFIX))
    assert warm.goodput > 1.3 * goodput((SUFFIX,)).goodput
    assert warm.caught_up > 3 * 300


def test_many_cold_requests_share_a_pass_that_none_of_them_pays_alone() -> None:
    found = world(GOOD, 8, behind=lambda r: 200, life=300).settle(3500).run(500)
    assert found.mean_depth(MODEL) > 1.0


def test_a_request_about_to_end_is_not_worth_catching_up_for() -> None:
    """The same drafter, the same text: what differs is how many tokens are to come."""

    def length(remaining: int) -> int:
        controller = taught()
        found = Offer(5, MODEL, 8, catch_up=600)
        return controller.plan(batch(request(5, remaining=remaining)), [found]).allotments[0].length

    assert length(6) == 0
    assert length(200) > 0


def test_catching_up_costs_what_its_rows_were_measured_to_take() -> None:
    cheap, dear = taught(row_ms=0.01), taught(row_ms=0.5)
    found = Offer(5, MODEL, 8, catch_up=600)
    assert cheap.plan(batch(request(5)), [found]).allotments[0].length > 0
    assert dear.plan(batch(request(5)), [found]).allotments[0].length == 0


def taught(row_ms: float = 0.05) -> AdaptiveController:
    """Knows a good model well."""
    controller = AdaptiveController((), CostModel(TABLE))
    controller.add_drafter(DrafterInfo(MODEL, model=True, rho=RHO))
    for step in range(1, 101):
        plan = controller.plan(batch(request(1), step=step), [Offer(1, MODEL, 8)])
        length = max(plan.allotments[0].length, 1)
        kept = min((2, 0, 1, 0)[step % 4], length)
        rows = 100 if step % 3 == 0 else 0
        proposal = Proposal(MODEL, 1, length, 0.7 * length + row_ms * rows, rows)
        controller.observe(outcome(step, length, kept, proposal))
    return controller


def outcome(step: int, drafted: int, kept: int, *proposals: Proposal) -> StepOutcome:
    name = MODEL if drafted else NONE
    result = RequestOutcome(1, name, drafted, kept, kept + 1)
    ms = sum(proposal.ms for proposal in proposals)
    verify_ms = 10.0 + 0.1 * drafted
    return StepOutcome(step, 1, 1 + drafted, 0, 128, verify_ms, ms, 0.5, (result,), proposals)


def test_an_unknown_cold_model_is_tried_on_the_request_that_it_lacks_least_of() -> None:
    controller = AdaptiveController((), CostModel(TABLE))
    controller.add_drafter(DrafterInfo(MODEL, model=True, rho=RHO))
    offers = [Offer(i, MODEL, 8, catch_up=rows) for i, rows in enumerate((900, 70, 500))]
    given: list[Allotment] = []
    for step in range(1, 200):
        views = [request(i) for i in range(3)]
        plan = controller.plan(batch(*views, step=step), offers)
        asked = [one for one in plan.allotments if one.length]
        given += asked
        assert plan.probes == {one.request for one in asked}
        results = tuple(RequestOutcome(i, NONE, 0, 0, 1) for i in range(3))
        proposals = tuple(Proposal(MODEL, 0, 0, 2.0, 40) for _ in asked)
        ms = 2.0 * len(proposals)
        controller.observe(StepOutcome(step, 3, 3, 0, 384, 10.0, ms, 0.5, results, proposals))
    assert given
    assert {one.request for one in given} == {1}


def test_a_probe_that_takes_steps_to_catch_up_is_carried_through() -> None:
    found = world(GOOD, behind=lambda r: 1500, life=1000)
    found.run(2400)
    runs, length = [], 0
    for plan in found.plans[:-1]:
        drafts = plan.allotments[0].drafter == MODEL
        if length and not drafts:
            runs.append(length)
        length = length + 1 if drafts else 0
    assert max([*runs, length]) >= 6
    assert found.controller.acceptance.evidence(MODEL) >= 1.0


def test_cold_requests_wait_until_enough_drafts_were_seen() -> None:
    controller = AdaptiveController((), CostModel(TABLE))
    controller.add_drafter(DrafterInfo(MODEL, model=True, rho=RHO))
    cold = Offer(2, MODEL, 8, catch_up=COLD_ROWS + 1)
    for step in range(1, int(TRUST) + 4):
        plan = controller.plan(batch(request(2), step=2 * step), [cold])
        known = controller.acceptance.evidence(MODEL) >= TRUST
        assert bool(plan.allotments[0].length) == known
        controller.plan(batch(request(1), step=2 * step + 1), [Offer(1, MODEL, 8)])
        controller.observe(outcome(2 * step + 1, 2, 2, Proposal(MODEL, 1, 2, 1.4)))


def test_steps_that_only_catch_up_count_as_harm() -> None:
    controller = AdaptiveController((), CostModel(TABLE))
    controller.add_drafter(DrafterInfo(MODEL, model=True, rho=RHO))
    for step in range(1, 200):
        controller.plan(batch(request(1), step=step), [Offer(1, MODEL, 8, catch_up=9000)])
        controller.observe(outcome(step, 0, 0, Proposal(MODEL, 0, 0, 2.0, 256)))
    guard = controller.report()["guard"]
    assert isinstance(guard, dict)
    assert guard["fired"] >= 1 or guard["loss"] > 0.02


# --- probes -------------------------------------------------------------------------------------


def test_a_model_is_tried_although_every_request_has_another_draft() -> None:
    """At first it drafts nothing useful; later it is the best there is."""
    found = world((0.0,), 2, suffix=lambda r: (0.5, 0.5), life=300).run(300)
    assert found.settle(0).run(100).mean_depth(MODEL) < 0.1
    found.model = lambda r: (0.95,)
    found.run(3000).settle(0)
    assert found.run(200).mean_depth(MODEL) > 3.0


def test_positions_beyond_the_shared_pass_are_tried() -> None:
    """a_1 = .5 alone hardly pays at this price; what comes after it does."""
    found = world((0.42, 0.99, 0.99, 0.99), depth_ms=2.5, rho=0.25, seed=1)
    assert found.settle(1500).run(300).mean_depth(MODEL) > 3.0


@pytest.mark.parametrize("behind", [4000, 20_000])
def test_what_a_request_loses_while_a_model_catches_up_is_accounted_for(behind: int) -> None:
    """Its own draft brings 6 tokens a step, and it goes without for 16 or 80 steps."""
    found = world(
        (0.0,), suffix=lambda r: (0.9,), behind=lambda r: behind, missing_ms=0.0, life=behind,
        rho=0.001,
    )  # fmt: skip
    found.run(2500)
    steps = sum(plan.allotments[0].drafter == MODEL for plan in found.plans)
    assert steps >= behind // found.chunk
    lost_ms = steps * (PLAIN_MS + BESIDE_MS - 1.0 / found.goodput)
    probing = found.controller.report()["probing"]
    assert isinstance(probing, dict)
    assert probing["time_share"] > 0.8 * lost_ms / found.ms
    assert probing["time_share"] < BUDGET or steps < 2 * behind // found.chunk


@pytest.mark.parametrize("stall_ms", [50.0, 3000.0])
def test_a_stall_in_a_probe_does_not_stop_probes_for_minutes(stall_ms: float) -> None:
    probing = Probing()
    explorer = Explorer(probing)
    probing.elapse(60_000.0)
    lineup, costs, best = cold(rows=300)
    probes = [explorer.select(lineup, costs, best, [1]) for _ in range(SHORTEST)]
    assert probes[-1] is not None
    explorer.measured([Proposal(MODEL, 0, 0, stall_ms, 256)])
    probing.elapse(stall_ms)
    probing.elapse(30_000.0)
    assert probing.affordable(0.0)


@given(st.lists(st.floats(0.0, 1e5), min_size=1, max_size=20))
def test_each_step_of_a_probe_is_charged_what_it_took_within_bounds(taken: list[float]) -> None:
    probing = Noting()
    explorer = Explorer(probing)
    probing.elapse(600_000.0)
    rows = 300 * len(taken)
    lineup, costs, best = cold(rows)
    probes = [explorer.select(lineup, costs, best, [1]) for _ in range(SHORTEST)]
    assert probes[-1] is not None
    assert probes[-1].swaps
    expected = probes[-1].ms
    most = min(DOUBT * expected + LEAST_MS, LONGEST_MS)
    for ms in taken:
        explorer.measured([Proposal(MODEL, 0, 0, ms, 256)])
        rows -= 256
        lineup, costs, best = cold(rows)
        explorer.resume(lineup, costs, best, [1])
    charged = sum(probing.beyond)
    assert charged <= len(taken) * most + 1e-6
    assert charged <= max(0.0, sum(taken) - expected) + 1e-6
    if max(taken) <= most:
        assert charged == pytest.approx(max(0.0, sum(taken) - expected), abs=1e-6)


def cold(rows: int) -> tuple[Lineup, Table, Allocation]:
    """One request, of which a model has read all but `rows`; the plan is plain decoding."""
    cost = CostModel(TABLE)
    cost.expect(MODEL, RHO)
    lineup = line_up(
        batch(request(1)),
        [Offer(1, MODEL, 8, catch_up=rows)],
        Setting(),
        {MODEL},
        Acceptance(),
        cost,
        price=Price(0.0, 0.0),
        held=False,
        down=(),
        blocks=lambda request: False,
        models=(MODEL,),
    )
    costs = cost.verify_curve(1, ROWS, 128)
    return lineup, costs, allocate(costs[:1], 1.0, lineup.free)


class Noting(Probing):
    """Notes what probes took beyond what was expected."""

    def __init__(self) -> None:
        super().__init__()
        self.beyond: list[float] = []

    def spend(self, ms: float) -> None:
        self.beyond.append(ms)
        super().spend(ms)


# --- cost ---------------------------------------------------------------------------------------


def test_before_the_first_draft_a_model_costs_its_share_of_a_plain_step() -> None:
    cost = CostModel(TABLE)
    cost.expect(MODEL, 0.2)
    price = cost.draft_price(MODEL)
    assert price.ms(1, 3) == pytest.approx(6.0)
    assert price.per_row == pytest.approx(0.2 * 0.1)


def test_what_the_first_steps_cannot_tell_apart_counts_for_the_depth_of_a_model() -> None:
    model, other = DraftCost(DraftPrice(0.0, 0.0, 0.5)), DraftCost()
    for cost in (model, other):
        for _ in range(20):
            cost.learn(4, 5, 6.0)
    assert model.price.ms(4, 5) == pytest.approx(6.0, rel=0.02)
    assert model.price.ms(4, 1) < 1.6
    assert other.price.ms(4, 1) > 5.0


def test_rows_of_catching_up_have_a_price_of_their_own() -> None:
    cost = DraftCost(DraftPrice(0.0, 0.0, 0.5, 0.02))
    for step in range(100):
        rows, depth = (256, 0) if step % 9 == 0 else (0, 1 + step % 4)
        cost.learn(1 if depth else 0, depth, 0.3 + 0.7 * depth + 0.04 * rows, rows)
    assert cost.price.per_row == pytest.approx(0.041, rel=0.1)
    assert cost.price.ms(1, 2) == pytest.approx(1.7, rel=0.1)


def test_a_stall_in_the_first_draft_does_not_make_a_model_dear_for_long() -> None:
    cost = DraftCost(DraftPrice(0.0, 0.0, 0.5))
    cost.learn(1, 2, 900.0)
    assert cost.price.ms(1, 2) <= 5.0
    for _ in range(20):
        cost.learn(1, 2, 1.0)
    assert cost.price.ms(1, 2) < 1.4


def test_what_a_model_computes_without_drafting_is_no_overhead() -> None:
    cost = CostModel(TABLE)
    for step in range(50):
        cost.observe(outcome(step, 0, 0, Proposal(MODEL, 0, 0, 5.0, 100)))
    assert cost.overhead_ms(1, False) == pytest.approx(0.5)
    assert cost.draft_price(MODEL).per_row == pytest.approx(0.05, rel=0.1)


# --- coming and going ---------------------------------------------------------------------------


def serving() -> tuple[AdaptiveController, list[Offer]]:
    controller = AdaptiveController((SUFFIX,), CostModel(TABLE), tails=(SUFFIX,))
    offers = [offer(1, SUFFIX)]
    for step in range(1, 80):
        controller.plan(batch(request(1), step=step), offers)
        score = ShadowScore(SUFFIX, 8, 2, offers[0].features)
        result = RequestOutcome(1, NONE, 0, 0, 1, shadows=(score,))
        controller.observe(StepOutcome(step, 1, 1, 0, 128, 10.0, 0.0, 0.5, (result,)))
    return controller, offers


def test_a_drafter_comes_while_serving_and_the_others_keep_what_was_learned() -> None:
    controller, offers = serving()
    before = controller.acceptance.rates(1, SUFFIX, offers[0].features, 4)
    controller.take_decisions()
    controller.add_drafter(DrafterInfo(MODEL, model=True, rho=0.01))
    assert controller.acceptance.rates(1, SUFFIX, offers[0].features, 4) == before
    asks = request(1, wish=Wish(drafter=MODEL, draft_length=2))
    plan = controller.plan(batch(asks, step=100), [*offers, Offer(1, MODEL, 8)])
    assert plan.allotments == (Allotment(1, MODEL, 2),)
    assert plan.decision is not None
    assert plan.decision.reason == "OPERATOR"
    assert plan.decision.sentence == "The drafter draft_model was loaded."
    names = controller.report()["drafters"]
    assert names == {SUFFIX: True, MODEL: True}


def test_a_drafter_that_is_gone_is_not_allotted_and_forgotten() -> None:
    controller, offers = serving()
    info = DrafterInfo(MODEL, model=True, rho=0.3)
    controller.add_drafter(info)
    fresh = controller.cost.draft_price(MODEL)
    for step in range(100, 150):
        controller.plan(batch(request(1), step=step), [Offer(1, MODEL, 8)])
        controller.observe(outcome(step, 3, 0, Proposal(MODEL, 1, 3, 1.0)))
    assert controller.acceptance.rates(1, MODEL, Offer(1, MODEL, 8).features, 1)[0] < 0.1
    controller.remove_drafter(MODEL)
    plan = controller.plan(batch(request(1), step=150), [Offer(1, MODEL, 8), *offers])
    assert plan.allotments[0].drafter != MODEL
    assert controller.report()["drafters"] == {SUFFIX: True}
    assert [c.drafter for c in controller.what_if(1, 100).candidates if c.drafter == MODEL] == []
    controller.add_drafter(info)
    assert controller.acceptance.evidence(MODEL) == 0.0
    assert controller.acceptance.rates(1, MODEL, Offer(1, MODEL, 8).features, 1)[0] > 0.6
    assert controller.cost.draft_price(MODEL) == fresh


def test_a_pinned_drafter_cannot_go_and_no_name_comes_twice() -> None:
    controller, _ = serving()
    controller.add_drafter(DrafterInfo(MODEL, model=True))
    controller.configure(Setting("pinned", MODEL, 3))
    with pytest.raises(ValueError, match="draft_model is pinned"):
        controller.remove_drafter(MODEL)
    with pytest.raises(ValueError, match="already"):
        controller.add_drafter(DrafterInfo(MODEL, model=True))
    controller.configure(Setting())
    controller.remove_drafter(MODEL)
    with pytest.raises(ValueError, match="not one of"):
        controller.remove_drafter(MODEL)
    with pytest.raises(ValueError, match="not one of"):
        controller.configure(Setting("pinned", MODEL, 3))


NAMES = (SUFFIX, "mtp", MODEL)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["add", "remove", "toggle", "step", "step", "step"]),
            st.sampled_from(NAMES),
            st.integers(0, 300),
        ),
        max_size=60,
    )
)
def test_whoever_comes_and_goes_only_those_that_are_there_and_may_draft_do(
    events: list[tuple[str, str, int]],
) -> None:
    controller = AdaptiveController((), CostModel(TABLE))
    here: dict[str, bool] = {}
    for step, (event, name, number) in enumerate(events):
        if event == "add" and name not in here:
            controller.add_drafter(DrafterInfo(name, name != SUFFIX, name == SUFFIX, 0.05))
            here[name] = True
        elif event == "remove" and name in here:
            controller.remove_drafter(name)
            del here[name]
        elif event == "toggle" and name in here:
            here[name] = not here[name]
            controller.set_enabled(name, here[name])
        elif event == "step":
            views = [request(i, remaining=1 + number) for i in range(2)]
            offers = [
                Offer(i, each, 5, catch_up=number * (i + 1) if each == MODEL else 0)
                for i in range(2)
                for each in NAMES
            ]
            plan = controller.plan(batch(*views, step=step, free_rows=number % 9), offers)
            results = []
            for one in plan.allotments:
                if one.length:
                    assert here.get(one.drafter)
                if one.tail:
                    assert here.get(one.tail)
                assert one.length + one.tail_length <= min(number, 16)
                kept = min(number % 3, one.length)
                results.append(RequestOutcome(one.request, one.drafter, one.length, kept, kept + 1))
            rows = sum(one.length for one in plan.allotments)
            assert rows + sum(one.tail_length for one in plan.allotments) <= number % 9
            controller.observe(
                StepOutcome(step, 2, 2 + rows, 0, 256, 10.0, 0.1, 0.5, tuple(results))
            )
        assert controller.drafters == tuple(name for name in controller.drafters if name in here)
        assert set(controller.drafters) == set(here)
