"""A simulated engine with a serial model drafter beside a model-free one that can continue it."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from controller.contract import (
    Allotment,
    CostPoint,
    DrafterInfo,
    Features,
    Margins,
    Offer,
    Part,
    Plan,
    Proposal,
    RequestOutcome,
    ShadowScore,
    StepOutcome,
)
from controller.controller import AdaptiveController
from controller.cost import CostModel
from tests.controller.simulated_engine import Clock, batch, request

MODEL, SUFFIX = "draft_model", "suffix"
CHAIN = "draft_model+suffix"
Rates = Callable[[int], Sequence[float]]
"""Given a request, the true a_1, a_2, ... of its drafts, the last repeated; empty for no draft."""

PLAIN_MS, BESIDE_MS = 10.0, 0.5


def chance(margin: float) -> float:
    """That a token of this margin is accepted."""
    return 1.0 / (1.0 + math.exp(1.5 - 0.8 * margin))


@dataclass
class MixedWorld:
    """`size` requests decode. model, suffix, tail: true rates. row_ms: a drafted row. The model
    costs start_ms and depth_ms for each of its passes, whatever the number of requests.

    behind: rows of a new request that the model must compute first, `chunk` of them in a step, each
    in missing_ms; it falls behind by what is committed in steps that it does not draft in. life:
    tokens of an answer, after which another request takes its place; 0: it never ends. rho: what
    the controller is told of the model's cost at first. margin: draws the margin of a drafted token
    of the model's, which is accepted by `chance` of it instead of `model`'s rates; tells: the
    controller gets to know it."""

    size: int = 4
    model: Rates = lambda request: (0.7,)
    suffix: Rates = lambda request: ()
    tail: Rates = lambda request: ()
    row_ms: float = 0.1
    start_ms: float = 0.2
    depth_ms: float = 0.5
    drafters: tuple[str, ...] = (MODEL, SUFFIX)
    tails: tuple[str, ...] = (SUFFIX,)
    behind: Callable[[int], int] = lambda request: 0
    missing_ms: float = 0.05
    chunk: int = 256
    life: int = 0
    rho: float = 0.05
    margin: Callable[[random.Random], float] | None = None
    tells: bool = True
    seed: int = 0
    step: int = 0
    caught_up: int = 0
    ms: float = 0.0
    tokens: int = 0
    plans: list[Plan] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.clock = Clock()
        table = [
            CostPoint(self.size, self.size + extra, 128, PLAIN_MS + self.row_ms * extra)
            for extra in (0, 8, 64, 512)
        ]
        self.controller = AdaptiveController(
            (SUFFIX,), CostModel(table), tails=self.tails, clock=self.clock
        )
        self.controller.add_drafter(DrafterInfo(MODEL, model=True, rho=self.rho))
        for name in (MODEL, SUFFIX):
            self.controller.set_enabled(name, name in self.drafters)
        self.ids = list(range(self.size))
        self.missing = {i: self.behind(i) for i in self.ids}
        self.emitted = dict.fromkeys(self.ids, 0)

    def run(self, steps: int) -> MixedWorld:
        for _ in range(steps):
            self.one()
        return self

    def settle(self, steps: int) -> MixedWorld:
        """Run, and count only from then on."""
        self.run(steps)
        self.ms, self.tokens, self.caught_up = 0.0, 0, 0
        self.plans.clear()
        return self

    @property
    def goodput(self) -> float:
        """Tokens per ms."""
        return self.tokens / self.ms

    @property
    def allotments(self) -> list[Allotment]:
        return [one for plan in self.plans for one in plan.allotments]

    def mean_depth(self, drafter: str, request: int | None = None) -> float:
        """Mean length allotted to the drafter per request and step."""
        found = [a for a in self.allotments if request in (None, a.request)]
        return sum(a.length for a in found if a.drafter == drafter) / len(found)

    def one(self) -> Plan:
        self.step += 1
        left = self.life or 1000
        requests = [
            request(i, remaining=left - (self.emitted[i] if self.life else 0)) for i in self.ids
        ]
        true = {MODEL: self.model, SUFFIX: self.suffix}
        features = {MODEL: Features(), SUFFIX: Features(6, 0, "output")}
        attentive = self.controller.attentive
        offers = [
            Offer(r.id, name, 16, features[name], self.missing[r.id] if name == MODEL else 0)
            for r in requests
            for name in self.drafters
            if attentive and true[name](r.id)
        ]
        plan = self.controller.plan(batch(*requests, step=self.step), offers)
        late = self._catch_up(plan)
        results = [
            self._verify(one, true, features, one.request in late) for one in plan.allotments
        ]
        drafted = sum(result.drafted for result in results)
        asked = [a for a in plan.allotments if a.drafter == MODEL]
        passes = [a.length for a in asked if a.request not in late]
        proposals: list[Proposal] = []
        if asked:
            ms = self.missing_ms * self._rows
            ms += self.start_ms + self.depth_ms * max(passes, default=0)
            depth = max(passes, default=0)
            proposals.append(Proposal(MODEL, len(passes), depth, ms, self._rows))
        draft_ms = sum(proposal.ms for proposal in proposals)
        verify_ms = (PLAIN_MS + self.row_ms * drafted) * (1.0 + self.random.gauss(0.0, 0.02))
        outcome = StepOutcome(
            self.step,
            self.size,
            self.size + drafted,
            0,
            128 * self.size,
            verify_ms,
            draft_ms,
            BESIDE_MS,
            tuple(results),
            tuple(proposals),
        )
        self.controller.observe(outcome)
        step_ms = verify_ms + draft_ms + BESIDE_MS
        self.clock.now += step_ms / 1000
        self.ms += step_ms
        self.tokens += sum(result.committed for result in results)
        self.plans.append(plan)
        for allotment, result in zip(plan.allotments, results, strict=True):
            if allotment.drafter != MODEL:
                self.missing[result.request] += result.committed
        self._replace({result.request: result.committed for result in results})
        return plan

    def _catch_up(self, plan: Plan) -> set[int]:
        """Let the model compute what it misses of the requests it was given; those that it cannot
        draft for yet."""
        self._rows, late = 0, set[int]()
        for one in plan.allotments:
            if one.drafter == MODEL:
                now = min(self.missing[one.request], self.chunk - self._rows)
                self.missing[one.request] -= now
                self._rows += now
                if self.missing[one.request]:
                    late.add(one.request)
        self.caught_up += self._rows
        return late

    def _replace(self, committed: dict[int, int]) -> None:
        """Count what the requests emitted; others take the place of those that are through."""
        for i, old in enumerate(self.ids):
            self.emitted[old] += committed[old]
            if self.life and self.emitted[old] >= self.life:
                self.ids[i] = old + self.size
                self.emitted[self.ids[i]] = 0
                self.missing[self.ids[i]] = self.behind(self.ids[i])
                self.controller.forget(old)

    def _verify(
        self, one: Allotment, true: dict[str, Rates], features: dict[str, Features], late: bool
    ) -> RequestOutcome:
        drafted, kept, parts = 0 if late else one.length, 0, ()
        margins: Margins | None = None
        if drafted:
            if one.drafter == MODEL and self.margin is not None:
                values = tuple(self.margin(self.random) for _ in range(drafted))
                drafted = drafted if one.bar is None else one.bar.length(values)
                kept = self._kept([chance(value) for value in values], drafted)
                margins = Margins(MODEL, False, values) if self.tells else None
            else:
                kept = self._kept(true[one.drafter](one.request), one.length)
            if one.tail:
                rates = self.tail(one.request)
                more = one.tail_length if rates else 0
                if drafted < one.length:
                    more = 0
                whole = kept == one.length
                added = self._kept(rates, more) if whole else 0
                parts = (
                    Part(one.drafter, drafted, kept, features[one.drafter]),
                    Part(one.tail, more, added),
                )
                drafted, kept = drafted + more, kept + added
        shadows: tuple[ShadowScore, ...] = ()
        rates = true[SUFFIX](one.request)
        if rates and SUFFIX in self.drafters and one.drafter != SUFFIX:
            score = ShadowScore(SUFFIX, 16, self._kept(rates, 16), features[SUFFIX])
            shadows = (score,)
        found = features.get(one.drafter, Features())
        return RequestOutcome(
            one.request,
            one.drafter,
            drafted,
            kept,
            kept + 1,
            features=found,
            shadows=shadows,
            parts=parts,
            margins=margins,
        )

    def _kept(self, rates: Sequence[float], length: int) -> int:
        for k in range(length):
            if self.random.random() >= rates[min(k, len(rates) - 1)]:
                return k
        return length
