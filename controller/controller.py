"""The adaptive controller: prices rows, scores drafters, chooses lengths, explains itself."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import cache, partial

import numpy as np

from controller.acceptance import Acceptance
from controller.allotting import Allotter
from controller.attention import Attention
from controller.averages import Sample
from controller.choices import Choices, Table
from controller.contract import (
    NONE,
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
from controller.credit import RESTED, Credit, Planned, planned_of
from controller.decision import summary
from controller.exploring import Explorer
from controller.guards import HarmGuard, RequestGuard
from controller.harm_ledger import HarmLedger
from controller.journal import GRID, Journal, words
from controller.knowledge import knowledge
from controller.lineup import Lineup, line_up
from controller.mixing import fill_key, tail_key
from controller.outlook import what_if
from controller.planner import Allocation, drafted_rows, expected
from controller.precedence import check_setting, room_of, rule_for
from controller.pricing import Price, Pricing
from controller.probing import Probe, Probing
from controller.roster import Roster
from controller.schedule import at_batch
from controller.settling import Settling
from controller.static_choices import StaticStep, static_steps
from controller.step_records import StepRecords
from controller.uniform_grid import uniform_grid
from controller.usable import is_known

ROW_COST_ROWS = 4
IN_FLIGHT = 16
NO_WISH = Wish()


class AdaptiveController:
    """Controller of one engine. Not thread-safe: plan and observe alternate in the engine loop.

    drafters: names of the drafters the engine starts with, without "none". models: those of them
    that are models, which run for all their requests at once. tails: those that can continue a
    model's draft. cost: the calibrated table. group: the target's query heads per KV head, for the
    guidelines; None when not known. clock: seconds since the epoch. Raises ValueError for
    a setting that makes no sense."""

    def __init__(
        self,
        drafters: Sequence[str],
        cost: CostModel,
        setting: Setting | None = None,
        *,
        models: Sequence[str] = (),
        tails: Sequence[str] = (),
        group: int | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._roster = Roster(drafters, models, tails)
        self.group = group
        self.cost = cost
        for name in models:
            cost.expect(name, 0.0)
        self.acceptance = Acceptance()
        self._setting = setting or Setting()
        check_setting(self._setting, self.drafters)
        self._journal = Journal(self._roster.plans, clock)
        self._probing = Probing(partial(is_known, self.acceptance))
        self._explorer = Explorer(self._probing)
        self._attention = Attention()
        self._harm = HarmGuard()
        self._ledger = HarmLedger(GRID)
        self._request_guard = RequestGuard()
        self._credit = Credit(self.acceptance, self._request_guard)
        self._in_flight: OrderedDict[int, Planned] = OrderedDict()
        self._allotter = Allotter()
        self._pricing = Pricing()
        self._drifted = False
        self._steps = StepRecords(clock)

    # --- settings -----------------------------------------------------------------------------

    @property
    def setting(self) -> Setting:
        return self._setting

    @property
    def drafters(self) -> tuple[str, ...]:
        """The drafters that there are, without "none"."""
        return self._roster.drafters

    def configure(self, setting: Setting) -> None:
        """Takes effect at the next plan. ValueError when the setting makes no sense."""
        check_setting(setting, self.drafters)
        if setting == self._setting:
            return
        before, self._setting = self._setting, setting
        self._restart(f"The operator set {words(setting)} (before: {words(before)}).")

    def set_enabled(self, drafter: str, enabled: bool) -> None:
        """ValueError for an unknown drafter."""
        if self._roster.set_enabled(drafter, enabled):
            self._restart(f"The operator {'enabled' if enabled else 'disabled'} {drafter}.")

    def add_drafter(self, drafter: DrafterInfo) -> None:
        """Known from the next plan on, and enabled. ValueError for a name that is taken."""
        self._roster.add(drafter)
        if drafter.model:
            self.cost.expect(drafter.name, drafter.rho)
        self._probing.forget(drafter.name)
        self._journal.relist(self._roster.plans, f"The drafter {drafter.name} was loaded.")
        self._attention.reset()

    def remove_drafter(self, name: str) -> None:
        """Unknown from the next plan on, with all that was learned of it. ValueError for an unknown
        drafter, and for one that the setting pins."""
        self._roster.check(name)
        if self._setting.drafter == name:
            raise ValueError(f"drafter: {name} is pinned; set another drafter or mode first")
        self._roster.remove(name)
        for key in (name, tail_key(name), fill_key(name)):
            self.acceptance.forget_drafter(key)
        self._credit.promises.forget(name)
        self.cost.forget_drafter(name)
        self._ledger.forget(name)
        self._probing.forget(name)
        self._explorer.reset()
        self._journal.relist(self._roster.plans, f"The drafter {name} was unloaded.")

    @property
    def attentive(self) -> bool:
        """Whether the next step looks for drafts. Otherwise everybody decodes plainly, without
        offers and new shadow drafts, but for requests with a wish of their own."""
        pinned = self._setting.mode == "pinned" and self._setting.drafter != NONE
        return pinned or self._attention.looks

    def _restart(self, sentence: str) -> None:
        self._probing.reset()
        self._explorer.reset()
        self._attention.reset()
        self._harm.release()
        self._journal.operator_changed(sentence)

    # --- planning -----------------------------------------------------------------------------

    def plan(self, batch: BatchView, offers: Sequence[Offer]) -> Plan:
        if not batch.requests:
            return Plan(())
        if self._harm.tick():
            self._journal.guard_ended()
            self._probing.reset()
            self._attention.reset()
        looks = self.attentive
        if not looks:
            self._attention.rested()
            if not offers:
                self._note(batch.step, RESTED)
                if self._steps.draws():
                    self._draw_rested(batch)
                return Plan(self._allotter.plain(batch))
        self.acceptance.meet(batch.requests)
        n = len(batch.requests)
        setting = at_batch(self._setting, n)
        context_tokens = sum([request.context_len for request in batch.requests])
        span = ROW_COST_ROWS * n
        verify_ms, row_ms = self.cost.row_ms(n, span, context_tokens)
        alone_ms = verify_ms + self.cost.overhead_ms(n, False)
        price = self._pricing.at(n, alone_ms, row_ms)
        limits = setting.tpot_target_ms is not None or setting.draft_budget is not None
        down, blocks = self._request_guard.down, self._request_guard.blocks
        if limits and down:  # it counts steps, and a step may be lined up more than once
            down, blocks = frozenset(down), cache(blocks)

        def line(price: Price) -> Lineup:
            return line_up(
                batch,
                offers,
                setting,
                self._roster.enabled,
                self.acceptance,
                self.cost,
                price=price,
                held=self._harm.active,
                down=down,
                blocks=blocks,
                models=self._roster.models,
                tails=self._roster.tails,
                promised=self._credit.promises.promised(price.per_row, self._roster.models),
            )

        settling = Settling(batch, setting, self.cost, context_tokens, alone_ms, price, line)
        room, limited = room_of(batch, setting), None
        settled = settling.settle(line(price), room)
        if limits:
            settled, limited = settling.limited(settled, room)
        lineup, free, costs = settled.lineup, settled.lineup.free, settled.costs
        tokens, best, reachable = settled.tokens, settled.best, settled.reachable
        probe = self._probe(lineup, reachable, best, setting, batch)
        lengths = best.lengths if probe is None else probe.lengths
        swaps = () if probe is None else probe.swaps
        barred = best.barred and not (probe is not None and probe.whole)
        allotments = self._allotter.allot(batch, lineup, settled.placed, lengths, swaps, barred)
        base_ms, everybody = costs.item(0), lineup.all
        asked = self._asked(setting) if looks else ()
        counts = lineup.offered.counts() if asked else {}
        sample = Sample(
            requests=n,
            own=n - len(batch.elsewhere),
            context=context_tokens / n,
            forced=lineup.forced,
            blocked=lineup.blocked,
            first=_mean(everybody.survival[:, 0]),
            row_cost=row_ms * n / alone_ms,
            plain_ms=alone_ms,
            plain_tokens=n,
            tokens=best.tokens,
            ms=best.ms,
            offers={name: counts.get(name, 0) for name in asked},
            offered=len(everybody) if asked else None,
            limited=limited,
        )
        if probe is not None:
            sample.tokens, sample.ms = expected(costs, tokens, free, lengths, barred)
            if swaps:
                drafted = int(np.add.reduce(lengths))
                more = sum([swap.allotment.length for swap in swaps])
                sample.tokens += probe.gain
                sample.ms += probe.ms + reachable.item(drafted + more) - reachable.item(drafted)
        if self._journal.looks(setting):
            sample.grid = uniform_grid(settled, batch, self.cost, context_tokens, alone_ms)
            if self._ledger.due:
                self._look(lineup.offered, n, context_tokens, room, alone_ms)
        sample.count(allotments)
        # Drafts for the sake of the target need not pay for looking.
        if looks and not (limited is not None and limited.by_target is not None and best.rows):
            self._attention.looked(n, best.tokens * base_ms / tokens - best.ms, base_ms)
        self._pricing.learn(best.goodput * alone_ms / n)
        fixed = [lineup.all.requests.item(place) for place, _ in lineup.fixed]
        forced = frozenset([batch.requests[place].id for place in fixed])
        rows = drafted_rows(free, lengths, barred) + sum([s.allotment.length for s in swaps])
        planned = planned_of(sample, allotments, forced, rows, base_ms, looks)
        self._note(batch.step, planned)
        probed = frozenset[int]()
        if probe is not None:
            changed = free.requests[lengths != best.lengths].tolist()
            changed += [swap.place for swap in swaps]
            probed = frozenset([batch.requests[place].id for place in changed])
        decision = self._journal.write(
            batch,
            sample,
            self._setting,
            setting,
            self._roster.enabled,
            self.cost,
            self.acceptance,
            self._harm,
            self._roster.models,
        )
        if self._steps.draws():
            self._draw(batch, sample, price.per_row, probe is not None)
        return Plan(allotments, decision, probed)

    def _draw(self, batch: BatchView, sample: Sample, price: float, probe: bool) -> None:
        """Record this step."""
        current = self._journal.ledger.current
        name = current.id if current is not None else ""
        self._steps.planned(batch, sample, price, probe, self._harm.active, name)

    def _draw_rested(self, batch: BatchView) -> None:
        """Record this step, in which nobody looks for drafts."""
        n = len(batch.requests)
        context_tokens = sum([request.context_len for request in batch.requests])
        verify_ms, row_ms = self.cost.row_ms(n, ROW_COST_ROWS * n, context_tokens)
        alone_ms = verify_ms + self.cost.overhead_ms(n, False)
        price = self._pricing.at(n, alone_ms, row_ms).per_row
        row_cost, ms = row_ms * n / alone_ms, alone_ms - (self._attention.look_ms(n) or 0.0)
        context = context_tokens / n
        sample = Sample(n, n, context, 0, 0, None, row_cost, ms, n, tokens=n, ms=ms)
        self._draw(batch, sample, price, False)

    def _asked(self, setting: Setting) -> Sequence[str]:
        """Who is asked for drafts for the requests that have no wish."""
        rule = rule_for(NO_WISH, setting)
        if rule.drafter is not None:
            return [rule.drafter] if rule.drafter in self._roster.enabled else []
        return list(self._roster.enabled)

    def _look(
        self, offered: Choices, n: int, context_tokens: int, room: int, alone_ms: float
    ) -> None:
        """Tell the harm ledger what static choices would give in a step of n requests."""
        steps = static_steps(
            self._roster.enabled_in_order,
            offered,
            StaticStep(n, n, alone_ms),
            context_tokens,
            room,
            GRID,
            self.cost,
            self.acceptance.evidence,
        )
        self._ledger.look(n, alone_ms - (self._attention.look_ms(n) or 0.0), steps)

    def _probe(
        self,
        lineup: Lineup,
        costs: Table,
        best: Allocation,
        setting: Setting,
        batch: BatchView,
    ) -> Probe | None:
        """The probe of this step, where one is due and allowed. costs: as long as there is room."""
        if setting.mode != "auto" or self._harm.active or not lineup.may_try:
            return None
        ids = [request.id for request in batch.requests]
        self._probing.batch(ids)
        if not self._harm.probes_allowed:
            return None
        probe = self._explorer.resume(lineup, costs, best, ids)
        if probe is not None:
            return probe
        free = lineup.free
        if len(free):
            extra = int(np.add.reduce(free.longest))
            probe = self._probing.select(free, costs[: extra + 1], best)
        if probe is None:
            probe = self._explorer.select(lineup, costs, best, ids)
        if probe is None and best.barred:
            probe = self._probing.whole(free, costs, best)
        if probe is not None and probe.idle:
            self._journal.probed(probe.idle)
        return probe

    def _note(self, step: int, planned: Planned) -> None:
        self._in_flight[step] = planned
        if len(self._in_flight) > IN_FLIGHT:
            self._in_flight.popitem(last=False)

    # --- learning -----------------------------------------------------------------------------

    def observe(self, outcome: StepOutcome) -> None:
        planned = self._in_flight.pop(outcome.step, None)
        self._journal.ledger.add(outcome)
        self._steps.observe(outcome)
        self._guard(outcome, planned)
        looked = planned is None or planned.looked
        self.cost.observe(outcome, looked)
        if outcome.rows == outcome.requests and not outcome.prefill_rows:
            proposed_ms = sum(proposal.ms for proposal in outcome.proposals)
            beside_ms = outcome.draft_ms + outcome.overhead_ms - proposed_ms
            self._attention.measured(outcome.requests, looked, beside_ms)
        if self.cost.drifting != self._drifted:
            self._drifted = self.cost.drifting
            if self._drifted:
                self._probing.reset()
                self._attention.reset()
        self._explorer.measured(outcome.proposals)
        self._probing.elapse(outcome.verify_ms + outcome.draft_ms + outcome.overhead_ms)
        self._credit.step(outcome.per_request, planned)
        self.acceptance.settle()

    def _guard(self, outcome: StepOutcome, planned: Planned | None) -> None:
        """Enter the step in the harm ledger, unless somebody else chose it or prefill shared it."""
        if planned is None or planned.forced or outcome.prefill_rows or outcome.requests < 1:
            return
        n = outcome.requests
        plain = self.cost.verify_ms(n, n, outcome.context_tokens) + self.cost.overhead_ms(n, False)
        plain -= self._attention.look_ms(n) or 0.0
        tokens = sum(r.committed for r in outcome.per_request)
        real = outcome.verify_ms + outcome.draft_ms + outcome.overhead_ms
        self._ledger.add(tokens, real, plain * tokens / n, outcome.rows > n)
        # A step that only catches up or follows the text drafts nothing, and is not free.
        drafting = outcome.rows > n
        if not drafting and outcome.proposals:
            real = plain + sum(proposal.ms for proposal in outcome.proposals)
            drafting = True
        if self._harm.record(plain * tokens / n, real, drafting):
            self._journal.guard_fired()

    def forget(self, request: int) -> None:
        self.acceptance.forget(request)
        self._request_guard.forget(request)

    # --- views --------------------------------------------------------------------------------

    def take_decisions(self) -> list[Decision]:
        return self._journal.ledger.take()

    def take_step_records(self) -> list[StepRecord]:
        return self._steps.take()

    def harm_totals(self) -> HarmTotals:
        return self._ledger.totals()

    def what_if(self, batch_size: int, context_len: int) -> WhatIf:
        """Predicted goodput of uniform lengths, at the recent share of requests with a draft.
        ValueError below one request or at a negative context."""
        return what_if(
            batch_size,
            context_len,
            sorted(self._roster.enabled),
            self._setting.max_draft_length,
            self.cost,
            self.acceptance,
            self._offered,
        )

    def _offered(self, drafter: str) -> float:
        """The recent share of requests that the drafter has a draft for."""
        return self._journal.regime.means.get("offered " + drafter, 1.0)

    def report(self) -> dict[str, object]:
        current = self._journal.ledger.current
        return {
            "setting": asdict(self._setting),
            "drafters": {name: name in self._roster.enabled for name in self.drafters},
            **knowledge(
                self._roster,
                self.acceptance,
                self.cost,
                max_length=self._setting.max_draft_length,
                group=self.group,
                means=self._journal.regime.means,
                offered=self._offered,
            ),
            "probing": self._probing.report(),
            "attention": self._attention.report(),
            "guard": self._harm.report(),
            "ledger": self._ledger.report(),
            "recent": dict(self._journal.regime.inputs()),
            "decisions": self._journal.ledger.count,
            "current": summary(current) if current else None,
        }


def _mean(values: Table) -> float | None:
    return float(np.add.reduce(values)) / len(values) if len(values) else None
