"""A small simulated engine for controller tests: true acceptance and true costs, both known."""

from __future__ import annotations

import random
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from controller.choices import Choices, own_ms
from controller.contract import (
    BatchView,
    CostPoint,
    Features,
    Offer,
    Plan,
    Proposal,
    RequestOutcome,
    RequestView,
    ShadowScore,
    StepOutcome,
    Wish,
)
from controller.controller import AdaptiveController
from controller.cost import CostModel
from controller.draft_cost import FREE, DraftPrice

BF16 = {1: 10.7, 2: 11.0, 4: 11.2, 8: 12.3, 16: 14.2, 32: 18.6, 64: 29.0}
"""Measured ms by rows on a CPU with fast bfloat16."""
FP32 = {1: 31.0, 2: 49.0, 3: 61.0, 4: 47.0, 5: 48.0, 8: 43.5, 16: 62.0, 32: 89.0}
"""The same in float32: not monotone."""


def points(table: dict[int, float], requests: Sequence[int] = (1,)) -> list[CostPoint]:
    """Calibration points of a cost that depends on the rows only."""
    return [
        CostPoint(n, rows, context, ms)
        for n in requests
        for rows, ms in table.items()
        if rows >= n
        for context in (128,)
    ]


def interpolate(table: dict[int, float], rows: int) -> float:
    """The table's ms at any number of rows, linear in between and beyond."""
    xs = sorted(table)
    above = min(bisect_left(xs, rows, lo=1), len(xs) - 1)
    low, high = xs[above - 1], xs[above]
    return table[low] + (rows - low) / (high - low) * (table[high] - table[low])


def request(
    number: int = 1, *, remaining: int = 1000, context: int = 128, wish: Wish | None = None
) -> RequestView:
    return RequestView(number, "", context, remaining, 0.0, False, wish or Wish())


def batch(*requests: RequestView, step: int = 1, free_rows: int = 512) -> BatchView:
    return BatchView(step, requests, 0, free_rows)


def offer(number: int = 1, drafter: str = "ngram", length: int = 16, match: int = 3) -> Offer:
    return Offer(number, drafter, length, Features(match, 0, "prompt"))


def choices(*survivals: Sequence[float], draft_ms: Sequence[float] | None = None) -> Choices:
    """One choice per request from S_1, S_2, ... of each, with a drafter each if drafting costs
    something per request."""
    widest = max([len(s) for s in survivals], default=1)
    drafters = [f"drafter {i}" if draft_ms else "ngram" for i in range(len(survivals))]
    names = tuple(dict.fromkeys(drafters))
    who = np.array([names.index(name) for name in drafters], np.intp)
    prices = [DraftPrice(0.0, ms, 0.0) for ms in draft_ms] if draft_ms else [FREE] * len(names)
    return Choices(
        np.arange(len(survivals)),
        names,
        who,
        np.array([[*s, *[0.0] * (widest - len(s))] for s in survivals]).reshape(-1, widest),
        np.array([len(s) for s in survivals], np.intp),
        prices,
        own_ms(prices, who, None),
    )


class Clock:
    """Seconds that the world's steps move forward."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class World:
    """Steady decoding of `size` requests. rates(step): true (a_1, a_2...) of a draft, the last
    repeated; match(step): chance that a request has an offer; cost(rows, step): true ms."""

    controller: AdaptiveController
    clock: Clock
    size: int = 1
    rates: Callable[[int], Sequence[float]] = lambda step: (0.5, 0.8)
    match: Callable[[int], float] = lambda step: 1.0
    cost: Callable[[int, int], float] = lambda rows, step: interpolate(BF16, rows)
    noise: float = 0.03
    draft_ms: float = 0.1
    seed: int = 0
    live: bool = False
    step: int = 0
    ms: float = 0.0
    tokens: int = 0
    plans: list[Plan] = field(default_factory=list)
    outcomes: list[StepOutcome] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)

    def accepted(self, length: int) -> int:
        rates = self.rates(self.step)
        for k in range(length):
            if self.random.random() >= rates[min(k, len(rates) - 1)]:
                return k
        return length

    def run(self, steps: int) -> World:
        for _ in range(steps):
            self.one()
        return self

    def one(self) -> Plan:
        self.step += 1
        requests = [request(i) for i in range(self.size)]
        offers = [offer(r.id) for r in requests if self.random.random() < self.match(self.step)]
        plan = self.controller.plan(batch(*requests, step=self.step), offers)
        offered = {o.request: o for o in offers}
        results: list[RequestOutcome] = []
        for allotment in plan.allotments:
            drafted = allotment.length
            self.live = drafted > 0
            kept = self.accepted(drafted) if drafted else 0
            self.live = False
            shadows: tuple[ShadowScore, ...] = ()
            found = offered.get(allotment.request)
            features = found.features if found else Features()
            if found and not drafted:
                got = self.accepted(found.max_length)
                shadows = (ShadowScore("ngram", found.max_length, got, features),)
            results.append(
                RequestOutcome(
                    allotment.request,
                    allotment.drafter,
                    drafted,
                    kept,
                    kept + 1,
                    features=features,
                    shadows=shadows,
                )
            )
        rows = sum(1 + a.length for a in plan.allotments)
        ms = self.cost(rows, self.step) * (1.0 + self.random.gauss(0.0, self.noise))
        drafting = [a.length for a in plan.allotments if a.length]
        proposals = (
            (Proposal("ngram", len(drafting), max(drafting), self.draft_ms),) if drafting else ()
        )
        outcome = StepOutcome(
            step=self.step,
            requests=self.size,
            rows=rows,
            prefill_rows=0,
            context_tokens=128 * self.size,
            verify_ms=ms,
            draft_ms=self.draft_ms if drafting else 0.1,
            overhead_ms=0.5,
            per_request=tuple(results),
            proposals=proposals,
        )
        self.controller.observe(outcome)
        self.clock.now += (ms + 0.6) / 1000
        self.ms += ms + 0.6
        self.tokens += sum(r.committed for r in results)
        self.plans.append(plan)
        self.outcomes.append(outcome)
        return plan

    @property
    def mean_length(self) -> float:
        """Mean D per request over the plans so far."""
        lengths = [a.length for p in self.plans for a in p.allotments]
        return sum(lengths) / len(lengths)


def simulate(
    table: dict[int, float] = BF16, size: int = 1, *, seed: int = 0, **options: Any
) -> World:
    """A world whose cost table starts out calibrated to `table`."""
    clock = Clock()
    model = CostModel(points(table, (size,)))
    return World(
        AdaptiveController(["ngram"], model, clock=clock), clock, size, seed=seed, **options
    )
