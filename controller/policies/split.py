"""Two policies on the same traffic: each request belongs to one of two arms by a hash of its id.

Each arm is a controller of its own. It sees the whole batch, so that batch sizes and prices are
the real ones, but only the offers of its own requests, so the others decode plainly for it. What
the other arm's rows did to a step it cannot tell apart: they count like prefill rows, which teach
no cost. The cost model is one for both, and learns from the whole step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from controller.contract import (
    NONE,
    Allotment,
    BatchView,
    Decision,
    DrafterInfo,
    HarmTotals,
    Offer,
    Plan,
    Setting,
    StepOutcome,
    StepRecord,
    WhatIf,
    Wish,
)
from controller.cost import CostModel
from controller.policies.arm import MEASURES, Arm
from controller.policies.flight import Flight
from controller.policies.sharing import NOBODY, Asked, part_of

NO_WISH = Wish()
WORD = 2**64 - 1


def in_arm_b(request: int, share: float) -> bool:
    """Whether the request is of arm B, which gets `share` of them; the same for the same id."""
    # The finaliser of splitmix64: neighbouring ids land far apart.
    mixed = (request + 0x9E3779B97F4A7C15) & WORD
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & WORD
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & WORD
    return (mixed ^ (mixed >> 31)) < share * 2**64


class Split:
    """A controller that holds two. cost: the model that both plan with. share: of the requests in
    arm B, 0..1. ValueError for another share, and for arms with different settings."""

    def __init__(self, a: Arm, b: Arm, cost: CostModel, share: float) -> None:
        if not 0.0 <= share <= 1.0:
            raise ValueError(f"ab_share: must be 0 to 1, not {share}")
        if a.controller.setting != b.controller.setting:
            raise ValueError("ab_policy: both arms must start with the same setting")
        self.arms = (a, b)
        self.share = share
        self._cost = cost
        self._drafted = [0, 0]
        """Tokens that each arm drafted when it planned last: they lengthen the other's steps."""
        self._asked = NOBODY
        self._in_flight: Flight[Asked] = Flight()

    def arm(self, request: int) -> Arm:
        """Whose the request is."""
        return self.arms[in_arm_b(request, self.share)]

    # --- settings -----------------------------------------------------------------------------

    @property
    def setting(self) -> Setting:
        return self.arms[0].controller.setting

    def configure(self, setting: Setting) -> None:
        for arm in self.arms:
            arm.controller.configure(setting)

    def set_enabled(self, drafter: str, enabled: bool) -> None:
        for arm in self.arms:
            arm.controller.set_enabled(drafter, enabled)

    def add_drafter(self, drafter: DrafterInfo) -> None:
        for arm in self.arms:
            arm.controller.add_drafter(drafter)

    def remove_drafter(self, name: str) -> None:
        for arm in self.arms:
            arm.controller.remove_drafter(name)
        self._asked = self._asked.without(name)

    @property
    def attentive(self) -> bool:
        """While either arm looks; the other one does not get to see the offers."""
        return any(arm.controller.attentive for arm in self.arms)

    # --- planning -----------------------------------------------------------------------------

    def plan(self, batch: BatchView, offers: Sequence[Offer]) -> Plan:
        owners = {request.id: self.arm(request.id) for request in batch.requests}
        wishes = {request.id for request in batch.requests if request.wish != NO_WISH}
        found: dict[int, Allotment] = {}
        decisions: list[Decision] = []
        probes: frozenset[int] = frozenset()
        drafted = self._drafted
        looked = self.arms[0].controller.attentive, self.arms[1].controller.attentive
        asked: tuple[list[Allotment], list[Allotment]] = ([], [])
        for number, arm in enumerate(self.arms):
            own = tuple([request for request, owner in owners.items() if owner is arm])
            if not own:
                drafted[number] = 0
                continue
            mine = [
                offer
                for offer in offers
                if owners.get(offer.request) is arm and (looked[number] or offer.request in wishes)
            ]
            view = replace(
                batch,
                free_rows=max(batch.free_rows, 0) * len(own) // len(owners),
                elsewhere=frozenset(owners).difference(own),
                elsewhere_rows=drafted[1 - number],
            )
            plan = arm.controller.plan(view, mine)
            taken = [one for one in plan.allotments if owners[one.request] is arm]
            asked[number].extend(taken)
            drafted[number] = sum(one.length + one.tail_length for one in taken)
            found |= {one.request: one for one in taken}
            if plan.decision is not None:
                decisions.append(arm.tagged(plan.decision, own))
            probes |= plan.probes
        self._asked = self._asked.after(looked, asked)
        self._in_flight.note(batch.step, self._asked)
        allotments = tuple(
            [found.get(one.id) or Allotment(one.id, NONE, 0) for one in batch.requests]
        )
        return Plan(allotments, decisions[0] if decisions else None, probes)

    # --- learning -----------------------------------------------------------------------------

    def observe(self, outcome: StepOutcome) -> None:
        parts = [
            tuple([one for one in outcome.per_request if self.arm(one.request) is arm])
            for arm in self.arms
        ]
        asked = self._in_flight.take(outcome.step) or NOBODY
        shared = all(parts)
        for number, (arm, own) in enumerate(zip(self.arms, parts, strict=True)):
            if own:
                part = part_of(outcome, own, number, asked)
                arm.controller.observe(part if shared else outcome)
                arm.count(outcome, part)
        if shared:
            self._cost.observe(outcome)

    def forget(self, request: int) -> None:
        for arm in self.arms:
            arm.controller.forget(request)
            arm.forget(request)

    # --- views --------------------------------------------------------------------------------

    def take_decisions(self) -> list[Decision]:
        found = [
            arm.tagged(one, tuple([r for r in one.requests if self.arm(r) is arm]))
            for arm in self.arms
            for one in arm.controller.take_decisions()
        ]
        return sorted(found, key=lambda one: one.id)

    def take_step_records(self) -> list[StepRecord]:
        found = [one for arm in self.arms for one in arm.controller.take_step_records()]
        return sorted(found, key=lambda one: one.id)

    def harm_totals(self) -> HarmTotals | None:
        """Arm A's: like its report."""
        return self.arms[0].controller.harm_totals()

    def what_if(self, batch_size: int, context_len: int) -> WhatIf:
        """By what arm A has learned."""
        return self.arms[0].controller.what_if(batch_size, context_len)

    def report(self) -> dict[str, object]:
        """Arm A's report, with a section that compares the arms."""
        a, b = (arm.estimates() for arm in self.arms)
        gains: dict[str, object] = {}
        for name in MEASURES:
            one, other = a[name], b[name]
            if one is not None and other is not None and one.value > 0.0:
                gains[name] = other.over(one).report()
        return {
            **self.arms[0].controller.report(),
            "ab": {
                "share": self.share,
                "arms": {arm.label: arm.report() for arm in self.arms},
                "b_over_a": gains,
            },
        }
