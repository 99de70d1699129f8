"""One step of the simulated engine: offers, plan, drafts, verification, outcome.

The controller is told what a serving engine would tell it, in the same order: offers with match
lengths and streaks, outcomes with shadow scores, times with noise. It never sees a text."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from controller.contract import (
    NONE,
    Allotment,
    BatchView,
    Controller,
    Offer,
    Proposal,
    RequestOutcome,
    RequestView,
    ShadowScore,
    StepOutcome,
)
from controller.simulate.drafters import model_free
from controller.simulate.lanes import Lane, Lanes
from controller.simulate.live import Live, Shadows
from controller.simulate.machine import Machine
from controller.simulate.texts import LONGEST, Library

USED_STEPS = 64
"""A drafter that drafted within so many steps takes in prompts along with the target."""


@dataclass(slots=True)
class Step:
    """What a step did: its time, tokens of the decoding requests, drafted and accepted ones, by
    drafter how many requests it drafted for, seconds that the controller took, and the tokens that
    came with the last rows of prompts. looked: it asked the drafters."""

    ms: float
    requests: int
    tokens: int
    drafted: int
    accepted: int
    drafting: dict[str, int] = field(default_factory=dict)
    plan_seconds: float = 0.0
    first_tokens: int = 0
    looked: bool = True


class Stepper:
    """Runs steps of decoding requests under one controller, with its own noise."""

    def __init__(
        self,
        machine: Machine,
        library: Library,
        controller: Controller,
        rng: np.random.Generator,
    ) -> None:
        self.machine = machine
        self.controller = controller
        self.shadows = Shadows(library, model_free(machine.drafters))
        self.steps = 0
        self._limit = library.longest + LONGEST + 1
        self._drafters = {one.name: one for one in machine.drafters}
        self._numbers = {name: i for i, name in enumerate(self.shadows.names)}
        models = [one.name for one in machine.drafters if one.info.model]
        self._lanes = Lanes(library, self.shadows, models)
        self._forgetful = [one.name for one in machine.drafters if not one.remembers]
        self._used: dict[str, int] = {}
        self._rng = rng

    def start(self, live: Live) -> None:
        """A request begins to decode: drafters that fall behind know its prompt only if they have
        drafted lately."""
        for name in self._forgetful:
            idle = self.steps - self._used.get(name, -USED_STEPS)
            live.missing[name] = live.prompt if idle >= USED_STEPS else 0

    def step(self, decoding: Sequence[Live], now: float, prefill_rows: int = 0) -> Step:
        """Run a step at `now` ms; the requests' places move on."""
        self.steps += 1
        machine, controller = self.machine, self.controller
        attentive = controller.attentive
        offers = self._offers(decoding) if attentive else []
        views = [
            RequestView(
                one.id,
                "",
                one.context,
                self._limit - one.produced,
                self._lanes.temperature(one),
                False,
            )
            for one in decoding
        ]
        room = max(0, machine.row_limit - len(decoding))
        begin = time.thread_time()
        plan = controller.plan(BatchView(self.steps, views, prefill_rows, room), offers)
        seconds = time.thread_time() - begin
        lanes = [
            self._lanes.draft(live, one)
            for live, one in zip(decoding, plan.allotments, strict=True)
        ]
        rows = np.array([1 + lane.drafted for lane in lanes])
        context = np.array([live.context for live in decoding])
        true_ms = float(machine.cost.verify_ms(rows, context, prefill_rows)) * machine.factor(now)
        proposals, tail_ms = self._proposals(decoding, plan.allotments, lanes, true_ms)
        verify_ms = true_ms * max(1.0 + machine.noise * self._rng.standard_normal(), 0.5)
        for one in plan.allotments:
            if one.length and one.request not in plan.probes:
                self._used[one.drafter] = self.steps
        outcomes = [
            self._commit(live, one, lane, attentive)
            for live, one, lane in zip(decoding, plan.allotments, lanes, strict=True)
        ]
        draft_ms = sum(one.ms for one in proposals) + tail_ms
        overhead_ms = machine.beside_ms(len(decoding), attentive)
        drafting: dict[str, int] = {}
        for outcome in outcomes:
            if outcome.drafted:
                drafting[outcome.drafter] = drafting.get(outcome.drafter, 0) + 1
        outcome = StepOutcome(
            step=self.steps,
            requests=len(decoding),
            rows=int(rows.sum()),
            prefill_rows=prefill_rows,
            context_tokens=int(context.sum()),
            verify_ms=verify_ms,
            draft_ms=draft_ms,
            overhead_ms=overhead_ms,
            per_request=tuple(outcomes),
            proposals=tuple(proposals),
        )
        if decoding:
            begin = time.thread_time()
            controller.observe(outcome)
            seconds += time.thread_time() - begin
        return Step(
            ms=verify_ms + draft_ms + overhead_ms,
            requests=len(decoding),
            tokens=sum(one.committed for one in outcomes),
            drafted=sum(one.drafted for one in outcomes),
            accepted=sum(one.accepted for one in outcomes),
            drafting=drafting,
            plan_seconds=seconds,
            looked=attentive,
        )

    # --- parts --------------------------------------------------------------------------------

    def _offers(self, decoding: Sequence[Live]) -> list[Offer]:
        """Drafter by drafter, as an engine asks them."""
        offers: list[Offer] = []
        for drafter in self.machine.drafters:
            name, longest = drafter.name, drafter.longest
            number = self._numbers.get(name)
            for live in decoding:
                if number is None:
                    offers.append(Offer(live.id, name, longest, catch_up=live.missing.get(name, 0)))
                else:
                    features = self.shadows.features(live, number, live.at)
                    if features is not None:
                        offers.append(Offer(live.id, name, longest, features))
        return offers

    def _proposals(
        self,
        decoding: Sequence[Live],
        allotments: Sequence[Allotment],
        lanes: Sequence[Lane],
        verify_ms: float,
    ) -> tuple[list[Proposal], float]:
        """What each drafter took, and the time of tails."""
        asked: dict[str, list[int]] = {}
        missing: dict[str, int] = {}
        tails: set[str] = set()
        for live, one, lane in zip(decoding, allotments, lanes, strict=True):
            if lane.asked:
                asked.setdefault(one.drafter, []).append(one.length)
                missing[one.drafter] = missing.get(one.drafter, 0) + live.missing.get(
                    one.drafter, 0
                )
                if lane.parts:
                    tails.add(one.tail)
        proposals: list[Proposal] = []
        for name, lengths in asked.items():
            depth, rows = max(lengths), missing[name]
            ms = self._drafters[name].ms(depth, verify_ms, rows)
            proposals.append(Proposal(name, len(lengths), depth, ms, rows))
        return proposals, sum(self._drafters[name].ms(0, verify_ms) for name in tails)

    def _commit(self, live: Live, one: Allotment, lane: Lane, scored: bool) -> RequestOutcome:
        """Move the request on and play the shadows over what it committed."""
        committed = min(lane.accepted + 1, live.end - live.at)
        new = live.at + committed
        ran = one.drafter if lane.drafted else NONE
        shadows: tuple[ShadowScore, ...] = ()
        for number, name in enumerate(self.shadows.names):
            if ran == name:
                shadows += self.shadows.lived(live, number, lane.accepted, new)
            elif scored:
                shadows += self.shadows.take(live, number, new)
            else:
                shadows += self.shadows.interrupt(live, number)
                live.starts[number] = new
        for name in self._forgetful:
            caught_up = lane.asked and one.drafter == name
            live.missing[name] = 0 if caught_up else live.missing[name] + committed
        live.at = new
        cut = new == live.end and lane.accepted < lane.drafted
        return RequestOutcome(
            request=live.id,
            drafter=ran,
            drafted=lane.drafted,
            accepted=lane.accepted,
            committed=committed,
            cut=cut,
            features=lane.features,
            shadows=shadows,
            parts=lane.parts,
            chances=lane.chances[: lane.accepted + (not cut)],
            margins=lane.margins,
        )
