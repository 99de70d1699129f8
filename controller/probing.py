"""When to try, on a live step, what cannot be known otherwise; with back-off and a budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from controller.contract import NONE
from controller.planner import Allocation, Choices, Lengths, Table

SHORTEST, LONGEST = 4, 512
BUDGET = 0.004
MEMORY_MS = 600_000.0
PROBE_LENGTH = 4


@dataclass(frozen=True, slots=True)
class Probe:
    """A change of the plan for information. choice: index of the choice that drafts `more` tokens
    than planned; None drops all drafts to measure plain decoding. idle: the drafter would not
    have run at all."""

    choice: int | None
    more: int = 0
    idle: bool = False

    def apply(self, lengths: Lengths) -> Lengths:
        """The planned lengths as the probe changes them."""
        if self.choice is None:
            return np.zeros_like(lengths)
        changed = lengths.copy()
        changed[self.choice] += self.more
        return changed


class Probing:
    """Back-off per subject (a drafter, or plain decoding): the interval doubles from 4 to 512
    steps with each probe and returns to 4 on a change. All probes together spend at most 0.4 %
    of the time of the last ten minutes (exponentially weighted)."""

    def __init__(self) -> None:
        self._interval: dict[str, int] = {}
        self._waited: dict[str, int] = {}
        self._elapsed = 0.0
        self._spent = 0.0
        self._count = 0

    def due(self, subject: str) -> bool:
        """Count one step without news of the subject; True when it is time for a probe."""
        waited = self._waited.get(subject, 0) + 1
        self._waited[subject] = waited
        return waited >= self._interval.get(subject, SHORTEST)

    def seen(self, subject: str) -> None:
        """The step itself brings news of the subject."""
        self._waited[subject] = 0

    def affordable(self, cost_ms: float) -> bool:
        return self._spent + cost_ms <= BUDGET * self._elapsed

    def fire(self, subject: str, cost_ms: float) -> None:
        """Account for a probe that is expected to cost `cost_ms`."""
        self._spent += cost_ms
        self._count += 1
        self._waited[subject] = 0
        self._interval[subject] = min(2 * self._interval.get(subject, SHORTEST), LONGEST)

    def elapse(self, ms: float) -> None:
        """A step of `ms` milliseconds passed."""
        keep = max(0.0, 1.0 - ms / MEMORY_MS)
        self._elapsed = keep * self._elapsed + ms
        self._spent *= keep

    def reset(self) -> None:
        """Something changed: probe soon again, within the budget."""
        self._interval.clear()
        self._waited.clear()

    def select(self, choices: Choices, costs: Table, best: Allocation) -> Probe | None:
        """The probe due for this step, already accounted for, or None.

        What neither shadow nor plan shows: the cost of plain steps while everything drafts; the
        cost and acceptance of a drafter that the plan leaves out; positions beyond the plan's."""
        if not best.rows:
            self.seen(NONE)
        elif self.due(NONE):
            cost = costs.item(0) - best.plain_tokens / best.goodput
            if self.affordable(cost):
                self.fire(NONE, cost)
                return Probe(None)
        drafters = choices.drafters
        names = dict.fromkeys(drafters)
        for name in names:
            mine = range(len(drafters))
            if len(names) > 1:
                mine = [i for i in mine if drafters[i] == name]
            probe = self._select_drafter(name, mine, choices, costs, best)
            if probe is not None:
                return probe
        return None

    def _select_drafter(
        self,
        name: str,
        mine: Sequence[int],
        choices: Choices,
        costs: Table,
        best: Allocation,
    ) -> Probe | None:
        lengths, subject = best.lengths.tolist(), name
        live = [i for i in mine if lengths[i]] if best.rows else []
        if live:
            self.seen(name)
            mine, subject = live, f"{name}, deeper"
            longest = choices.longest.tolist()
            if any(lengths[i] >= longest[i] for i in live):
                return None
        if not self.due(subject):
            return None
        i = max(mine, key=lambda j: choices.survival.item(j, 0))
        idle, planned = not live, lengths[i]
        more = min(PROBE_LENGTH, choices.longest.item(i) - planned, len(costs) - 1 - best.rows)
        if more < 1:
            return None
        gain = float(choices.survival[i, planned : planned + more].sum())
        cost = costs.item(best.rows + more) - costs.item(best.rows) - gain / best.goodput
        price = choices.prices[name]
        deeper = choices.depth(name, planned + more) - choices.depth(name, planned)
        cost = max(0.0, cost + (price.ms(1, deeper) if idle else price.per_depth * deeper))
        if not self.affordable(cost):
            return None
        self.fire(subject, cost)
        return Probe(i, more, idle)

    def report(self) -> dict[str, object]:
        share = self._spent / self._elapsed if self._elapsed else 0.0
        return {
            "count": self._count,
            "time_share": round(share, 6),
            "interval_steps": dict(self._interval),
        }
