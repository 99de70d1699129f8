"""What every policy must obey, whatever its rule: the contract, checked on random histories."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.contract import (
    NONE,
    BatchView,
    Controller,
    DrafterInfo,
    Features,
    Offer,
    Plan,
    RequestOutcome,
    RequestView,
    Setting,
    ShadowScore,
    StepOutcome,
    Wish,
)
from controller.cost import CostModel
from controller.policies import NAMES, PolicyInputs
from controller.policies.switchable import PolicyChoice, Switchable
from controller.precedence import rule_for
from controller.schedule import at_batch
from tests.controller.simulated_engine import BF16, Clock, points

DRAFTERS = ("ngram", "suffix", "mtp")
LARGEST = 8
PAIRS = [("ema_tiers", "ucb"), ("adaptive", "fixed"), ("margin_verify", "off")]
CHOICES = [
    *(PolicyChoice(name) for name in NAMES),
    *(PolicyChoice(a, ab_policy=b, ab_share=0.5) for a, b in PAIRS),
]
IDS = [f"{one.policy}/{one.ab_policy}".rstrip("/") for one in CHOICES]
ORDERLESS = [one for one in CHOICES if "adaptive" not in (one.policy, one.ab_policy)]


@dataclass(frozen=True)
class Turn:
    """One step: the operator's acts before it, and the batch."""

    requests: tuple[RequestView, ...]
    offers: tuple[Offer, ...]
    free_rows: int
    prefill_rows: int
    setting: Setting
    disabled: frozenset[str]
    accepted: int
    seed: int


SETTINGS = [
    Setting(max_draft_length=LARGEST),
    Setting(max_draft_length=2),
    Setting("off", max_draft_length=LARGEST),
    Setting("pinned", "suffix", None, LARGEST),
    Setting("pinned", "ngram", 5, LARGEST),
    Setting("pinned", NONE, None, LARGEST),
    Setting("pinned", "mtp", None, LARGEST, ((2, 6), (4, 1))),
    Setting(max_draft_length=LARGEST, max_drafting_requests=3),
]
WISHES = [
    Wish(),
    Wish(),
    Wish(enabled=False),
    Wish(drafter="suffix"),
    Wish(drafter="mtp", draft_length=3),
    Wish(draft_length=2),
    Wish(draft_length=0),
    Wish(drafter=NONE),
]


@st.composite
def turns(draw: st.DrawFn) -> Turn:
    size = draw(st.integers(1, 6))
    numbers = draw(st.lists(st.integers(0, 40), min_size=size, max_size=size, unique=True))
    rng = random.Random(draw(st.integers(0, 10_000)))
    plain = draw(st.booleans())
    requests = tuple(
        RequestView(
            number,
            "",
            rng.randrange(1, 500),
            rng.choice([1, 2, 3, 100]),
            0.0,
            False,
            Wish() if plain else rng.choice(WISHES),
        )
        for number in numbers
    )
    offers = [
        Offer(one.id, name, rng.choice([1, 3, 16]), Features(rng.choice([0, 2, 9]), 1, "prompt"))
        for one in requests
        for name in DRAFTERS
        if rng.random() < 0.8
    ]
    rng.shuffle(offers)
    return Turn(
        requests,
        tuple(offers),
        rng.choice([0, 3, 512, 512]),
        rng.choice([0, 0, 64]),
        draw(st.sampled_from(SETTINGS)),
        draw(st.sampled_from([frozenset[str](), frozenset(["ngram"]), frozenset(["mtp"])])),
        draw(st.integers(0, LARGEST)),
        draw(st.integers(0, 1000)),
    )


def made(choice: PolicyChoice, clock: Callable[[], float] | None = None) -> Switchable:
    """With two drafters from the start and a model loaded afterwards, as an engine does."""
    inputs = PolicyInputs(
        DRAFTERS[:2],
        CostModel(points(BF16, (1, 4))),
        tails=DRAFTERS[:2],
        setting=SETTINGS[0],
        clock=clock or Clock(),
    )
    subject = Switchable(inputs, choice)
    subject.add_drafter(DrafterInfo("mtp", model=True, rho=0.1))
    return subject


