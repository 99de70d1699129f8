"""Probes of what no choice of the plan is: drafters left out, cold ones, models' deeper drafts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from controller.choices import Choices, Lengths, Table
from controller.contract import Allotment, Proposal
from controller.lineup import Lineup
from controller.planner import Allocation, gains
from controller.probing import BUDGET, PROBE_LENGTH, Probe, Probing, Swap, beyond
from controller.trials import Trial, catch_up_ms, trial
from controller.usable import COLD_ROWS

DEEPER_LENGTH = 2
"""Positions beyond a model's pass that are tried at once."""

ROWS = PROBE_LENGTH + DEEPER_LENGTH
"""A probe adds fewer rows than this per request to the plan's, whatever it replaces."""

DOUBT, LEAST_MS = 4.0, 5.0
LONGEST_MS = BUDGET * 30_000.0
"""A step of a probe is charged at most DOUBT times what all of it was expected to take and LEAST_MS
beyond that, and no more than the budget of 30 s: what stalls once, as a first call that compiles,
says nothing of the next, and must not stop all probes for minutes."""


class Explorer:
    """Swaps the drafts of some requests where a probe is due and can be afforded.

    A cold drafter gets one request. It may take steps to catch up: it is given the same request
    again until it has. The time that all of that is expected to take is accounted for with the
    first; the tokens that the request's own draft would have brought, which are lost in each, step
    by step."""

    def __init__(self, probing: Probing) -> None:
        self._probing = probing
        self._pursued: tuple[int, str, int] | None = None
        self._paid: tuple[str, float, float] | None = None  # drafter, ms expected, ms of it left
        self._probed = False

    def select(
        self, lineup: Lineup, costs: Table, best: Allocation, ids: Sequence[int]
    ) -> Probe | None:
        """The probe due for this step, already accounted for. ids: of the batch's requests.
        costs[m]: ms with m drafted rows, up to ROWS more for each than the plan's where there is
        room."""
        free = lineup.free
        known = [free.names[code] for code in free.present()]
        for name in lineup.offered.names:
            if name in known:
                continue
            if self._probing.due(name) or self._probing.renewed(name):
                probe = self._try(name, 0, lineup.candidates(name), free, costs, best, ids)
                if probe is not None:
                    return probe
        if free.chain is None:
            return None
        head, depth = free.chain.head, free.chain.depth
        heads = free.places(head)
        full = free.requests[heads[best.lengths[heads] >= depth]]
        if len(full) and self._probing.due(beyond(head)):
            deep = lineup.candidates(head)
            deep = deep.take(np.flatnonzero(np.isin(deep.requests, full)))
            return self._try(head, depth, deep, free, costs, best, ids)
        return None

    def resume(
        self, lineup: Lineup, costs: Table, best: Allocation, ids: Sequence[int]
    ) -> Probe | None:
        """The request of the last probe again, while its drafter gets on with catching up."""
        if self._pursued is None:
            return None
        request, name, before = self._pursued
        self._pursued = None
        found = lineup.candidates(name)
        left = [0] * len(found) if found.catch_up is None else found.catch_up.tolist()
        for j, place in enumerate(found.requests.tolist()):
            if ids[place] == request and COLD_ROWS < left[j] < before:
                self._pursued, self._probed = (request, name, left[j]), True
                swaps = _Swaps(found.take([j]), 0, lineup.free, best, ids)
                tried = swaps.trial(costs)
                if tried is None:
                    return None
                self._probing.spend(swaps.forgone_ms(costs))
                return swaps.probe(tried)
        return None

    def measured(self, proposals: Sequence[Proposal]) -> None:
        """What the drafters took in the step that was planned last: a probe that takes longer than
        expected uses up more of the budget."""
        if not self._probed or self._paid is None:
            return
        self._probed = False
        name, expected, left = self._paid
        spent = sum(proposal.ms for proposal in proposals if proposal.drafter == name)
        most = min(DOUBT * expected + LEAST_MS, LONGEST_MS)
        self._probing.spend(min(max(spent - left, 0.0), most))
        self._paid = (name, expected, max(left - spent, 0.0))

    def reset(self) -> None:
        """What was being caught up with no longer matters."""
        self._pursued = self._paid = None

    def _try(
        self,
        name: str,
        begun: int,
        candidates: Choices,
        free: Choices,
        costs: Table,
        best: Allocation,
        ids: Sequence[int],
    ) -> Probe | None:
        """The candidates that are expected to lose least, if that can be afforded. begun: how deep
        the drafter's pass is already, 0 where it does not run."""
        cold = candidates.catch_up is not None and bool((candidates.catch_up > COLD_ROWS).all())
        if candidates.catch_up is not None and not cold:
            candidates = candidates.take(np.flatnonzero(candidates.catch_up <= COLD_ROWS))
        swaps = _Swaps(candidates, begun, free, best, ids)
        tried = swaps.trial(costs, 1 if cold else None)
        if tried is None:
            return None
        subject = beyond(name) if begun else name
        if not self._probing.affordable(tried.cost):
            self._probing.put_off(subject)
            return None
        self._probing.fire(subject, tried.cost)
        if cold:
            self._pursued = swaps.behind(tried)
        if not begun:
            self._paid, self._probed = (name, tried.ms, tried.ms), True
        return swaps.probe(tried)


