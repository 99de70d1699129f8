"""When to try, on a live step, what cannot be known otherwise; with back-off and a budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from controller.contract import NONE
from controller.planner import Allocation, Choice

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

    def select(
        self, choices: Sequence[Choice], costs: Sequence[float], best: Allocation
    ) -> Probe | None:
        """The probe due for this step, already accounted for, or None.

        What neither shadow nor plan shows: the cost of plain steps while everything drafts; the
        cost and acceptance of a drafter that the plan leaves out; positions beyond the plan's."""
        rows = sum(best.lengths)
        if not rows:
            self.seen(NONE)
        elif self.due(NONE):
            cost = costs[0] - best.plain_tokens / best.goodput
            if self.affordable(cost):
                self.fire(NONE, cost)
                return Probe(None)
        for name in dict.fromkeys(c.drafter for c in choices):
            probe = self._select_drafter(name, choices, costs, best, rows)
            if probe is not None:
                return probe
        return None

    def _select_drafter(
        self,
        name: str,
        choices: Sequence[Choice],
        costs: Sequence[float],
        best: Allocation,
        rows: int,
    ) -> Probe | None:
        mine = [i for i, c in enumerate(choices) if c.drafter == name]
        live = [i for i in mine if best.lengths[i]]
        if live:
            self.seen(name)
            mine = [i for i in live if best.lengths[i] < len(choices[i].survival)]
            if len(mine) < len(live):
                return None
        subject = f"{name}, deeper" if live else name
        if not self.due(subject):
            return None
        i = max(mine, key=lambda j: choices[j].survival[0])
        survival, planned = choices[i].survival, best.lengths[i]
        more = min(PROBE_LENGTH, len(survival) - planned, len(costs) - 1 - rows)
        if more < 1:
            return None
        gain = sum(survival[planned : planned + more])
        cost = costs[rows + more] - costs[rows] - gain / best.goodput
        cost = max(0.0, cost + (0.0 if live else choices[i].draft_ms))
        if not self.affordable(cost):
            return None
        self.fire(subject, cost)
        return Probe(i, more, idle=not live)

    def report(self) -> dict[str, object]:
        share = self._spent / self._elapsed if self._elapsed else 0.0
        return {
            "count": self._count,
            "time_share": round(share, 6),
            "interval_steps": dict(self._interval),
        }