def play(subject: Controller, turn: Turn, step: int, order: Sequence[int] | None = None) -> Plan:
    """One turn, with the requests in another order where one is given."""
    subject.configure(turn.setting)
    for name in DRAFTERS:
        subject.set_enabled(name, name not in turn.disabled)
    requests = [turn.requests[i] for i in order or range(len(turn.requests))]
    offers = list(turn.offers)  # also of disabled drafters
    if order is not None:
        offers.reverse()
    batch = BatchView(step, requests, turn.prefill_rows, turn.free_rows)
    plan = subject.plan(batch, offers)
    subject.observe(outcome(plan, turn, step))
    return plan


def outcome(plan: Plan, turn: Turn, step: int) -> StepOutcome:
    results: list[RequestOutcome] = []
    for one in plan.allotments:
        drafted = one.length + one.tail_length
        kept = min(drafted, (turn.accepted + one.request) % (LARGEST + 1))
        shadow = ShadowScore("ngram", 4, min(kept, 4), Features(2, 1, "prompt"))
        results.append(
            RequestOutcome(
                one.request,
                one.drafter,
                drafted,
                kept,
                kept + 1,
                shadows=(shadow,) if one.drafter != "ngram" else (),
            )
        )
    return StepOutcome(
        step,
        len(results),
        sum(1 + one.drafted for one in results),
        turn.prefill_rows,
        sum(one.context_len for one in turn.requests),
        10.0 + turn.seed / 100.0,
        0.2,
        0.5,
        tuple(results),
    )


def check(plan: Plan, turn: Turn) -> None:
    """Everything that an allotment must obey."""
    offered = {(one.request, one.drafter): one for one in turn.offers}
    setting = at_batch(turn.setting, len(turn.requests))
    assert [one.request for one in plan.allotments] == [one.id for one in turn.requests]
    rows = 0
    for one, request in zip(plan.allotments, turn.requests, strict=True):
        whole = one.length + one.tail_length
        rows += whole
        assert (one.drafter == NONE) == (one.length == 0)
        rule = rule_for(request.wish, setting)
        cap = min(request.remaining - 1, setting.max_draft_length)
        assert 0 <= whole <= max(cap, 0)
        if rule.length == 0:
            assert whole == 0
        if one.length:
            offer = offered[request.id, one.drafter]
            assert one.length <= offer.max_length
            assert one.drafter not in turn.disabled
            assert rule.drafter in (None, one.drafter)
        if rule.length:
            assert whole <= rule.length
            usable = [
                min(rule.length, cap, offer.max_length)
                for (number, name), offer in offered.items()
                if number == request.id
                and name not in turn.disabled
                and rule.drafter in (None, name)
            ]
            if usable and turn.free_rows > 100:
                assert whole in usable
    assert rows <= max(turn.free_rows, 0)


@pytest.mark.parametrize("choice", CHOICES, ids=IDS)
@given(st.lists(turns(), min_size=1, max_size=12))
@settings(max_examples=15, deadline=None)
def test_every_plan_obeys_limits_wishes_pins_caps_and_room(
    choice: PolicyChoice, history: list[Turn]
) -> None:
    subject = made(choice)
    for step, turn in enumerate(history, 1):
        check(play(subject, turn, step), turn)


@pytest.mark.parametrize("choice", ORDERLESS, ids=lambda one: f"{one.policy}/{one.ab_policy}")
@given(st.lists(turns(), min_size=1, max_size=12))
@settings(max_examples=15, deadline=None)
def test_the_order_of_the_batch_and_of_the_offers_does_not_count(
    choice: PolicyChoice, history: list[Turn]
) -> None:
    one, other = made(choice), made(choice)
    for step, turn in enumerate(history, 1):
        order = list(range(len(turn.requests)))
        random.Random(turn.seed).shuffle(order)
        straight = play(one, turn, step)
        shuffled = play(other, turn, step, order)
        assert sorted(straight.allotments, key=lambda a: a.request) == sorted(
            shuffled.allotments, key=lambda a: a.request
        )


