"""When to try, on a live step, what cannot be known otherwise; with back-off and a budget."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from controller.choices import Choices, Lengths, Table
from controller.contract import NONE, Allotment
from controller.planner import Allocation, drafted_rows, gains
from controller.trials import catch_up_ms, trial

SHORTEST, LONGEST = 4, 512
RENEWED_AFTER = 16
"""Steps after which an idle drafter is tried again where half of the requests are new since."""
BUDGET = 0.004
MEMORY_MS = 600_000.0
PROBE_LENGTH = 4
DEEPER, BEYOND, WHOLE = ", deeper", ", beyond its pass", ", whole"
SUBJECTS = (NONE, DEEPER, BEYOND, WHOLE)
"""What is probed beside drafters themselves, or how its name ends."""


@dataclass(frozen=True, slots=True)
class Swap:
    """An allotment in the place of the planned one. place: of the request in the batch."""

    place: int
    allotment: Allotment


@dataclass(frozen=True, slots=True)
class Probe:
    """A change of the plan for information. lengths: of the free choices, as the probe has them.
    idle: the drafter that would not have run at all, or "". swaps: drafts that no choice has; gain
    and ms: their expected tokens, and the time that they take. whole: drafts do not end at bars."""

    lengths: Lengths
    idle: str = ""
    swaps: tuple[Swap, ...] = ()
    gain: float = 0.0
    ms: float = 0.0
    whole: bool = False


def deeper(drafter: str) -> str:
    """The subject of probes beyond the lengths that the plan gives the drafter."""
    return drafter + DEEPER


def beyond(drafter: str) -> str:
    """The subject of probes beyond the depth of the drafter's shared pass."""
    return drafter + BEYOND


def whole(drafter: str) -> str:
    """The subject of probes of what bars keep out of the drafter's drafts."""
    return drafter + WHOLE


