"""Probes of what no choice of the plan is: drafters left out, cold ones, models' deeper drafts."""

from __future__ import annotations

from collections.abc import Sequence

from controller.choices import Choices, Table
from controller.contract import Allotment, Proposal
from controller.lineup import Lineup
from controller.planner import Allocation
from controller.probing import BUDGET, PROBE_LENGTH, Probe, Probing, Swap, beyond
from controller.usable import COLD_ROWS

DEEPER_LENGTH = 2
"""Positions beyond a model's pass that are tried at once."""

ROWS = PROBE_LENGTH + DEEPER_LENGTH
"""A probe adds fewer rows than this to the plan's, whatever it replaces."""

DOUBT, LEAST_MS = 4.0, 5.0
LONGEST_MS = BUDGET * 30_000.0
"""A step of a probe is charged at most DOUBT times what all of it was expected to take and LEAST_MS
beyond that, and no more than the budget of 30 s: what stalls once, as a first call that compiles,
says nothing of the next, and must not stop all probes for minutes."""


class Explorer:
    """Swaps one request's draft where a probe is due and can be afforded.

    A cold drafter may take steps to catch up: it is given the same request again until it has. The
    time that all of that is expected to take is accounted for with the first; the tokens that the
    request's own draft would have brought, which are lost in each, step by step."""

    def __init__(self, probing: Probing) -> None:
        self._probing = probing
        self._pursued: tuple[int, str, int] | None = None
        self._paid: tuple[str, float, float] | None = None  # drafter, ms expected, ms of it left
        self._probed = False

    def select(
        self, lineup: Lineup, costs: Table, best: Allocation, ids: Sequence[int]
    ) -> Probe | None:
        """The probe due for this step, already accounted for. ids: of the batch's requests.
        costs[m]: ms with m drafted rows, up to ROWS more than the plan's where there is room."""
        free = lineup.free
        known = [free.names[code] for code in free.present()]
        for name in lineup.offered.names:
            if name not in known and self._probing.due(name):
                swap = self._try(name, lineup.candidates(name), free, costs, best, ids)
                if swap is not None:
                    return Probe(idle=True, swap=swap)
        head = free.chain.head if free.chain is not None else ""
        full = _at_full_depth(free, best) if head else frozenset[int]()
        if full and self._probing.due(beyond(head)):
            deep = lineup.candidates(head)
            kept = [i for i, place in enumerate(deep.requests.tolist()) if place in full]
            deep = deep.take(kept)
            swap = self._try(head, deep, free, costs, best, ids)
            if swap is not None:
                return Probe(swap=swap)
        return None

    def resume(
        self, lineup: Lineup, costs: Table, best: Allocation, ids: Sequence[int]
    ) -> Probe | None:
        """The request of the last probe again, while its drafter gets on with catching up."""
        if self._pursued is None:
            return None
        request, name, before = self._pursued
        self._pursued = None
        rows = lineup.candidates(name)
        for j, place in enumerate(rows.requests.tolist()):
            left = 0 if rows.catch_up is None else rows.catch_up.item(j)
            if ids[place] == request and COLD_ROWS < left < before:
                self._pursued, self._probed = (request, name, left), True
                instead, lost = _gains(lineup.free, best).get(place, (None, 0.0))
                swap = _swap(rows, j, request, instead, best, costs, 0)
                if swap is None:
                    return None
                self._probing.spend(_forgone_ms(instead, lost, best, costs))
                return Probe(idle=True, swap=swap)
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
        candidates: Choices,
        free: Choices,
        costs: Table,
        best: Allocation,
        ids: Sequence[int],
    ) -> Swap | None:
        """The candidate that is expected to lose least, if that can be afforded. A drafter that the
        plan has is tried beyond its pass."""
        if not len(candidates):
            return None
        planned = _gains(free, best)
        chain = free.chain
        begun = chain.depth if chain is not None and chain.head == name else 0

        requests = candidates.requests.tolist()

        def worth(j: int) -> float:
            lost = planned.get(requests[j], (None, 0.0))[1]
            return (
                candidates.survival.item(j, begun if candidates.survival.shape[1] > begun else 0)
                - lost
                - candidates.catch_up_ms(j) * best.goodput
            )

        j = max(range(len(candidates)), key=worth)
        place = requests[j]
        instead, lost = planned.get(place, (None, 0.0))
        swap = _swap(candidates, j, ids[place], instead, best, costs, begun)
        if swap is None:
            return None
        before = 0 if instead is None else best.lengths.item(instead)
        rows = best.rows - before + swap.allotment.length
        rows_ms = costs.item(rows) - costs.item(best.rows)
        cost = max(0.0, swap.ms + rows_ms + (lost - swap.gain) / best.goodput)
        subject = beyond(name) if begun else name
        if not self._probing.affordable(cost):
            self._probing.put_off(subject)
            return None
        self._probing.fire(subject, cost)
        behind = 0 if candidates.catch_up is None else candidates.catch_up.item(j)
        if behind > COLD_ROWS:
            self._pursued = (ids[place], name, behind)
        if not begun:
            self._paid, self._probed = (name, swap.ms, swap.ms), True
        return swap


def _swap(
    candidates: Choices,
    j: int,
    request: int,
    instead: int | None,
    best: Allocation,
    costs: Table,
    begun: int,
) -> Swap | None:
    """A short draft of candidate j, or one a little deeper than the drafter's pass of depth
    `begun`; None without room for it."""
    before = 0 if instead is None else best.lengths.item(instead)
    most = begun + DEEPER_LENGTH if begun else PROBE_LENGTH
    length = min(most, candidates.longest.item(j), len(costs) - 1 - best.rows + before)
    if length <= begun:
        return None
    name = candidates.drafter(j)
    price = candidates.price(candidates.who.item(j))
    if begun:
        ms = price.per_depth * (length - begun)
    else:
        ms = price.ms(1, length) + candidates.catch_up_ms(j)
    gain = float(candidates.survival[j, :length].sum())
    return Swap(candidates.requests.item(j), Allotment(request, name, length), instead, gain, ms)


def _forgone_ms(instead: int | None, lost: float, best: Allocation, costs: Table) -> float:
    """What a step is worth less in which the planned draft of a request is not verified, and `lost`
    tokens are not accepted."""
    if instead is None:
        return 0.0
    saved = costs.item(best.rows) - costs.item(best.rows - best.lengths.item(instead))
    return max(0.0, lost / best.goodput - saved)


def _gains(free: Choices, best: Allocation) -> dict[int, tuple[int, float]]:
    """By place in the batch, the choice that drafts for it and its expected accepted tokens."""
    lengths = best.lengths.tolist()
    return {
        free.requests.item(i): (i, float(free.survival[i, :length].sum()))
        for i, length in enumerate(lengths)
        if length
    }


def _at_full_depth(free: Choices, best: Allocation) -> frozenset[int]:
    """Places in the batch whose drafts reach the end of the shared pass."""
    chain = free.chain
    if chain is None:
        return frozenset()
    heads = free.places(chain.head)
    return frozenset(free.requests[heads[best.lengths[heads] >= chain.depth]].tolist())
