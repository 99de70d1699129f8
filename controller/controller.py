"""The adaptive controller: prices rows, scores drafters, chooses lengths, explains itself."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from controller.acceptance import Acceptance
from controller.contract import (
    NONE,
    Allotment,
    BatchView,
    Decision,
    Offer,
    Plan,
    Setting,
    StepOutcome,
    WhatIf,
)
from controller.cost import CostModel
from controller.decision import summary
from controller.guards import HarmGuard, RequestGuard
from controller.journal import GRID, Journal, words
from controller.lineup import Lineup, line_up
from controller.outlook import what_if
from controller.planner import Allocation, allocate, expected, uniform
from controller.precedence import check_setting
from controller.probing import Probe, Probing
from controller.regime import Sample
from controller.schedule import at_batch

PRICE_RATE = 0.1
ROW_COST_ROWS = 4
IN_FLIGHT = 16


@dataclass(frozen=True, slots=True)
class _InFlight:
    """What observe needs to know about a planned step. price: tokens that a drafted row costs."""

    price: float
    forced: frozenset[int]


class AdaptiveController:
    """Controller of one engine. Not thread-safe: plan and observe alternate in the engine loop.

    drafters: names of all drafters the engine has, without "none". cost: the calibrated table.
    clock: seconds since the epoch. Raises ValueError for a setting that makes no sense."""

    def __init__(
        self,
        drafters: Sequence[str],
        cost: CostModel,
        setting: Setting | None = None,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.drafters = tuple(drafters)
        self.cost = cost
        self.acceptance = Acceptance()
        self._setting = setting or Setting()
        check_setting(self._setting, self.drafters)
        self._enabled = set(self.drafters)
        self._journal = Journal(self.drafters, clock)
        self._probing = Probing()
        self._harm = HarmGuard()
        self._request_guard = RequestGuard()
        self._in_flight: OrderedDict[int, _InFlight] = OrderedDict()
        self._price = 0.0
        self._drifted = False

    # --- settings -----------------------------------------------------------------------------

    @property
    def setting(self) -> Setting:
        return self._setting

    def configure(self, setting: Setting) -> None:
        """Takes effect at the next plan. ValueError when the setting makes no sense."""
        check_setting(setting, self.drafters)
        if setting == self._setting:
            return
        before, self._setting = self._setting, setting
        self._restart(f"The operator set {words(setting)} (before: {words(before)}).")

    def set_enabled(self, drafter: str, enabled: bool) -> None:
        """ValueError for an unknown drafter."""
        if drafter not in self.drafters:
            raise ValueError(f"drafter: {drafter!r} is not one of {', '.join(self.drafters)}")
        if enabled == (drafter in self._enabled):
            return
        (self._enabled.add if enabled else self._enabled.discard)(drafter)
        self._restart(f"The operator {'enabled' if enabled else 'disabled'} {drafter}.")

    def _restart(self, sentence: str) -> None:
        self._probing.reset()
        self._harm.release()
        self._journal.operator_changed(sentence)

    # --- planning -----------------------------------------------------------------------------

    def plan(self, batch: BatchView, offers: Sequence[Offer]) -> Plan:
        if not batch.requests:
            return Plan(())
        if self._harm.tick():
            self._journal.guard_ended()
            self._probing.reset()
        n = len(batch.requests)
        setting = at_batch(self._setting, n)
        context_tokens = sum(r.context_len for r in batch.requests)
        lineup = line_up(
            batch,
            offers,
            setting,
            self._enabled,
            self.acceptance,
            self.cost,
            price=self._price,
            row_price=max(self._journal.regime.means.get("row_cost", 0.1), 0.0),
            held=self._harm.active,
            blocks=self._request_guard.blocks,
        )
        room = max(batch.free_rows, 0)
        placed, gained, draft_ms = lineup.place(room)
        tokens = n + gained
        rows = sum(length for _, length in placed)
        room -= rows
        extra = min(room, sum(len(c.survival) for c in lineup.free))
        span = ROW_COST_ROWS * n
        curve = self.cost.verify_curve(n, max(rows + extra, span), context_tokens)
        drafting_ms = self.cost.overhead_ms(n, True) + draft_ms
        costs = [ms + drafting_ms for ms in curve[rows : rows + extra + 1]]
        if not rows:
            costs[0] = curve[0] + self.cost.overhead_ms(n, False)
        best = allocate(costs, tokens, lineup.free, room)
        lengths, probe = self._probe(lineup, costs, best, setting)
        sample = Sample(
            requests=n,
            context=context_tokens / n,
            forced=lineup.forced,
            blocked=lineup.blocked,
            first=_mean([c.survival[0] for c in lineup.all]),
            row_cost=(curve[span] - curve[0]) / span * n / costs[0],
            plain_ms=costs[0],
            plain_tokens=tokens,
        )
        sample.tokens, sample.ms = expected(costs, tokens, lineup.free, lengths)
        for choice in lineup.all:
            sample.offers[choice.drafter] = sample.offers.get(choice.drafter, 0) + 1
        for name in dict.fromkeys(c.drafter for c in lineup.free):
            mine = [c for c in lineup.free if c.drafter == name]
            for length in GRID:
                sample.grid[name, length] = uniform(costs, tokens, mine, length, room)
        placed += [(c, length) for c, length in zip(lineup.free, lengths, strict=True) if length]
        allotments = [Allotment(r.id, NONE, 0) for r in batch.requests]
        for choice, length in placed:
            name, i = choice.drafter, choice.request
            allotments[i] = Allotment(batch.requests[i].id, name, length)
            count, total = sample.drafts.get(name, (0, 0))
            sample.drafts[name] = (count + 1, total + length)
        old = self._price or best.goodput
        self._price = old + PRICE_RATE * (best.goodput - old)
        self._remember(batch, lineup, sample, sum(lengths))
        probed = None
        if probe is not None and probe.choice is not None:
            probed = batch.requests[lineup.free[probe.choice].request].id
        decision = self._journal.write(
            batch,
            sample,
            self._setting,
            setting,
            self._enabled,
            self.cost,
            self.acceptance,
            self._harm,
        )
        return Plan(tuple(allotments), decision, probed)

    def _probe(
        self, lineup: Lineup, costs: Sequence[float], best: Allocation, setting: Setting
    ) -> tuple[list[int], Probe | None]:
        """The planned lengths, changed by a probe where one is due and allowed."""
        lengths = best.lengths
        if setting.mode != "auto" or not lineup.free or not self._harm.probes_allowed:
            return lengths, None
        probe = self._probing.select(lineup.free, costs, best)
        if probe is None:
            return lengths, None
        if probe.choice is None:
            return [0] * len(lengths), probe
        if probe.idle:
            self._journal.probed()
        changed = list(lengths)
        changed[probe.choice] += probe.more
        return changed, probe

    def _remember(self, batch: BatchView, lineup: Lineup, sample: Sample, rows: int) -> None:
        price = 0.0
        if rows:
            extra_ms = max(0.0, sample.ms - sample.plain_ms)
            price = extra_ms / rows * sample.requests / sample.plain_ms
        forced = frozenset(batch.requests[c.request].id for c, _ in lineup.fixed)
        self._in_flight[batch.step] = _InFlight(price, forced)
        if len(self._in_flight) > IN_FLIGHT:
            self._in_flight.popitem(last=False)

    # --- learning -----------------------------------------------------------------------------

    def observe(self, outcome: StepOutcome) -> None:
        planned = self._in_flight.pop(outcome.step, None)
        self._journal.ledger.add(outcome)
        self._guard(outcome, planned)
        self.cost.observe(outcome)
        if self.cost.drifting != self._drifted:
            self._drifted = self.cost.drifting
            if self._drifted:
                self._probing.reset()
        self._probing.elapse(outcome.verify_ms + outcome.draft_ms + outcome.overhead_ms)
        for result in outcome.per_request:
            if result.drafted > 0:
                self.acceptance.learn(
                    result.request,
                    result.drafter,
                    result.features,
                    result.drafted,
                    result.accepted,
                    result.cut,
                )
                if planned is not None and result.request not in planned.forced:
                    self._request_guard.record(
                        result.request, result.drafted, result.accepted, planned.price
                    )
            for score in result.shadows:
                # Beside a live draft of the same drafter only a score cut off by going live
                # counts: it covers text before the live draft.
                if result.drafted and score.drafter == result.drafter and not score.censored:
                    continue
                self._request_guard.shadow(result.request, score.accepted)
                self.acceptance.learn(
                    result.request,
                    score.drafter,
                    score.features,
                    score.drafted,
                    score.accepted,
                    score.censored,
                )

    def _guard(self, outcome: StepOutcome, planned: _InFlight | None) -> None:
        """Enter the step in the harm ledger, unless somebody else chose it or prefill shared it."""
        if planned is None or planned.forced or outcome.prefill_rows or outcome.requests < 1:
            return
        n = outcome.requests
        plain = self.cost.verify_ms(n, n, outcome.context_tokens) + self.cost.overhead_ms(n, False)
        tokens = sum(r.committed for r in outcome.per_request)
        real = outcome.verify_ms + outcome.draft_ms + outcome.overhead_ms
        if self._harm.record(plain * tokens / n, real, outcome.rows > n):
            self._journal.guard_fired()

    def forget(self, request: int) -> None:
        self.acceptance.forget(request)
        self._request_guard.forget(request)

    # --- views --------------------------------------------------------------------------------

    def take_decisions(self) -> list[Decision]:
        return self._journal.ledger.take()

    def what_if(self, batch_size: int, context_len: int) -> WhatIf:
        """Predicted goodput of uniform lengths, at the recent share of requests with a draft.
        ValueError below one request or at a negative context."""
        return what_if(
            batch_size,
            context_len,
            sorted(self._enabled),
            self._setting.max_draft_length,
            self.cost,
            self.acceptance,
            lambda name: self._journal.regime.means.get("offered " + name, 1.0),
        )

    def report(self) -> dict[str, object]:
        current = self._journal.ledger.current
        return {
            "setting": asdict(self._setting),
            "drafters": {name: name in self._enabled for name in self.drafters},
            "acceptance": self.acceptance.report(),
            "cost": self.cost.report(),
            "probing": self._probing.report(),
            "guard": self._harm.report(),
            "recent": dict(self._journal.regime.inputs()),
            "decisions": self._journal.ledger.count,
            "current": summary(current) if current else None,
        }


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