class Probing:
    """Back-off per subject (a drafter, or plain decoding): the interval doubles from 4 to 512
    steps with each probe and returns to 4 on a change. It stays 4 for an idle drafter that little
    is known of. All probes together spend at most 0.4 % of the time of the last ten minutes
    (exponentially weighted)."""

    def __init__(self, is_known: Callable[[str], bool] = lambda drafter: True) -> None:
        self._is_known = is_known
        self._interval: dict[str, int] = {}
        self._waited: dict[str, int] = {}
        self._elapsed = 0.0
        self._spent = 0.0
        self._count = 0
        self._ids: Sequence[int] = ()
        self._middle = self._newest = 0
        self._newest_at: dict[str, int] = {}

    def batch(self, ids: Sequence[int]) -> None:
        """The requests of this step; their ids rise in the order in which they came."""
        if ids != self._ids:
            self._ids = ids
            ordered = sorted(ids)
            self._middle, self._newest = ordered[len(ordered) // 2], ordered[-1]

    def renewed(self, drafter: str) -> bool:
        """Whether half of the requests have come since the last probe of an idle drafter: what it
        showed was of other texts."""
        waited = self._waited.get(drafter, 0)
        return waited >= RENEWED_AFTER and self._middle > self._newest_at.get(drafter, self._newest)

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
        self._newest_at[subject] = self._newest
        if subject in SUBJECTS or subject.endswith(SUBJECTS) or self._is_known(subject):
            self._interval[subject] = min(2 * self._interval.get(subject, SHORTEST), LONGEST)

    def put_off(self, subject: str) -> None:
        """A probe cannot be afforded now: it is due again in a few steps."""
        self._waited[subject] = self._interval.get(subject, SHORTEST) - SHORTEST
        self._newest_at[subject] = self._newest

    def spend(self, ms: float) -> None:
        """A probe took so much more than was accounted for."""
        self._spent += ms

    def elapse(self, ms: float) -> None:
        """A step of `ms` milliseconds passed."""
        keep = max(0.0, 1.0 - ms / MEMORY_MS)
        self._elapsed = keep * self._elapsed + ms
        self._spent *= keep

    def reset(self) -> None:
        """Something changed: probe soon again, within the budget."""
        self._interval.clear()
        self._waited.clear()

    def forget(self, drafter: str) -> None:
        """The drafter is gone, or another one comes by its name."""
        for subject in (drafter, deeper(drafter), beyond(drafter), whole(drafter)):
            self._interval.pop(subject, None)
            self._waited.pop(subject, None)
            self._newest_at.pop(subject, None)

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
                return Probe(np.zeros_like(best.lengths))
        drafts, ended = [0] * len(choices.names), [0] * len(choices.names)
        who, longest = choices.who.tolist(), choices.longest.tolist()
        for code, length, most in zip(who, best.lengths.tolist(), longest, strict=True):
            if length:
                drafts[code] += 1
                ended[code] += length >= most
        for code in dict.fromkeys(who):
            name, running = choices.names[code], drafts[code] > 0
            if running:
                self.seen(name)
                if ended[code]:
                    continue
            due = self.due(deeper(name) if running else name)
            if not (due or (not running and self.renewed(name))):
                continue
            mine = choices.who == code
            if running:
                mine &= best.lengths > 0
            probe = self._try(mine.nonzero()[0], not running, choices, costs, best)
            if probe is not None:
                return probe
        return None

    def whole(self, choices: Choices, costs: Table, best: Allocation) -> Probe | None:
        """The drafts of the chain without their bars, where that is due, or None. What a bar keeps
        out is never seen: nobody would notice that it has become worth its row."""
        chain = choices.chain
        if chain is None or not self.due(subject := whole(chain.head)):
            return None
        lengths = best.lengths
        rows = drafted_rows(choices, lengths) - drafted_rows(choices, lengths, barred=True)
        gain = gains(choices, lengths) - gains(choices, lengths, barred=True)
        row_ms = (costs.item(-1) - costs.item(0)) / max(len(costs) - 1, 1)
        cost = rows * row_ms - float(np.add.reduce(gain)) / best.goodput
        if not self.affordable(max(cost, 0.0)):
            self.put_off(subject)
            return None
        self.fire(subject, max(cost, 0.0))
        return Probe(lengths, whole=True)

    def _try(
        self, mine: Lengths, idle: bool, choices: Choices, costs: Table, best: Allocation
    ) -> Probe | None:
        """Some of a drafter's choices some tokens deeper than planned, as far as the draft goes;
        idle: the drafter does not run at all."""
        found = choices.take(mine)
        planned, code = best.lengths[mine], choices.who.item(mine[0])
        lengths = np.minimum(planned + PROBE_LENGTH, found.longest)
        price, before = choices.price(code), int(np.maximum.reduce(planned))
        depth = choices.depth(code, int(np.maximum.reduce(lengths)))
        if idle:
            own_ms = catch_up_ms(found) + price.per_request
            pass_ms = price.ms(1, depth) - price.per_request
        else:
            own_ms = np.zeros(len(mine))
            pass_ms = price.per_depth * max(0, depth - choices.depth(code, before))
        gain = gains(found, lengths) - gains(found, planned)
        tried = trial(lengths - planned, gain, own_ms, pass_ms, costs, best)
        if tried is None or not tried.rows:
            return None
        subject = choices.names[code] if idle else deeper(choices.names[code])
        if not self.affordable(tried.cost):
            self.put_off(subject)
            return None
        self.fire(subject, tried.cost)
        changed, picked = best.lengths.copy(), tried.picked
        changed[mine[picked]] = lengths[picked]
        return Probe(changed, choices.names[code] if idle else "")

    def report(self) -> dict[str, object]:
        share = self._spent / self._elapsed if self._elapsed else 0.0
        return {
            "count": self._count,
            "time_share": round(share, 6),
            "interval_steps": dict(self._interval),
        }
