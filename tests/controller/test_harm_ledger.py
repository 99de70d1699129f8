"""The harm ledger: what serving took, plain decoding would have, and a static choice at least."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from controller.contract import RequestOutcome, Setting, StepOutcome, Wish
from controller.controller import AdaptiveController
from controller.cost import CostModel
from controller.harm_ledger import BLOCK_LOOKS, LOOK_STEPS, WINDOW_BLOCKS, HarmLedger
from controller.policies import PolicyInputs
from controller.policies.switchable import PolicyChoice, Switchable
from controller.static_choices import StaticStep, static_steps
from tests.controller.simulated_engine import (
    BF16,
    World,
    batch,
    choices,
    interpolate,
    offer,
    points,
    request,
    simulate,
)

GRID = (1, 2, 4, 8, 16)


def ledger_of(world: World) -> dict[str, Any]:
    found = world.controller.report()["ledger"]
    assert isinstance(found, dict)
    return found


def fed(ledger: HarmLedger, blocks: int, *steps: StaticStep, drafter: str = "ngram") -> HarmLedger:
    """Blocks of steps that commit 2 tokens in 15 ms, where plain decoding takes 10 ms for one. The
    steps of the looks of each block in turn; the same at every length."""
    for block in range(blocks):
        for _ in range(BLOCK_LOOKS):
            for _ in range(LOOK_STEPS):
                ledger.add(2, 15.0, 20.0, True)
            ledger.look(1.0, 10.0, {drafter: [steps[block % len(steps)]]})
    return ledger


def told(ledger: HarmLedger, span: str = "total") -> Any:
    return ledger.report()[span]


# --- sums -----------------------------------------------------------------------------------------


def test_tokens_and_seconds_add_up_against_the_plain_clock() -> None:
    ledger = HarmLedger((4,))
    for drafting in (True, False, True):
        ledger.add(3 if drafting else 1, 14.0 if drafting else 10.5, 30.0, drafting)
    total = told(ledger)
    assert (total["steps"], total["tokens"]) == (3, 7)
    assert (total["real_s"], total["plain_s"], total["saved_s"]) == (0.0385, 0.09, 0.0515)
    assert total["drafting"] == {"steps": 2, "real_s": 0.028, "plain_s": 0.06}
    assert total["best_static"]["drafter"] == "none"
    assert told(ledger, "window")["steps"] == 0


def test_the_window_forgets_what_the_total_keeps() -> None:
    ledger = fed(HarmLedger((4,)), WINDOW_BLOCKS + 5, StaticStep(2.0, 2.0, 12.0))
    steps = BLOCK_LOOKS * LOOK_STEPS
    assert told(ledger)["steps"] == (WINDOW_BLOCKS + 5) * steps
    window = told(ledger, "window")
    assert window["steps"] == WINDOW_BLOCKS * steps
    assert window["tokens"] == 2 * window["steps"]
    # 6 ms a token in place of 10: 8 ms of each step's 20
    assert window["best_static"]["saved_s"] == pytest.approx(0.008 * window["steps"])
    assert told(ledger)["best_static"]["saved_s"] == pytest.approx(0.008 * told(ledger)["steps"])


def test_a_block_counts_while_it_goes_on() -> None:
    ledger = fed(HarmLedger((4,)), 2, StaticStep(2.0, 2.0, 12.0))
    for _ in range(10):
        ledger.add(2, 15.0, 20.0, True)
    ledger.look(1.0, 10.0, {"ngram": [StaticStep(2.0, 2.0, 12.0)]})
    assert told(ledger)["best_static"]["saved_s"] == pytest.approx(0.008 * told(ledger)["steps"])


# --- the bound ------------------------------------------------------------------------------------


def test_the_bound_is_the_mean_less_its_standard_error_over_blocks() -> None:
    ledger = fed(HarmLedger((4,)), 4, StaticStep(2.0, 2.0, 12.0), StaticStep(2.0, 2.0, 16.0))
    (best,) = [one for one in told(ledger)["static"] if one["drafter"] == "ngram"]
    plain = 20.0 * BLOCK_LOOKS * LOOK_STEPS / 1000
    saved = [0.4 * plain, 0.2 * plain, 0.4 * plain, 0.2 * plain]
    mean = sum(saved) / 4
    error = math.sqrt(4 * sum((one - mean) ** 2 for one in saved) / 3)
    assert best["saved_s"] == pytest.approx(sum(saved), abs=1e-3)
    assert best["low_s"] == pytest.approx(sum(saved) - error, abs=1e-3)


def test_the_bound_rests_on_the_tokens_that_are_sure() -> None:
    ledger = fed(HarmLedger((4,)), 4, StaticStep(2.0, 1.5, 12.0))
    best = told(ledger)["best_static"]
    plain = told(ledger)["plain_s"]
    assert best["saved_s"] == pytest.approx(0.4 * plain, abs=1e-3)
    assert best["low_s"] == pytest.approx(0.2 * plain, abs=1e-3)


def test_nothing_is_claimed_before_two_blocks() -> None:
    ledger = fed(HarmLedger((4,)), 1, StaticStep(2.0, 2.0, 12.0))
    assert [one["drafter"] for one in told(ledger)["static"]] == ["none"]


def test_the_best_static_choice_is_none_where_drafting_loses() -> None:
    ledger = fed(HarmLedger((4,)), 4, StaticStep(1.1, 1.1, 14.0))
    total = told(ledger)
    assert total["best_static"] == {
        "drafter": "none",
        "draft_length": 0,
        "saved_s": 0.0,
        "low_s": 0.0,
    }
    assert [one["drafter"] for one in total["static"]] == ["none", "ngram"]
    assert total["static"][1]["low_s"] < 0.0


def test_a_drafter_counts_only_while_it_is_there_and_is_forgotten_with_its_name() -> None:
    ledger = fed(HarmLedger((4,)), 2, StaticStep(2.0, 2.0, 12.0))
    fed(ledger, 2, StaticStep(2.0, 2.0, 8.0), drafter="mtp")
    saved = {one["drafter"]: one["saved_s"] for one in told(ledger)["static"]}
    half = told(ledger)["plain_s"] / 2
    assert saved["ngram"] == pytest.approx(0.4 * half, abs=1e-3)
    assert saved["mtp"] == pytest.approx(0.6 * half, abs=1e-3)
    ledger.forget("mtp")
    for span in ("total", "window"):
        assert {one["drafter"] for one in told(ledger, span)["static"]} == {"none", "ngram"}


def test_a_drafter_that_comes_within_a_block_saves_from_then_on() -> None:
    ledger, step = HarmLedger((4,)), [StaticStep(2.0, 2.0, 12.0)]
    for look in range(2 * BLOCK_LOOKS):
        for _ in range(LOOK_STEPS):
            ledger.add(2, 15.0, 20.0, True)
        late = look % BLOCK_LOOKS >= BLOCK_LOOKS // 2
        ledger.look(1.0, 10.0, {"ngram": step, **({"mtp": step} if late else {})})
    saved = {one["drafter"]: one["saved_s"] for one in told(ledger)["static"]}
    assert saved["mtp"] == pytest.approx(saved["ngram"] / 2)


def test_memory_is_bounded_by_the_window() -> None:
    ledger = fed(HarmLedger((4,)), 3 * WINDOW_BLOCKS, StaticStep(2.0, 2.0, 12.0))
    assert len(ledger._window) == WINDOW_BLOCKS


# --- static steps ---------------------------------------------------------------------------------


def test_a_static_step_drafts_for_all_that_have_an_offer_and_decodes_the_rest_plainly() -> None:
    cost = CostModel(points(BF16, (3,)))
    drafted = RequestOutcome(1, "ngram", 2, 0, 1)
    for step in range(50):
        cost.observe(StepOutcome(step, 3, 6, 0, 384, 11.7, 0.2, 2.0, (drafted,) * 3))
    assert cost.overhead_ms(3, True) > 1.0
    plain = StaticStep(3.0, 3.0, 12.0)
    found = static_steps(
        ["ngram", "mtp"],
        choices([0.8, 0.6], [0.5]),
        plain,
        384,
        100,
        GRID,
        cost,
        lambda name: 1e9,
    )
    assert found["mtp"] == [plain] * len(GRID)
    one, two, four, *_ = found["ngram"]
    assert one.tokens == pytest.approx(3.0 + 0.8 + 0.5)
    assert two.tokens == four.tokens == pytest.approx(3.0 + 0.8 + 0.6 + 0.5)
    assert two.ms == pytest.approx(cost.verify_ms(3, 6, 384) + cost.overhead_ms(3, True))
    assert one.low == pytest.approx(one.tokens, rel=1e-3)


def test_what_little_was_seen_of_counts_for_little() -> None:
    cost = CostModel(points(BF16, (1,)))
    plain = StaticStep(1.0, 1.0, 11.0)

    def low(evidence: float) -> float:
        offered = choices([0.7, 0.5])
        found = static_steps(["ngram"], offered, plain, 128, 100, GRID, cost, lambda name: evidence)
        return found["ngram"][1].low

    assert low(0.0) == pytest.approx(1.0 + 1.2 * (1 - math.sqrt(0.3 / 0.7)))
    assert low(0.0) < low(10.0) < low(1000.0) < 2.2


def test_a_step_without_room_is_plain() -> None:
    plain = StaticStep(1.0, 1.0, 11.0)
    offered, cost = choices([0.7]), CostModel(points(BF16, (1,)))
    found = static_steps(["ngram"], offered, plain, 128, 0, GRID, cost, lambda name: 1.0)
    assert found["ngram"] == [plain] * len(GRID)


# --- in the controller ----------------------------------------------------------------------------


@pytest.mark.parametrize(("size", "match", "length"), [(1, 0.5, 8), (4, 1.0, 2)])
def test_what_a_static_choice_would_save_is_what_it_saves_when_it_is_pinned(
    size: int, match: float, length: int
) -> None:
    world = simulate(size=size, rates=lambda step: (0.6, 0.8), match=lambda step: match).run(2600)
    ledger = ledger_of(world)["total"]
    (found,) = [one for one in ledger["static"] if one["draft_length"] == length]
    pinned = simulate(size=size, rates=lambda step: (0.6, 0.8), match=lambda step: match, seed=1)
    pinned.controller.configure(Setting("pinned", "ngram", length))
    pinned.run(2000)
    plain_ms = (interpolate(BF16, size) + 0.6) / size
    truth = 1.0 - pinned.ms / pinned.tokens / plain_ms
    assert found["saved_s"] / ledger["plain_s"] == pytest.approx(truth, abs=0.05)
    assert truth - 0.15 < found["low_s"] / ledger["plain_s"] < truth + 0.01


def test_the_controller_is_level_with_the_best_static_choice_on_steady_text() -> None:
    total = ledger_of(simulate(size=4, rates=lambda step: (0.7, 0.8)).run(2600))["total"]
    assert total["steps"] == 2600
    assert total["best_static"]["drafter"] == "ngram"
    assert total["saved_s"] > total["best_static"]["low_s"] > 0.5 * total["saved_s"]


def test_the_plain_clock_and_the_real_one_are_those_of_the_world() -> None:
    world = simulate(size=2, rates=lambda step: (0.7, 0.8)).run(1000)
    total = ledger_of(world)["total"]
    assert total["tokens"] == world.tokens
    assert total["real_s"] == pytest.approx(world.ms / 1000, rel=0.002)
    plain = world.tokens / 2 * (interpolate(BF16, 2) + 0.6) / 1000
    assert total["plain_s"] == pytest.approx(plain, rel=0.03)


def test_text_without_drafts_saves_and_loses_next_to_nothing() -> None:
    total = ledger_of(simulate(size=4, rates=lambda step: (0.02, 0.1)).run(2500))["total"]
    assert abs(total["saved_s"]) < 0.02 * total["plain_s"]
    assert total["best_static"]["drafter"] == "none"


def test_the_totals_have_the_three_clocks() -> None:
    world = simulate(rates=lambda step: (0.7, 0.8)).run(1200)
    totals, total = world.controller.harm_totals(), ledger_of(world)["total"]
    assert (totals.tokens, totals.real_s) == (total["tokens"], total["real_s"])
    assert totals.plain_s == total["plain_s"]
    static_s = total["plain_s"] - total["best_static"]["low_s"]
    assert totals.static_s == pytest.approx(static_s, abs=2e-4)  # each is rounded
    assert totals.real_s < totals.static_s < totals.plain_s


def test_a_policy_without_a_ledger_has_no_totals() -> None:
    inputs = PolicyInputs(("ngram",), CostModel(points(BF16, (1,))))
    controller = Switchable(inputs, PolicyChoice())
    assert controller.harm_totals() is not None
    controller.switch(PolicyChoice(ab_policy="off"))
    assert controller.harm_totals() is not None
    controller.switch(PolicyChoice("fixed"))
    assert controller.harm_totals() is None


def test_steps_that_somebody_else_chose_or_that_prefill_shared_are_left_out() -> None:
    controller = AdaptiveController(["ngram"], CostModel(points(BF16, (1,))))
    forced = request(1, wish=Wish(draft_length=4))
    for step, (view, prefill) in enumerate([(forced, 0), (request(1), 8), (request(1), 0)]):
        plan = controller.plan(batch(view, step=step), [offer(1)])
        (one,) = plan.allotments
        result = RequestOutcome(1, one.drafter, one.length, 0, 1)
        controller.observe(
            StepOutcome(step, 1, 1 + one.length, prefill, 128, 12.0, 0.1, 0.5, (result,), ())
        )
    ledger = controller.report()["ledger"]
    assert isinstance(ledger, dict)
    assert ledger["total"]["steps"] == 1


def test_the_report_is_json_and_a_removed_drafter_leaves_it() -> None:
    world = simulate(rates=lambda step: (0.7, 0.8)).run(1200)
    assert json.loads(json.dumps(ledger_of(world))) == ledger_of(world)
    world.controller.remove_drafter("ngram")
    assert [one["drafter"] for one in ledger_of(world)["total"]["static"]] == ["none"]
