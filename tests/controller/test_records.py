"""What decisions say: alternatives, inputs and reasons are those of the plan they belong to."""

from __future__ import annotations

import dataclasses

import pytest

from controller.averages import Sample
from controller.contract import (
    DrafterInfo,
    Features,
    RequestOutcome,
    Setting,
    ShadowScore,
    StepOutcome,
    Wish,
)
from controller.controller import AdaptiveController
from controller.cost import CostModel
from controller.regime import Regime
from tests.controller.simulated_engine import (
    BF16,
    World,
    batch,
    offer,
    points,
    request,
    simulate,
)

MODELS = frozenset({"mtp"})


def opened(world: World) -> list[str]:
    found = {one.id: one for one in world.controller.take_decisions()}
    return [one.reason for one in found.values()]


# --- alternatives ---------------------------------------------------------------------------------


def test_the_alternatives_of_a_pinned_plan_are_what_they_would_give() -> None:
    """Plain decoding beside a pinned D of 8 that loses: not the pinned plan under another name."""
    world = simulate(rates=lambda step: (0.1, 0.3), cost=lambda rows, step: 4.0 * rows).run(300)
    world.controller.configure(Setting("pinned", "ngram", 8))
    world.run(80)
    (last,) = [one for one in world.controller.take_decisions() if one.reason == "OPERATOR"]
    goodput = {(one.drafter, one.draft_length): one.goodput for one in last.candidates}
    assert goodput["none", 0.0] > 1.5 * goodput["ngram", 8.0]
    assert goodput["none", 0.0] > goodput["ngram", 2.0] > goodput["ngram", 4.0]
    assert last.runner_up is not None
    assert last.runner_up.drafter == "none"
    assert last.margin < -0.3


def test_a_plan_beyond_the_limit_is_priced_as_it_is() -> None:
    """Four requests draft; then more decode than may: the decision describes the plain plan."""
    world = simulate(size=4, rates=lambda step: (0.8, 0.9))
    world.controller.configure(Setting(max_drafting_requests=4))
    world.run(300)
    drafting = world.controller.report()["recent"]
    world.controller.take_decisions()
    world.size = 8
    world.run(40)
    (last,) = [one for one in world.controller.take_decisions() if one.reason == "REQUEST_LIMIT"]
    assert (last.drafter, last.draft_length) == ("none", 0.0)
    assert last.inputs["depth"] == 0.0
    assert last.inputs["batch"] == 8
    assert last.candidates[0].predicted_tokens == pytest.approx(8.0)
    assert isinstance(drafting, dict)
    world.size = 4
    world.run(200)
    reasons = [one.reason for one in world.controller.take_decisions()]
    assert "MATCH" not in reasons


# --- predicted and measured steps -----------------------------------------------------------------


def test_a_decision_says_what_a_step_gives_and_takes_and_then_what_it_did() -> None:
    world = simulate(rates=lambda step: (0.8, 0.9)).run(600)
    world.controller.configure(Setting("pinned", "ngram", 4))
    world.run(400)
    (last,) = [one for one in world.controller.take_decisions() if one.reason == "OPERATOR"]
    assert last.predicted_tokens is not None
    assert last.predicted_ms is not None
    assert last.predicted_goodput == pytest.approx(1000 * last.predicted_tokens / last.predicted_ms)
    assert last.realised.steps == 400
    assert last.realised.tokens_per_step == pytest.approx(last.predicted_tokens, rel=0.15)
    assert last.realised.ms_per_step == pytest.approx(last.predicted_ms, rel=0.1)


# --- reasons --------------------------------------------------------------------------------------


def regime(drafter: str, first: float = 0.3, row_cost: float = 0.5, size: int = 1) -> Regime:
    """A regime of plain decoding that has become one of drafting with `drafter`, while acceptance,
    the price of a row or the batch moved to these."""
    found = Regime(("ngram", "mtp"), (1,))
    sample = Sample(
        requests=1,
        own=1,
        context=10.0,
        forced=0,
        blocked=0,
        first=0.3,
        row_cost=0.5,
        plain_ms=10.0,
        plain_tokens=1.0,
        tokens=1.0,
        ms=10.0,
        offers={"ngram": 1},
        offered=1,
    )
    found.update(sample)
    found.enter("none", 0.0, 0.0)
    drafts = {drafter: (1, 3)}
    later = dataclasses.replace(
        sample, drafts=drafts, first=first, row_cost=row_cost, requests=size
    )
    for _ in range(400):
        found.update(later)
    return found


def test_a_model_has_no_shadow_that_could_win() -> None:
    for drafter, code in (("ngram", "SHADOW_WIN"), ("mtp", "ACCEPTANCE_UP")):
        assert regime(drafter, first=0.7).reason((), False, MODELS) == code


def test_where_most_requests_decide_for_themselves_it_is_their_wish() -> None:
    """Benchmark arms do: all of them name a drafter, and the next ones another."""
    world = simulate()
    views = [request(1, wish=Wish(drafter="ngram", draft_length=4))]
    for step in range(1, 400):
        wished = step > 200
        view = views[0] if wished else request(1, wish=Wish(enabled=False))
        plan = world.controller.plan(batch(view, step=step), [offer(1)] if wished else [])
        one = plan.allotments[0]
        result = RequestOutcome(1, one.drafter, one.length, 0, 1)
        world.controller.observe(
            StepOutcome(step, 1, 1 + one.length, 0, 100, 12.0, 0.1, 0.5, (result,), ())
        )
        world.clock.now += 0.1
    assert opened(world)[-1] == "WISH"


