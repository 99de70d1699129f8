"""The fast plan is the exact one: compared with a slow and plain reference on random worlds."""

from __future__ import annotations

import random

import pytest

from controller.contract import (
    BatchView,
    CostPoint,
    Features,
    Offer,
    Proposal,
    RequestOutcome,
    RequestView,
    Setting,
    StepOutcome,
    Wish,
)
from controller.controller import ROW_COST_ROWS, AdaptiveController
from controller.cost import CostModel
from tests.controller.reference import best_goodput, chosen, goodput, planned

DRAFTERS = ("ngram", "suffix", "corpus")
SOURCES = ("prompt", "output", "global")


class World:
    """A controller that learned from some random steps, and further random steps to plan."""

    def __init__(self, seed: int, size: int, drafters: int) -> None:
        self.random = random.Random(seed)
        self.size, self.drafters = size, DRAFTERS[:drafters]
        draw = self.random.uniform
        slope, jump = draw(0.02, 1.5), draw(0.0, 4.0)
        points = [
            CostPoint(n, n + extra, 128, 8.0 + slope * (n + extra) + jump * ((n + extra) // 16))
            for n in {1, size}
            for extra in (0, 1, 2, 4, 7, 8, 15, 16, 40, 100)
        ]
        self.controller = AdaptiveController(self.drafters, CostModel(points))
        self.rates = {name: (draw(0.1, 0.9), draw(0.3, 0.95)) for name in self.drafters}
        self.prices = {name: (draw(0.0, 0.5), draw(0.0, 0.05)) for name in self.drafters}
        self.step = 0
        for _ in range(40):
            self.observe()

    def inputs(self) -> tuple[list[RequestView], list[Offer]]:
        draw = self.random
        requests = [
            RequestView(i, "", draw.randint(10, 900), draw.randint(1, 40), 0.0, False)
            for i in range(self.size)
        ]
        offers = [
            Offer(
                one.id,
                name,
                draw.randint(1, 16),
                Features(draw.randint(0, 20), draw.randint(0, 5), draw.choice(SOURCES)),
            )
            for name in self.drafters
            for one in requests
            if draw.random() < 0.8
        ]
        return requests, offers

    def observe(self) -> None:
        requests, offers = self.inputs()
        self.step += 1
        plan = self.controller.plan(BatchView(self.step, requests, 0, 128), offers)
        features = {(one.request, one.drafter): one.features for one in offers}
        results: list[RequestOutcome] = []
        drafts: dict[str, int] = {name: 0 for name in self.drafters}
        for one in plan.allotments:
            kept = 0
            if one.length:
                first, deeper = self.rates[one.drafter]
                while kept < one.length and self.random.random() < (deeper if kept else first):
                    kept += 1
                drafts[one.drafter] += 1
            found = features.get((one.request, one.drafter), Features())
            results.append(
                RequestOutcome(one.request, one.drafter, one.length, kept, kept + 1, features=found)
            )
        rows = self.size + sum(one.length for one in plan.allotments)
        context = sum(one.context_len for one in requests)
        ms = self.controller.cost.verify_ms(self.size, rows, context) * self.random.gauss(1.0, 0.05)
        proposals = tuple(
            Proposal(name, n, 4, self.prices[name][0] + n * self.prices[name][1])
            for name, n in drafts.items()
            if n
        )
        beside = sum(one.ms for one in proposals)
        self.controller.observe(
            StepOutcome(
                self.step, self.size, rows, 0, context, ms, beside, 0.4, tuple(results), proposals
            )
        )


@pytest.mark.parametrize(("size", "drafters"), [(1, 1), (1, 2), (2, 3), (5, 2), (16, 2), (40, 3)])
def test_the_plan_is_as_good_as_the_slow_reference(size: int, drafters: int) -> None:
    compared = drafting = 0
    for seed in range(3):
        world = World(seed, size, drafters)
        controller = world.controller
        controller.configure(Setting(max_draft_length=15))
        for _ in range(6):
            requests, offers = world.inputs()
            room = world.random.choice((0, 3, 20, 128))
            context = sum(one.context_len for one in requests)
            verify_ms, row_ms = controller.cost.row_ms(size, ROW_COST_ROWS * size, context)
            plain_ms = verify_ms + controller.cost.overhead_ms(size, False)
            price = controller._pricing.at(size, plain_ms, row_ms)
            choice = chosen(controller, requests, offers, price)
            choice = {
                i: one for i, one in choice.items() if i not in controller._request_guard.down
            }
            best = best_goodput(controller, requests, choice, room)
            world.step += 1
            probes = controller._probing.report()["count"]
            plan = controller.plan(BatchView(world.step, requests, 0, room), offers)
            if controller._probing.report()["count"] != probes or controller._harm.active:
                continue  # not the plan's own choice
            lengths = planned(plan)
            assert sum(lengths.values()) <= room
            for one in plan.allotments:
                if one.length:
                    offer, survival = choice[one.request]
                    assert one.drafter == offer.drafter
                    assert one.length <= len(survival)
            assert goodput(controller, requests, choice, lengths) == pytest.approx(best, rel=1e-9)
            compared += 1
            drafting += bool(lengths)
            world.observe()
    assert compared >= 9
    assert drafting >= 3


def test_the_order_of_requests_and_offers_does_not_change_the_plan() -> None:
    """Also where every second request has no offer of one drafter."""
    world, again = World(3, 12, 3), World(3, 12, 3)
    for _ in range(20):
        requests, offers = world.inputs()
        again.inputs()
        world.step += 1
        plan = world.controller.plan(BatchView(world.step, requests, 0, 64), offers)
        shuffled, mixed = list(requests), list(offers)
        world.random.shuffle(shuffled)
        again.random.random()
        order = {name: i for i, name in enumerate(DRAFTERS)}
        mixed.sort(key=lambda one: (one.request * 7 % 12, order[one.drafter]))
        other = again.controller.plan(BatchView(world.step, shuffled, 0, 64), mixed)
        if not plan.probes and not other.probes:
            by_request = {one.request: one for one in other.allotments}
            assert [by_request[one.request] for one in plan.allotments] == list(plan.allotments)


def test_offers_for_nobody_and_from_nobody_are_passed_over() -> None:
    world = World(1, 4, 2)
    requests, offers = world.inputs()
    usual = world.controller.plan(BatchView(100, requests, 0, 64), offers)
    strange = [Offer(77, "ngram", 8), *offers, Offer(1, "unheard of", 8), Offer(2, "suffix", 0)]
    found = World(1, 4, 2)
    found.inputs()
    assert found.controller.plan(BatchView(100, requests, 0, 64), strange) == usual


def test_nobody_who_asked_for_a_drafter_is_probed() -> None:
    """Not even when a probe has been due for long."""
    world = World(2, 3, 2)
    before = world.controller._probing.report()["count"]
    for _ in range(200):
        requests, offers = world.inputs()
        asked = [one._replace(wish=Wish(drafter="suffix")) for one in requests]
        world.step += 1
        plan = world.controller.plan(BatchView(world.step, asked, 0, 64), offers)
        assert not plan.probes
    assert world.controller._probing.report()["count"] == before
