"""How many drafted tokens the batch verifies: as many as are worth their time, the likeliest first.

vLLM's adaptive verification (#47808): every (request, position) has a survival probability, the
product of its positions' acceptance; the budget is the argmax of (n + sum of the best b) / (draft
+ verify ms at n + b rows) over all b, with costs from start-up, forced to rise. Acceptance is a
logistic in the draft's top-2 margin; until the third refit whole drafts are verified, so that
nothing is censored.

A model's margins are known when it has drafted: its drafts are made whole, and what of them is
verified has to promise what a row costs, at the goodput expected before they were drawn (vLLM
compares the margins of the whole step with each other, later ones included, which biases what is
sampled). Drafters without margins have the logistic's bias alone, acceptance by position, refitted
every 100 steps from that round; what is not verified of them is not drafted, while the budget
counts the whole draft's cost as vLLM does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np

from controller.contract import (
    NONE,
    Allotment,
    BatchView,
    Offer,
    Plan,
    RequestOutcome,
    StepOutcome,
)
from controller.cost import CostModel
from controller.planner import Table
from controller.policies.base import Policy, Step
from controller.policies.flight import Flight
from controller.policies.inputs import PolicyInputs
from controller.policies.leading import Leading
from controller.policies.options import LONGEST_DRAFT
from controller.policies.placing import PLAIN, Pick
from controller.policies.reasons import BUDGET
from controller.policies.recorder import Stand

REFIT_STEPS = 100
WHOLE_REFITS = 3
FIRST_BIAS = -0.2
STEP_AT = 50.0
"""A refit from n observations moves a bias by n / (n + 50) of the way."""
RIDGE = 1e-3


class Positions:
    """One drafter's acceptance by position, as the bias of a logistic. reached and accepted: of the
    present round."""

    def __init__(self, length: int) -> None:
        self.bias = np.full(length, FIRST_BIAS)
        self.reached = np.zeros(length)
        self.accepted = np.zeros(length)

    def add(self, drafted: int, accepted: int, censored: bool) -> None:
        """One verified draft; positions past the first rejection are unobserved."""
        self.reached[: accepted + (accepted < drafted and not censored)] += 1.0
        self.accepted[:accepted] += 1.0

    def refit(self) -> None:
        """One Newton step per position, damped where there is little to go by."""
        rate = 1.0 / (1.0 + np.exp(-self.bias))
        gradient = self.accepted - self.reached * rate
        step = gradient / (self.reached * rate * (1.0 - rate) + RIDGE)
        self.bias += np.clip(step, -2.0, 2.0) * self.reached / (self.reached + STEP_AT)
        self.reached[:] = 0.0
        self.accepted[:] = 0.0

    def survival(self) -> Table:
        """[length], the chance that position k and all before it are accepted."""
        found: Table = np.multiply.accumulate(1.0 / (1.0 + np.exp(-self.bias)))
        return found


class MarginVerify(Policy):
    """Options: drafter (auto), draft_length (7: what is drafted at most)."""

    name: ClassVar[str] = "margin_verify"

    def __init__(self, inputs: PolicyInputs) -> None:
        super().__init__(inputs)
        self._drafter = self.options.drafter()
        self._length = self.options.whole("draft_length", 7, 1, LONGEST_DRAFT)
        self._table = CostModel(inputs.cost.points, inputs.cost.roofline)
        self._positions: dict[str, Positions] = {}
        self._leading = Leading()
        self._steps = self._refits = 0
        self._budget, self._most = 0, 0
        """Positions worth their time, of how many that could be drafted; of the last step."""
        self._telling = False
        """Whether margins decided over some of these."""
        self._least = 0.0
        self._mine: frozenset[int] = frozenset()
        """Requests whose length nobody else chose, of the present step."""
        self._barred: Flight[frozenset[int]] = Flight()

    def plan(self, batch: BatchView, offers: Sequence[Offer]) -> Plan:
        self._mine = frozenset()
        plan = super().plan(batch, offers)
        bars = self._credit.promises.bars(batch.step, self._least)
        if not bars:
            return plan
        allotments = [
            one._replace(bar=bars.get((one.drafter, request.sampled)))
            if one.request in self._mine
            else one
            for request, one in zip(batch.requests, plan.allotments, strict=True)
        ]
        self._barred.note(batch.step, frozenset([one.request for one in allotments if one.bar]))
        return replace(plan, allotments=tuple(allotments))

    def choose(self, step: Step) -> list[Pick]:
        self._mine = frozenset([one.request.id for one in step.openings])
        drafter = self.main(self._drafter)
        names = [one.who(drafter) for one in step.openings]
        caps = [
            min(one.longest(name), self._length) if name is not None else 0
            for one, name in zip(step.openings, names, strict=True)
        ]
        self._budget = self._most = sum(caps)
        lengths, self._least, self._telling = caps, 0.0, False
        if self._most and self._refits >= WHOLE_REFITS:
            ids = [one.request.id for one in step.openings]
            lengths = self._admit(step, names, caps, ids)
        return [
            (name, length) if name is not None and length else PLAIN
            for name, length in zip(names, lengths, strict=True)
        ]

    def _admit(
        self, step: Step, names: Sequence[str | None], caps: Sequence[int], ids: Sequence[int]
    ) -> list[int]:
        """Lengths of the best budget, whole drafts of those whose margins will tell. Equal
        positions are admitted by depth, then by request id."""
        drafting = [(i, name) for i, name in enumerate(names) if name is not None and caps[i]]
        known = {name: self._of(name).survival() for name in {name for _, name in drafting}}
        survival = np.array([known[name] for _, name in drafting])
        limits = np.array([caps[i] for i, _ in drafting])[:, None]
        rows, depths = np.nonzero(np.arange(self._length) < limits)
        numbers = np.array([ids[i] for i, _ in drafting])[rows]
        scores = survival[rows, depths]
        order = np.lexsort((numbers, depths, -scores))[: step.room]
        tokens = step.size + np.concatenate(([0.0], np.add.accumulate(scores[order])))
        verify = self._table.verify_curve(step.size, len(order), step.context_tokens)
        costs = np.maximum.accumulate(verify) + self._draft_ms(names)
        goodput = tokens / costs
        budget = self._budget = int(goodput.argmax())
        if len(order):
            self._least = float(goodput[budget] * (costs[-1] - costs[0])) / len(order)
        admitted = np.bincount(rows[order[:budget]], minlength=len(drafting)).tolist()
        lengths = [0] * len(names)
        telling = {name for name in known if self._credit.promises.tells(name)}
        self._telling = bool(telling)
        for (i, name), length in zip(drafting, admitted, strict=True):
            lengths[i] = caps[i] if name in telling else length
        return lengths

    def _draft_ms(self, names: Sequence[str | None]) -> float:
        """What whole drafts for everybody take, whatever of them is verified."""
        counts = {name: names.count(name) for name in names if name is not None}
        prices = [self.cost.draft_price(name).ms(n, self._length) for name, n in counts.items()]
        return sum(prices)

    def _of(self, drafter: str) -> Positions:
        found = self._positions.get(drafter)
        if found is None:
            found = self._positions[drafter] = Positions(self._length)
        return found

    def learn(
        self,
        outcome: StepOutcome,
        own: Sequence[RequestOutcome],
        whole: Sequence[RequestOutcome],
    ) -> None:
        # What a bar lets through is what is likely: by position it would look too good.
        barred = self._barred.take(outcome.step) or frozenset()
        for one in own:
            refused = one.refused != NONE
            drafter = one.refused if refused else one.drafter
            drafted = min(one.drafted + refused, self._length)
            if drafted and one.request not in barred and drafter in self.drafters:
                self._of(drafter).add(drafted, min(one.accepted, drafted), one.cut)
        self._steps += 1
        if self._steps % REFIT_STEPS == 0:
            self._refits += 1
            for positions in self._positions.values():
                positions.refit()

    def forgotten(self, drafter: str) -> None:
        self._positions.pop(drafter, None)
        self._leading.forget(drafter)
        self._credit.promises.forget(drafter)

    def stand(self, step: Step, allotments: Sequence[Allotment]) -> Stand:
        leading = self._leading
        leading.add(allotments)
        if self._refits < WHOLE_REFITS:
            text = f"Whole drafts of {self._length} tokens are verified until acceptance is known."
        else:
            text = (
                f"By acceptance at each position, {self._budget} of {self._most} are worth their "
                f"time at {step.size} requests; lately {leading.length:.1f} tokens are drafted per "
                "request and step."
            )
            if self._telling:
                text += " Where margins tell, whole drafts are made and verified as far as they do."
        if leading.drafter == NONE:
            text += " Nobody drafts."
        return Stand(leading.drafter, leading.length, BUDGET, text)

    def describe(self) -> Mapping[str, object]:
        rates = {
            name: [round(1.0 / (1.0 + math.exp(-bias)), 4) for bias in found.bias.tolist()]
            for name, found in self._positions.items()
        }
        margins = self._credit.promises.report()
        return {
            "refits": self._refits,
            "acceptance": rates,
            "margins": margins,
            **self._leading.describe(),
        }