@pytest.mark.parametrize("choice", CHOICES, ids=IDS)
@given(st.lists(turns(), min_size=1, max_size=8))
@settings(max_examples=10, deadline=None)
def test_views_are_plain_json_and_decisions_carry_a_reason_in_words(
    choice: PolicyChoice, history: list[Turn]
) -> None:
    subject = made(choice)
    seen: set[str] = set()
    for step, turn in enumerate(history, 1):
        play(subject, turn, step)
        for one in subject.take_decisions():
            json.dumps(asdict(one))
            seen.add(one.id)
            assert one.sentence.endswith(".")
            assert one.reason
            assert 0.0 <= one.draft_length <= LARGEST
            assert one.candidates[0].drafter == one.drafter
            assert one.predicted_goodput == one.candidates[0].goodput > 0.0
            assert set(one.requests) <= {request.id for t in history for request in t.requests}
        json.dumps(subject.report())
        assert subject.what_if(2, 100).best.goodput > 0.0
        for request in turn.requests:
            subject.forget(request.id)
    assert seen


@pytest.mark.parametrize("choice", CHOICES, ids=IDS)
def test_a_drafter_that_left_is_never_allotted_and_may_come_back(choice: PolicyChoice) -> None:
    subject = made(choice)
    requests = tuple(RequestView(i, "", 100, 100, 0.0, False) for i in range(4))
    offers = tuple(Offer(i, name, 8, Features(5, 4, "")) for i in range(4) for name in DRAFTERS)
    turn = Turn(requests, offers, 512, 0, SETTINGS[0], frozenset(), 8, 0)
    for step in range(1, 40):
        play(subject, turn, step)
    for name in ("mtp", "ngram", "suffix"):
        subject.remove_drafter(name)
        with pytest.raises(ValueError, match="is not one of"):
            subject.remove_drafter(name)
        with pytest.raises(ValueError, match="is not one of"):
            subject.set_enabled(name, True)
    plan = subject.plan(BatchView(40, requests, 0, 512), offers)
    assert {one.drafter for one in plan.allotments} == {NONE}
    subject.add_drafter(DrafterInfo("suffix"))
    with pytest.raises(ValueError, match="by the name 'suffix' already"):
        subject.add_drafter(DrafterInfo("suffix"))
    plan = subject.plan(BatchView(41, requests, 0, 512), offers)
    assert {one.drafter for one in plan.allotments} <= {NONE, "suffix"}


@pytest.mark.parametrize("choice", CHOICES, ids=IDS)
def test_a_pinned_drafter_cannot_leave(choice: PolicyChoice) -> None:
    subject = made(choice)
    subject.configure(Setting("pinned", "ngram", 2, LARGEST))
    with pytest.raises(ValueError, match="ngram is pinned"):
        subject.remove_drafter("ngram")
    with pytest.raises(ValueError, match="'other' is not one of"):
        subject.configure(Setting("pinned", "other", 2, LARGEST))
    assert subject.setting.drafter == "ngram"


@pytest.mark.parametrize("choice", CHOICES, ids=IDS)
def test_an_empty_batch_and_an_unknown_outcome_are_no_matter(choice: PolicyChoice) -> None:
    subject = made(choice)
    assert subject.plan(BatchView(1, (), 0, 512), ()) == Plan(())
    turn = Turn(
        (RequestView(1, "", 10, 10, 0.0, False),), (), 512, 0, SETTINGS[0], frozenset(), 0, 0
    )
    plan = play(subject, turn, 2)
    subject.observe(replace(outcome(plan, turn, 2), step=99))
    subject.forget(12345)


def test_room_is_shared_level_by_level_and_the_rest_goes_to_the_oldest() -> None:
    subject = made(PolicyChoice("fixed", "draft_length=4 drafter=ngram"))
    requests = tuple(RequestView(i, "", 100, 100, 0.0, False) for i in (7, 3, 5))
    offers = [Offer(i, "ngram", 8) for i in (7, 3, 5)]
    plan = subject.plan(BatchView(1, requests, 0, 7), offers)
    assert [one.length for one in plan.allotments] == [2, 3, 2]


def test_wishes_take_their_room_first() -> None:
    subject = made(PolicyChoice("fixed", "draft_length=4 drafter=ngram"))
    wish = Wish(drafter="ngram", draft_length=6)
    requests = (
        RequestView(1, "", 100, 100, 0.0, False),
        RequestView(2, "", 100, 100, 0.0, False, wish),
    )
    plan = subject.plan(BatchView(1, requests, 0, 7), [Offer(i, "ngram", 8) for i in (1, 2)])
    assert [one.length for one in plan.allotments] == [1, 6]