def test_a_probe_is_the_reason_only_of_the_drafter_that_it_tried() -> None:
    found = regime("mtp", first=0.7)
    assert found.reason(("mtp",), False, MODELS) == "PROBE"
    assert found.reason(("ngram",), False, MODELS) == "ACCEPTANCE_UP"


def test_a_price_that_falls_with_the_load_is_no_news_from_a_probe() -> None:
    assert regime("mtp", row_cost=0.2).reason(("mtp",), False, MODELS) == "PROBE"
    alone = regime("mtp", row_cost=0.2, size=4)
    assert alone.reason(("mtp",), False, MODELS) == "PRICE_DOWN"


def test_the_harm_guard_is_not_the_reason_of_what_comes_long_after() -> None:
    world = simulate(match=lambda step: 0.9 if step > 1200 else 0.0).run(200)
    world.controller._journal.guard_ended()
    world.run(1400)
    reasons = [one.reason for one in world.controller.take_decisions()]
    assert "REARMED" not in reasons
    assert "MATCH" in reasons


# --- what steps that ask nobody say ---------------------------------------------------------------


def offered(controller: AdaptiveController) -> float:
    recent = controller.report()["recent"]
    assert isinstance(recent, dict)
    return float(recent["offered ngram"])


def test_what_a_drafter_offers_outlives_the_mode_off() -> None:
    """So that what_if says what drafting would bring if it were on."""
    world = simulate(rates=lambda step: (0.8, 0.9)).run(300)
    before = world.controller.what_if(1, 200).best
    world.controller.configure(Setting("off"))
    world.run(300)
    assert offered(world.controller) > 0.5
    after = world.controller.what_if(1, 200).best
    assert (after.drafter, after.draft_length) == (before.drafter, before.draft_length)


def test_a_step_that_asked_one_wish_alone_is_not_one_that_looked() -> None:
    """Nothing pays here, so the controller rests between looks, while one request drafts by its
    own wish in every step."""
    table = {rows: 4.0 * rows for rows in range(1, 65)}
    controller = AdaptiveController(["ngram"], CostModel(points(table, (2,))))
    views = [request(1), request(2, wish=Wish(draft_length=2))]
    looked = list[bool]()
    for step in range(1, 600):
        looks = controller.attentive
        looked.append(looks)
        offers = [offer(2)] + ([offer(1)] if looks else [])
        plan = controller.plan(batch(*views, step=step), offers)
        rows = 2 + sum(one.length for one in plan.allotments)
        shadow = (ShadowScore("ngram", 4, 0, Features(3, 0, "prompt")),) if looks else ()
        results = [
            RequestOutcome(one.request, one.drafter, one.length, 0, 1, shadows=shadow)
            for one in plan.allotments
        ]
        beside = 2.5 if looks else 0.5
        controller.observe(
            StepOutcome(step, 2, rows, 0, 400, 4.0 * rows, 0.0, beside, tuple(results), ())
        )
    assert sum(looked[300:]) < 100
    assert offered(controller) == pytest.approx(1.0)


def test_an_arm_of_a_comparison_is_described_by_its_own_requests() -> None:
    controller = AdaptiveController(["ngram"], CostModel(points(BF16, (8,))))
    views = [request(number) for number in range(8)]
    elsewhere = frozenset(range(1, 8))
    for step in range(1, 400):
        view = dataclasses.replace(batch(*views, step=step), elsewhere=elsewhere)
        plan = controller.plan(view, [offer(0)])
        one = plan.allotments[0]
        result = RequestOutcome(0, one.drafter, one.length, one.length, one.length + 1)
        controller.observe(
            StepOutcome(step, 8, 8 + one.length, 0, 800, 10.0, 0.1, 0.5, (result,), ())
        )
    current = controller.report()["current"]
    assert isinstance(current, dict)
    assert current["drafter"] == "ngram"


# --- what is kept ---------------------------------------------------------------------------------


def test_the_measured_price_of_a_drafter_outlives_that_it_is_announced_again() -> None:
    cost = CostModel(points(BF16))
    cost.expect("mtp", 0.1)
    first = cost.draft_price("mtp")
    controller = AdaptiveController(["ngram"], cost)
    controller.add_drafter(DrafterInfo("mtp", model=True, rho=0.9))
    assert cost.draft_price("mtp") == first
    controller.remove_drafter("mtp")
    controller.add_drafter(DrafterInfo("mtp", model=True, rho=0.9))
    assert cost.draft_price("mtp").per_depth > 5 * first.per_depth


# --- first calls that stall -----------------------------------------------------------------------


def test_a_first_draft_that_stalls_does_not_keep_a_good_drafter_out() -> None:
    """Its first call compiles for half a second."""
    world = simulate(rates=lambda step: (0.8, 0.9))
    honest = world.draft_ms
    world.draft_ms = 500.0
    world.one()
    world.draft_ms = honest
    world.run(400)
    assert sum(one.length for plan in world.plans[-100:] for one in plan.allotments) > 300
