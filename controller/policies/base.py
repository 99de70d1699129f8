"""What all policies beside the adaptive controller share: obeying, learning, reporting.

A policy says only which drafter and D the requests get that are left to it. Operator limits,
wishes, pins, caps, disabled drafters and the room of the step are applied here, for all alike.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import ClassVar, NamedTuple

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
    StepRecord,
    WhatIf,
    Wish,
)
from controller.credit import Credit
from controller.decision import summary
from controller.guards import RequestGuard
from controller.journal import words
from controller.outlook import what_if
from controller.policies.flight import Flight
from controller.policies.inputs import PolicyInputs
from controller.policies.limiting import Limits
from controller.policies.offered import OfferedShares
from controller.policies.openings import Opening, find_openings
from controller.policies.options import AUTO, Options
from controller.policies.placing import Pick, place, rows_of, uncut
from controller.policies.predicting import predict
from controller.policies.recorder import Recorder, Stand, by_operator
from controller.precedence import check_setting, room_of, rule_for
from controller.schedule import at_batch

NO_WISH = Wish()


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


class Left(NamedTuple):
    """Of a planned step, the requests that were left to the policy, and those of them that got what
    it chose (see `uncut`)."""

    requests: frozenset[int]
    whole: frozenset[int]


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
        self._drafter = AUTO
        """The drafter that the policy's options name, set by the subclasses that have such one."""
        self._left: Flight[Left] = Flight()
        self._offered = OfferedShares()
        self._limits = Limits()

    # --- the rule -----------------------------------------------------------------------------

    @abstractmethod
    def choose(self, step: Step) -> list[Pick]:
        """A pick for each opening, in their order; longer than an opening allows is cut."""

    @abstractmethod
    def stand(self, step: Step, allotments: Sequence[Allotment]) -> Stand:
        """What the policy stands for after it chose."""

    def learn(
        self,
        outcome: StepOutcome,
        own: Sequence[RequestOutcome],
        whole: Sequence[RequestOutcome],
    ) -> None:
        """A planned step was measured. own: what the requests got that were left to the policy.
        whole: those of them whose D is the one that it chose; what the others got says how a
        shorter D does."""
        return

    @property
    def rests(self) -> bool:
        """Whether the rule gives nobody a draft in the next step, whatever there is to draft for
        and with whom."""
        return False

    def preferred(self, opening: Opening) -> str | None:
        """The policy's own drafter for a request whose D somebody set; None where it has none."""
        return self.main(self._drafter)

    def check_options(self) -> None:
        """OptionError for options that make no sense with the drafters that there are now."""
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
        self._offered.forget(name)
        self.acceptance.forget_drafter(name)
        self.cost.forget_drafter(name)
        self._limits.forget(name)
        self.forgotten(name)
        self._tell(f"The drafter {name} was unloaded.")

    @property
    def attentive(self) -> bool:
        """While anybody may draft who does not ask for it himself (those are asked for anyway).
        None of these rules reckons with what looking for drafts costs."""
        setting = self._setting
        rule = rule_for(NO_WISH, setting)
        if rule.length == 0 or setting.max_draft_length < 1 or setting.max_drafting_requests == 0:
            return False
        if self.rests and rule.length is None and not setting.schedule:
            return False
        return (rule.drafter or self.main(self._drafter)) in self._enabled

    def _tell(self, sentence: str) -> None:
        if self._recorder.ledger.current is not None:
            self._recorder.news = sentence

    # --- planning -----------------------------------------------------------------------------

    def plan(self, batch: BatchView, offers: Sequence[Offer]) -> Plan:
        if not batch.requests:
            return Plan(())
        self.acceptance.meet(batch.requests)
        setting = at_batch(self._setting, len(batch.requests))
        openings = find_openings(batch, offers, setting, self._enabled)
        mine = len(batch.requests) - len(batch.elsewhere)
        if self.attentive and mine:  # else nobody was asked: what was offered before still stands
            self._offered.add(self._enabled, mine, offers)
        room = room_of(batch, setting)
        given = [one for one in openings if one.length is not None]
        asked = [self._given(one) for one in given]
        allotted = place(given, asked, room)
        left = [one for one in openings if one.length is None]
        context = sum(request.context_len for request in batch.requests)
        step = Step(batch, left, room - rows_of(allotted), context)
        chosen = self.choose(step)
        allotted |= place(left, chosen, step.room)
        limited = setting.mode != "off" and (
            setting.tpot_target_ms is not None or setting.draft_budget is not None
        )
        if limited:
            allotted = self._limits.within(
                setting, batch, (given, asked), (left, chosen), self.cost, self.acceptance
            )
        allotments = tuple(
            [
                allotted.get(number) or Allotment(request.id, NONE, 0)
                for number, request in enumerate(batch.requests)
            ]
        )
        requests = frozenset([one.request.id for one in left])
        whole = uncut(left, chosen, allotted, setting.max_draft_length)
        self._left.note(batch.step, Left(requests, whole))
        own = [one for one in allotments if one.request not in batch.elsewhere]
        stand = self._limits.stand(own) if limited else None
        stand = stand or by_operator(setting, self._enabled) or self.stand(step, own)
        decision = self._recorder.write(
            batch,
            self._setting,
            setting,
            stand,
            {
                "context": round(context / step.size, 1),
                **(self._limits.inputs() if limited else {}),
                **self.describe(),
            },
            lambda stand: self._price(stand, batch, context // step.size),
        )
        return Plan(allotments, decision)

    def _given(self, opening: Opening) -> Pick:
        """A D that somebody set; where nobody named the drafter, the policy's own, and where that
        one has no draft any other."""
        drafter = opening.who(self.preferred(opening))
        if drafter is None:
            drafter = next(name for name in self.drafters if name in opening.offers)
        return drafter, opening.length or 0

    def _price(
        self, stand: Stand, batch: BatchView, context_len: int
    ) -> tuple[Candidate, list[Candidate]]:
        """The stand and the alternatives to it, as plans for the policy's own requests among those
        of the batch."""
        size = len(batch.requests)
        own = (size - len(batch.elsewhere)) / size

        def offered(drafter: str) -> float:
            return own * self._offered.of(drafter)

        models = (self.cost, self.acceptance)
        chosen = predict(stand.drafter, stand.length, size, context_len, *models, offered)
        others = self._what_if(size, context_len, offered).candidates
        key = (chosen.drafter, chosen.draft_length)
        return chosen, [one for one in others if (one.drafter, one.draft_length) != key]

    # --- learning -----------------------------------------------------------------------------

    def observe(self, outcome: StepOutcome) -> None:
        self._recorder.ledger.add(outcome)
        self.cost.observe(outcome)
        self._credit.step(outcome.per_request, None)
        left = self._left.take(outcome.step)
        if left is not None and left.requests:
            own = [one for one in outcome.per_request if one.request in left.requests]
            self.learn(outcome, own, [one for one in own if one.request in left.whole])

    def forget(self, request: int) -> None:
        self.acceptance.forget(request)

    # --- views --------------------------------------------------------------------------------

    def take_decisions(self) -> list[Decision]:
        return self._recorder.ledger.take()

    def take_step_records(self) -> list[StepRecord]:
        return []

    def harm_totals(self) -> None:
        return None

    def what_if(self, batch_size: int, context_len: int) -> WhatIf:
        """Predicted goodput of uniform lengths, whatever the policy itself would choose.
        ValueError below one request or at a negative context."""
        return self._what_if(batch_size, context_len, self._offered.of)

    def _what_if(
        self, batch_size: int, context_len: int, offered: Callable[[str], float]
    ) -> WhatIf:
        most = self._setting.max_draft_length
        models = (self.cost, self.acceptance)
        return what_if(batch_size, context_len, sorted(self._enabled), most, *models, offered)

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
