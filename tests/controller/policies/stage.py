"""Plays steps to a policy: who decodes and offers, and how many drafted tokens are accepted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from controller.contract import (
    Allotment,
    Controller,
    Decision,
    Features,
    Offer,
    Plan,
    Proposal,
    RequestOutcome,
    RequestView,
    Setting,
    StepOutcome,
)
from controller.cost import CostModel
from controller.policies import PolicyInputs, make
from tests.controller.simulated_engine import BF16, Clock, batch, offer, points, request

Accept = Callable[[Allotment], int]
"""How many of an allotment's tokens are accepted."""


def policy(
    name: str,
    drafters: Sequence[str] = ("ngram",),
    *,
    models: Sequence[str] = (),
    setting: Setting | None = None,
    costs: Mapping[int, float] | None = None,
    requests: Sequence[int] = (1,),
    **options: Any,
) -> Controller:
    """A policy over a calibrated table of ms by rows, with its options."""
    cost = CostModel(points(dict(costs or BF16), requests))
    inputs = PolicyInputs(
        drafters,
        cost,
        models,
        drafters,
        setting or Setting(max_draft_length=16),
        options,
        clock=Clock(),
    )
    return make(name, inputs)


def people(size: int) -> list[RequestView]:
    """Requests 0 .. size - 1."""
    return [request(i) for i in range(size)]


class Stage:
    """Steps of one controller. decisions: all that were taken, in order."""

    def __init__(self, controller: Controller, drafters: Sequence[str] = ("ngram",)) -> None:
        self.controller = controller
        self.drafters = drafters
        self.steps = 0
        self.decisions: list[Decision] = []

    @property
    def opened(self) -> list[Decision]:
        """Each decision once, as last told, in order."""
        return list({one.id: one for one in self.decisions}.values())

    def plan(
        self,
        requests: Sequence[RequestView],
        offers: Sequence[Offer] | None = None,
        room: int = 512,
    ) -> Plan:
        self.steps += 1
        if offers is None:
            offers = [offer(one.id, name) for one in requests for name in self.drafters]
        return self.controller.plan(batch(*requests, step=self.steps, free_rows=room), offers)

    def observe(
        self,
        plan: Plan,
        accept: Accept,
        ms: float = 10.0,
        *,
        draft_ms: float = 0.1,
        prefill_rows: int = 0,
    ) -> StepOutcome:
        """Tell the controller what became of a plan. draft_ms: of each drafter that drafted."""
        results = [
            RequestOutcome(
                one.request,
                one.drafter,
                one.length,
                min(accept(one), one.length),
                min(accept(one), one.length) + 1,
                features=Features(3, 0, "prompt"),
            )
            for one in plan.allotments
        ]
        users = [one for one in plan.allotments if one.length]
        proposals = [
            Proposal(name, len(mine), max(mine), draft_ms)
            for name in dict.fromkeys(one.drafter for one in users)
            if (mine := [one.length for one in users if one.drafter == name])
        ]
        outcome = StepOutcome(
            self.steps,
            len(results),
            sum(1 + one.length for one in plan.allotments),
            prefill_rows,
            128 * len(results),
            ms,
            draft_ms * len(proposals),
            0.5,
            tuple(results),
            tuple(proposals),
        )
        self.controller.observe(outcome)
        return outcome

    def step(
        self,
        size: int = 1,
        accept: Accept = lambda one: 0,
        *,
        offers: Sequence[Offer] | None = None,
        ms: float = 10.0,
    ) -> Plan:
        """One step of requests 0 .. size - 1, all drafters offering 16 tokens to each."""
        plan = self.plan(people(size), offers)
        self.observe(plan, accept, ms)
        self.decisions += self.controller.take_decisions()
        return plan

    def lengths(self, steps: int, size: int = 1, accept: Accept = lambda one: 0) -> list[int]:
        """D of the first request in each of so many steps."""
        return [self.step(size, accept).allotments[0].length for _ in range(steps)]


def everything(one: Allotment) -> int:
    """All of it is accepted."""
    return one.length


def nothing(one: Allotment) -> int:
    return 0


def at_most(count: int) -> Accept:
    """The first so many are accepted."""
    return lambda one: min(one.length, count)
