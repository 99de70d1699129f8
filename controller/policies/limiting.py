"""The operator's constraints around every policy: its plan is cut until it keeps them.

A policy's rule knows neither the TPOT target nor the draft budget. The room that it gets to fill is
the budget's already; a plan after which a request would wait longer than the target is cut to the
longest D for everybody that meets it, and where none does to the D of the shortest wait. What
requests and the operator asked for is cut alike.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from controller.acceptance import Acceptance
from controller.choices import Choices, Lengths, own_ms
from controller.contract import NONE, Allotment, BatchView, Offer, Setting
from controller.cost import CostModel
from controller.limits import (
    BY_TARGET,
    Beyond,
    Limited,
    LimitMeans,
    because_of_budget,
    because_of_target,
    deciding,
)
from controller.planner import expected
from controller.policies.leading import RATE, Leading
from controller.policies.openings import Opening
from controller.policies.placing import Pick, place, rows_of
from controller.policies.recorder import Stand
from controller.precedence import room_of
from controller.reasons import LIMITS
from controller.target import Target, beside_ms

ByPlace = Mapping[int, Allotment]
"""Allotments with a draft, by place in the batch."""
Offers = Mapping[int, Mapping[str, Offer]]
"""By place in the batch and drafter."""
Wanted = tuple[Sequence[Opening], Sequence[Pick]]
"""Openings, and what each of them is to have."""
OWN = "the policy's own goodput"


class Forecast:
    """What a policy's plan, and shorter ones, are predicted to bring, from the live models."""

    def __init__(
        self,
        batch: BatchView,
        allotted: ByPlace,
        offers: Offers,
        cost: CostModel,
        acceptance: Acceptance,
    ) -> None:
        self._batch, self._cost, self._size = batch, cost, len(batch.requests)
        self._context = sum(request.context_len for request in batch.requests)
        names = tuple(dict.fromkeys(one.drafter for one in allotted.values()))
        mine = [(p, one) for name in names for p, one in allotted.items() if one.drafter == name]
        drafts = [
            (
                name,
                [one.request for _, one in mine if one.drafter == name],
                [offers[p][name].features for p, one in mine if one.drafter == name],
            )
            for name in names
        ]
        self.lengths: Lengths = np.array([one.length for _, one in mine], np.intp)
        who = np.array([names.index(one.drafter) for _, one in mine], np.intp)
        prices = [cost.draft_price(name) for name in names]
        self._choices = Choices(
            np.array([p for p, _ in mine], np.intp),
            names,
            who,
            acceptance.survivals(drafts, int(self.lengths.max())) if mine else np.zeros((0, 1)),
            self.lengths,
            prices,
            own_ms(prices, who, None),
        )
        self._curve = cost.verify_curve(self._size, int(self.lengths.sum()), self._context)
        self._curve += cost.overhead_ms(self._size, True)
        verify_ms = cost.verify_ms(self._size, self._size, self._context)
        self._curve[0] = verify_ms + cost.overhead_ms(self._size, False)

    def goodput(self, lengths: Lengths) -> float:
        """Tokens per second."""
        tokens, ms = expected(self._curve, self._size, self._choices, lengths)
        return 1000.0 * tokens / ms

    def tpot_ms(self, lengths: Lengths) -> float:
        """What the slowest request waits for a token."""
        _, ms = expected(self._curve, self._size, self._choices, lengths)
        judged = self._size - len(self._batch.elsewhere)
        slowest = 1.0 if judged > len(lengths) else math.inf
        beside = beside_ms(self._batch, self._cost, self._context)
        return Target(0.0, beside, slowest).tpot_ms(self._choices, lengths, ms)

    def longest_within(self, target_ms: float) -> tuple[int, float]:
        """The longest D for everybody that meets the target, else the one of the shortest TPOT;
        and its TPOT."""
        longest = int(self.lengths.max(initial=0))
        best, shortest = longest, math.inf
        for cap in range(longest, -1, -1):
            found = self.tpot_ms(np.minimum(self.lengths, cap))
            if found <= shortest:
                best, shortest = cap, found
            if found <= target_ms:
                return cap, found
        return best, shortest


def _placed(given: Wanted, left: Wanted, room: int) -> dict[int, Allotment]:
    """Both within the room, those given first."""
    allotted = place(*given, room)
    return allotted | place(*left, room - rows_of(allotted))


def cut(allotted: ByPlace, cap: int) -> dict[int, Allotment]:
    """None longer than `cap`."""
    return {
        place: Allotment(one.request, one.drafter, min(one.length, cap))
        for place, one in allotted.items()
        if cap > 0
    }


class Limits:
    """What the constraints did to a policy's plans, and what it stands for while one decides."""

    def __init__(self) -> None:
        self._means = LimitMeans()
        self._leading = Leading()
        self._steps = 0
        self._held: str | None = None

    def within(
        self,
        setting: Setting,
        batch: BatchView,
        given: Wanted,
        left: Wanted,
        cost: CostModel,
        acceptance: Acceptance,
    ) -> dict[int, Allotment]:
        """The plan within the constraints, by place. given: D that somebody set, which has its room
        first; left: the policy's own."""
        offers = {one.place: one.offers for one in (*given[0], *left[0])}
        room, free_room = room_of(batch, setting), max(batch.free_rows, 0)
        allotted, by_budget = _placed(given, left, room), None
        if room < free_room:
            whole = _placed(given, left, free_room)
            if rows_of(whole) > room:
                forecast = Forecast(batch, whole, offers, cost, acceptance)
                by_budget = Beyond(forecast.goodput(forecast.lengths), rows_of(whole))
        tpot_ms = by_target = None
        if setting.tpot_target_ms is not None:
            forecast = Forecast(batch, allotted, offers, cost, acceptance)
            longest = int(forecast.lengths.max(initial=0))
            cap, tpot_ms = forecast.longest_within(setting.tpot_target_ms)
            if cap < longest:
                lengths = forecast.lengths
                by_target = Beyond(forecast.goodput(lengths), forecast.tpot_ms(lengths))
                allotted = cut(allotted, cap)
        self._steps += 1
        limited = Limited(
            setting.tpot_target_ms, setting.draft_budget, tpot_ms, by_target, by_budget
        )
        self._means.update(limited, max(RATE, 1.0 / self._steps))
        return allotted

    def stand(self, allotments: Sequence[Allotment]) -> Stand | None:
        """What is done for the sake of a constraint, None while none decides."""
        means = self._means.means()
        self._leading.add(allotments)
        self._held = deciding(means, self._held)
        if self._held is None:
            return None
        because = because_of_target if self._held == BY_TARGET else because_of_budget
        text = because(means, OWN)
        drafter, length = self._leading.drafter, self._leading.length
        if drafter == NONE:
            length = 0.0
        return Stand(drafter, length, LIMITS[self._held], f"{text[0].upper()}{text[1:]}.")

    def forget(self, drafter: str) -> None:
        """The drafter is gone."""
        self._leading.forget(drafter)

    def inputs(self) -> Mapping[str, object]:
        """For a decision's record, rounded for reading."""
        return {name: round(value, 4) for name, value in self._means.means().items()}