class _Swaps:
    """What the candidates of a drafter would change: each drafts a little in the place of what is
    planned for its request, or a little deeper than the drafter's pass, which is `begun` deep.

    lengths, gain: [n], tokens that they draft, and expect to be accepted; before, lost: the same of
    what is planned; instead: [n], the choices that give way, -1 for none."""

    def __init__(
        self, candidates: Choices, begun: int, free: Choices, best: Allocation, ids: Sequence[int]
    ) -> None:
        lengths = np.minimum(candidates.longest, begun + DEEPER_LENGTH if begun else PROBE_LENGTH)
        usable = np.flatnonzero(lengths > begun)
        self.candidates, self.begun, self.best, self.ids = candidates.take(usable), begun, best, ids
        self.lengths: Lengths = lengths[usable]
        survival = self.candidates.survival
        drafted = survival * (np.arange(survival.shape[1]) < self.lengths[:, None])
        self.gain: Table = np.add.reduce(drafted, axis=1)
        instead, drafting = np.full(len(ids), -1), np.flatnonzero(best.lengths)
        instead[free.requests[drafting]] = drafting
        self.instead: Lengths = instead[self.candidates.requests]
        self.before: Lengths = np.append(best.lengths, 0)[self.instead]
        self.lost: Table = np.append(gains(free, best.lengths, best.barred), 0.0)[self.instead]

    def trial(self, costs: Table, most: int | None = None) -> Trial | None:
        """The cheapest trial; None without room."""
        found = self.candidates
        if not len(found):
            return None
        price = found.price(found.who.item(0))
        own_ms, pass_ms = np.zeros(len(found)), 0.0
        deepest = int(np.maximum.reduce(self.lengths))
        if not self.begun:
            own_ms, pass_ms = catch_up_ms(found) + price.per_request, price.fixed
        pass_ms += price.per_depth * (deepest - self.begun)
        more = self.lengths - self.before
        return trial(more, self.gain - self.lost, own_ms, pass_ms, costs, self.best, most)

    def probe(self, tried: Trial) -> Probe:
        """The trial as a change of the plan."""
        lengths, swaps = self.best.lengths.copy(), list[Swap]()
        for j in tried.picked.tolist():
            place, instead = self.candidates.requests.item(j), self.instead.item(j)
            if instead >= 0:
                lengths[instead] = 0
            allotment = Allotment(self.ids[place], self.candidates.drafter(j), self.lengths.item(j))
            swaps.append(Swap(place, allotment))
        gain = float(np.add.reduce(self.gain[tried.picked]))
        idle = "" if self.begun else self.candidates.drafter(0)
        return Probe(lengths, idle, tuple(swaps), gain, tried.ms)

    def behind(self, tried: Trial) -> tuple[int, str, int]:
        """The first request that is tried, the drafter, and the rows that this lacks of it."""
        j, catch_up = tried.picked.item(0), self.candidates.catch_up
        rows = 0 if catch_up is None else catch_up.item(j)
        return self.ids[self.candidates.requests.item(j)], self.candidates.drafter(j), rows

    def forgone_ms(self, costs: Table) -> float:
        """What a step is worth less in which the first candidate's planned draft is not verified,
        and the tokens that it would bring are lost."""
        rows, saved = self.best.rows, self.before.item(0)
        saved_ms = costs.item(rows) - costs.item(max(rows - saved, 0))
        return max(0.0, self.lost.item(0) / self.best.goodput - saved_ms)
