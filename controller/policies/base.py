"""What all policies beside the adaptive controller share: obeying, learning, reporting.

A policy says only which drafter and D the requests get that are left to it. Operator limits,
wishes, pins, caps, disabled drafters and the room of the step are applied here, for all alike.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import ClassVar

from controller.acceptance import Acceptance
from controller.contract import (
    NONE,
    Allotment,
    BatchView,
    Candidate,
    Decision,
    DrafterInfo,
    Offer,
    Plan,
    RequestOutcome,
    Setting,
    StepOutcome,
    WhatIf,
)
from controller.credit import Credit
from controller.decision import summary
from controller.guards import RequestGuard
from controller.journal import words
from controller.limits import Beyond
from controller.outlook import what_if
from controller.policies.flight import Flight
from controller.policies.inputs import PolicyInputs
from controller.policies.limiting import Forecast, Limits
from controller.policies.openings import Opening, find_openings, fit
from controller.policies.options import AUTO, Options
from controller.policies.predicting import predict
from controller.policies.recorder import Recorder, Stand, by_operator
from controller.precedence import check_setting, room_of
from controller.schedule import at_batch

Pick = tuple[str, int]
"""(drafter, D)."""

PLAIN: Pick = (NONE, 0)


def rows_of(allotted: Mapping[int, Allotment]) -> int:
    """Drafted rows of allotments."""
    return sum(one.length for one in allotted.values())


OFFERED_RATE = 1 / 64
"""How fast the share of requests with an offer follows."""


@dataclass(frozen=True, slots=True)
class Step:
    """What a policy chooses for: the openings that are left to it. room: rows that the step may
    still hold. context_tokens: of all decoding requests."""

    batch: BatchView
    openings: Sequence[Opening]
    room: int
    context_tokens: int

    @property
    def size(self) -> int:
        """Decoding requests, also those that are not left to the policy."""
        return len(self.batch.requests)


class Policy(ABC):
    """A controller by one rule. Not thread-safe: plan and observe alternate in the engine loop.
    ValueError for a setting that makes no sense, OptionError for an option.

    Subclasses read their options in __init__; `make` then refuses what nobody read."""

    name: ClassVar[str]

    def __init__(self, inputs: PolicyInputs) -> None:
        self.options = Options(self.name, inputs.options)
        self.drafters = tuple(inputs.drafters)
        self.models = tuple(inputs.models)
        self.cost = inputs.cost
        self.acceptance = Acceptance()
        self._setting = inputs.setting
        check_setting(self._setting, self.drafters)
        self._enabled = set(self.drafters)
        self._recorder = Recorder(self.name, inputs.clock)
        self._credit = Credit(self.acceptance, RequestGuard())
        self._left: Flight[frozenset[int]] = Flight()
        self._offered: dict[str, float] = {}
        self._limits = Limits()

    # --- the rule -----------------------------------------------------------------------------

    @abstractmethod
    def choose(self, step: Step) -> list[Pick]:
        """A pick for each opening, in their order; longer than an opening allows is cut."""

    @abstractmethod
    def stand(self, step: Step, allotments: Sequence[Allotment]) -> Stand:
        """What the policy stands for after it chose."""

    def learn(self, outcome: StepOutcome, own: Sequence[RequestOutcome]) -> None:
        """A planned step was measured. own: what the requests got that were left to the policy."""
        return

    def forgotten(self, drafter: str) -> None:
        """The drafter is gone: drop what was learned of it."""
        return

    def describe(self) -> Mapping[str, object]:
        """The state of the rule, JSON-able."""
        return {}

    def main(self, wanted: str) -> str | None:
        """The drafter that an option names; for `auto` the first enabled model, else the first
        enabled drafter; None where there is none."""
        if wanted != AUTO:
            return wanted if wanted in self._enabled else None
        order = (*self.models, *self.drafters)
        return next((name for name in order if name in self._enabled), None)

    # --- settings -----------------------------------------------------------------------------

    @property
    def setting(self) -> Setting:
        return self._setting

    def configure(self, setting: Setting) -> None:
        check_setting(setting, self.drafters)
        if setting != self._setting:
            before, self._setting = self._setting, setting
            self._limits = Limits()
            self._tell(f"The operator set {words(setting)} (before: {words(before)}).")

    def set_enabled(self, drafter: str, enabled: bool) -> None:
        if drafter not in self.drafters:
            raise ValueError(f"drafter: {drafter!r} is not one of {', '.join(self.drafters)}")
        if enabled != (drafter in self._enabled):
            (self._enabled.add if enabled else self._enabled.discard)(drafter)
            self._tell(f"The operator {'enabled' if enabled else 'disabled'} {drafter}.")

    def add_drafter(self, drafter: DrafterInfo) -> None:
        name = drafter.name
        if name == NONE or name in self.drafters:
            raise ValueError(f"drafter: there is one by the name {name!r} already")
        self.drafters += (name,)
        if drafter.model:
            self.models += (name,)
            self.cost.expect(name, drafter.rho)
        self._enabled.add(name)
        self._tell(f"The drafter {name} was loaded.")

    def remove_drafter(self, name: str) -> None:
        if name not in self.drafters:
            raise ValueError(f"drafter: {name!r} is not one of {', '.join(self.drafters)}")
        if self._setting.drafter == name:
            raise ValueError(f"drafter: {name} is pinned; set another drafter or mode first")
        self.drafters = tuple(one for one in self.drafters if one != name)
        self.models = tuple(one for one in self.models if one != name)
        self._enabled.discard(name)
        self._offered.pop(name, None)
        self.acceptance.forget_drafter(name)
        self.cost.forget_drafter(name)
        self.forgotten(name)
        self._tell(f"The drafter {name} was unloaded.")

    @property
    def attentive(self) -> bool:
        """Always: none of these rules reckons with what looking for drafts costs."""
        return True

    def _tell(self, sentence: str) -> None:
        if self._recorder.ledger.current is not None:
            self._recorder.news = sentence

    # --- planning -----------------------------------------------------------------------------

    def plan(self, batch: BatchView, offers: Sequence[Offer]) -> Plan:
        if not batch.requests:
            return Plan(())
        setting = at_batch(self._setting, len(batch.requests))
        openings = find_openings(batch, offers, setting, self._enabled)
        self._count(len(batch.requests), offers)
        room = room_of(batch, setting)
        given = [one for one in openings if one.length is not None]
        asked = [self._given(one) for one in given]
        allotted = self._place(given, asked, room)
        left = [one for one in openings if one.length is None]
        context = sum(request.context_len for request in batch.requests)
        step = Step(batch, left, room - rows_of(allotted), context)
        chosen = self.choose(step)
        allotted |= self._place(left, chosen, step.room)
        limited = setting.tpot_target_ms is not None or setting.draft_budget is not None
        if limited:
            allotted = self._limit(setting, batch, (given, asked), (left, chosen), allotted)
        allotments = tuple(
            [
                allotted.get(place) or Allotment(request.id, NONE, 0)
                for place, request in enumerate(batch.requests)
            ]
        )
        self._left.note(batch.step, frozenset(one.request.id for one in left))
        stand = self._limits.stand(allotments) if limited else None
        stand = stand or by_operator(setting, self._enabled) or self.stand(step, allotments)
        decision = self._recorder.write(
            batch,
            self._setting,
            setting,
            stand,
            {
                "context": round(context / step.size, 1),
                **self._limits.inputs(),
                **self.describe(),
            },
            lambda stand: self._price(stand, step.size, context),
        )
        return Plan(allotments, decision)

    def _given(self, opening: Opening) -> Pick:
        """A D that somebody set; where nobody named the drafter, the policy's own."""
        drafter = opening.who(self.main(AUTO))
        if drafter is None:
            drafter = next(name for name in self.drafters if name in opening.offers)
        return drafter, opening.length or 0

    def _place(
        self, openings: Sequence[Opening], picks: Sequence[Pick], room: int
    ) -> dict[int, Allotment]:
        """Allotments by place in the batch, cut to what the openings allow and to the room."""
        wanted = [
            min(length, one.longest(drafter)) if drafter in one.offers else 0
            for one, (drafter, length) in zip(openings, picks, strict=True)
        ]
        lengths = fit(wanted, [one.request.id for one in openings], room)
        return {
            one.place: Allotment(one.request.id, drafter, length)
            for one, (drafter, _), length in zip(openings, picks, lengths, strict=True)
            if length > 0
        }

    def _limit(
        self,
        setting: Setting,
        batch: BatchView,
        given: tuple[Sequence[Opening], Sequence[Pick]],
        left: tuple[Sequence[Opening], Sequence[Pick]],
        allotted: dict[int, Allotment],
    ) -> dict[int, Allotment]:
        """The plan within the operator's constraints. given, left: who it was made for, and what
        they were to have. allotted: the plan within the budget."""
        offers = {one.place: one.offers for one in (*given[0], *left[0])}
        models = (self.cost, self.acceptance)
        room, free_room, by_budget = room_of(batch, setting), max(batch.free_rows, 0), None
        if room < free_room:
            whole = self._place(*given, free_room)
            whole |= self._place(*left, free_room - rows_of(whole))
            if rows_of(whole) > room:
                forecast = Forecast(batch, whole, offers, *models)
                by_budget = Beyond(forecast.goodput(forecast.lengths), rows_of(whole))
        forecast = Forecast(batch, allotted, offers, *models)
        return self._limits.apply(setting, forecast, allotted, by_budget)

    def _count(self, size: int, offers: Sequence[Offer]) -> None:
        """Follow the share of requests that each drafter has an offer for."""
        counts = dict.fromkeys(self.drafters, 0)
        for offer in offers:
            if offer.drafter in counts:
                counts[offer.drafter] += 1
        for name, count in counts.items():
            share = min(count / size, 1.0)
            old = self._offered.get(name, share)
            self._offered[name] = old + OFFERED_RATE * (share - old)

    def _price(self, stand: Stand, size: int, context: int) -> tuple[Candidate, list[Candidate]]:
        mean, models = context // size, (self.cost, self.acceptance)
        chosen = predict(stand.drafter, stand.length, size, mean, *models, self._share)
        others = self.what_if(size, mean).candidates
        key = (chosen.drafter, chosen.draft_length)
        return chosen, [one for one in others if (one.drafter, one.draft_length) != key]

    # --- learning -----------------------------------------------------------------------------

    def observe(self, outcome: StepOutcome) -> None:
        self._recorder.ledger.add(outcome)
        self.cost.observe(outcome)
        self._credit.step(outcome.per_request, None)
        left = self._left.take(outcome.step)
        if left:
            own = [one for one in outcome.per_request if one.request in left]
            self.learn(outcome, own)

    def forget(self, request: int) -> None:
        self.acceptance.forget(request)

    # --- views --------------------------------------------------------------------------------

    def take_decisions(self) -> list[Decision]:
        return self._recorder.ledger.take()

    def what_if(self, batch_size: int, context_len: int) -> WhatIf:
        """Predicted goodput of uniform lengths, whatever the policy itself would choose.
        ValueError below one request or at a negative context."""
        return what_if(
            batch_size,
            context_len,
            sorted(self._enabled),
            self._setting.max_draft_length,
            self.cost,
            self.acceptance,
            self._share,
        )

    def _share(self, drafter: str) -> float:
        """The recent share of requests that the drafter has a draft for."""
        return self._offered.get(drafter, 1.0)

    def report(self) -> dict[str, object]:
        ledger = self._recorder.ledger
        learned = self.acceptance.report()
        return {
            "policy": {
                "name": self.name,
                "options": dict(self.options.in_force),
                "state": dict(self.describe()),
            },
            "setting": asdict(self._setting),
            "drafters": {name: name in self._enabled for name in self.drafters},
            "acceptance": {name: learned[name] for name in self.drafters if name in learned},
            "cost": self.cost.report(),
            "decisions": ledger.count,
            "current": summary(ledger.current) if ledger.current else None,
        }
