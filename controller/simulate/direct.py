"""Static choices and the clairvoyant over the same texts and costs, without a controller.

A static choice needs no plan, so the whole grid of drafters and D runs side by side in arrays
[S, B]: S choices, B places of the batch. Times are free of noise. A test holds it equal to the full
loop with a pinned controller."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from controller.contract import NONE
from controller.simulate.load import Phase
from controller.simulate.machine import Machine
from controller.simulate.texts import LONGEST, Library, Numbers


@dataclass(frozen=True, slots=True)
class Static:
    """Always this drafter and D, for every request that it has a draft for."""

    drafter: str
    length: int

    @property
    def name(self) -> str:
        return self.drafter if self.drafter == NONE else f"{self.drafter}:{self.length}"


@dataclass(frozen=True, slots=True)
class Result:
    """phases: (tokens, ms) of each."""

    phases: tuple[tuple[int, float], ...]
    steps: int
    drafted: int
    request_steps: int

    @property
    def tokens(self) -> int:
        return sum(tokens for tokens, _ in self.phases)

    @property
    def ms(self) -> float:
        return sum(ms for _, ms in self.phases)

    @property
    def throughput(self) -> float:
        """Committed tokens per second."""
        return 1e3 * self.tokens / self.ms


def grid(machine: Machine) -> list[Static]:
    """Plain decoding, and every drafter with every D from 1 on."""
    return [Static(NONE, 0)] + [
        Static(one.name, length) for one in machine.drafters for length in range(1, one.longest + 1)
    ]


class _Places:
    """Where each place of the batch is in its text, for S runs side by side. Requests of a phase
    get its texts in one order, place by place, as in the full loop."""

    def __init__(self, library: Library, runs: int, phases: Sequence[Phase], seed: int) -> None:
        self._library, self._phases = library, phases
        self.size = max(phase.requests for phase in phases)
        self.at = np.zeros((runs, self.size), np.int64)
        self.end = np.zeros((runs, self.size), np.int64)
        self.context = np.zeros((runs, self.size), np.int64)
        self.used = np.zeros((runs, self.size), bool)
        self._orders = [
            library.order(phase.corpus, np.random.default_rng((seed, 0, place)))
            for place, phase in enumerate(phases)
        ]
        self._drawn = np.zeros(runs, np.int64)
        self.phase = np.zeros(runs, np.int64)
        for run in range(runs):
            self.begin(run, 0)

    def begin(self, run: int, phase: int) -> None:
        """A run enters a phase: it has more or fewer places."""
        self.phase[run] = phase
        self._drawn[run] = 0
        size = 0 if self._phases[phase].fresh else self._phases[phase].requests
        self.at[run, size:] = self.end[run, size:] = self.context[run, size:] = 0
        size = self._phases[phase].requests
        self.used[run] = np.arange(self.size) < size

    def refill(self, active: Numbers) -> None:
        """New texts where one has ended, in the runs of these numbers."""
        library = self._library
        free = self.used[active] & (self.at[active] >= self.end[active])
        for row in np.flatnonzero(free.any(axis=1)).tolist():
            run = int(active[row])
            slots = np.flatnonzero(free[row])
            order = self._orders[int(self.phase[run])]
            texts = order[(self._drawn[run] + np.arange(len(slots))) % len(order)]
            self._drawn[run] += len(slots)
            self.at[run, slots] = library.begin[texts]
            self.end[run, slots] = library.last[texts]
            self.context[run, slots] = library.context[texts]


def run_statics(
    machine: Machine,
    library: Library,
    phases: Sequence[Phase],
    choices: Sequence[Static],
    seed: int,
) -> list[Result]:
    """One result per choice, over the same texts."""
    drafters = {one.name: i for i, one in enumerate(machine.drafters)}
    accepted = np.stack([library.accepted[name] for name in drafters])
    offered = np.stack([one.info.model | (library.match[one.name] > 0) for one in machine.drafters])
    shares = np.array([one.verify_share for one in machine.drafters])
    fixed = np.array([one.fixed_ms for one in machine.drafters])
    depths = np.array([one.depth_ms for one in machine.drafters])
    which = np.array([drafters.get(one.drafter, 0) for one in choices])
    lengths = np.array([one.length for one in choices])
    places = _Places(library, len(choices), phases, seed)
    work = np.array([phase.work for phase in phases])
    tokens, ms = np.zeros((2, len(choices), len(phases)))
    steps, drafted, request_steps = np.zeros((3, len(choices)), np.int64)
    active = np.arange(len(choices))
    last = accepted.shape[1] - 1
    while len(active):
        places.refill(active)
        used = places.used[active]
        at = np.minimum(places.at[active], last)
        mine = which[active][:, None]
        drafts = np.where(used & offered[mine, at], lengths[active][:, None], 0)
        got = np.minimum(accepted[mine, at], drafts)
        committed = np.where(used, np.minimum(got + 1, places.end[active] - at), 0)
        rows = np.where(used, 1 + drafts, 0)
        verify = machine.cost.verify_ms(rows, places.context[active])
        verify = verify * machine.factors(ms[active].sum(axis=1))
        deepest = drafts.max(axis=1)
        one = which[active]
        drafting = fixed[one] + depths[one] * deepest + shares[one] * verify
        taken = verify + np.where(deepest > 0, drafting, 0.0) + machine.overhead_ms
        places.at[active] += committed
        places.context[active] += committed
        phase = places.phase[active]
        tokens[active, phase] += committed.sum(axis=1)
        ms[active, phase] += taken
        steps[active] += 1
        drafted[active] += drafts.sum(axis=1)
        request_steps[active] += used.sum(axis=1)
        through = tokens[active, phase] >= work[phase]
        for run in active[through].tolist():
            if places.phase[run] + 1 < len(phases):
                places.begin(run, int(places.phase[run]) + 1)
                through[active == run] = False
        active = active[~through]
    return [
        Result(
            tuple((int(t), float(m)) for t, m in zip(tokens[i], ms[i], strict=True)),
            int(steps[i]),
            int(drafted[i]),
            int(request_steps[i]),
        )
        for i in range(len(choices))
    ]


def run_clairvoyant(
    machine: Machine, library: Library, phases: Sequence[Phase], seed: int
) -> Result:
    """Knows each step's drafts beforehand: per step the best depth of one model's pass and, for
    each request, the drafter and length that commit most without a wrong row; with chains also
    what a drafter without a model would add. Greedy per step, an upper bound for policies."""
    models = [one for one in machine.drafters if one.info.model]
    free = [one for one in machine.drafters if not one.info.model]
    places = _Places(library, 1, phases, seed)
    none = np.zeros(len(next(iter(library.accepted.values()))), np.int64)
    best_free = np.maximum.reduce([library.accepted[one.name] for one in free] or [none])
    share = max([one.verify_share for one in free], default=0.0)
    depth = np.arange(LONGEST + 1)
    tokens, ms = np.zeros((2, len(phases)))
    steps = drafted = request_steps = 0
    only = np.zeros(1, np.int64)
    place = 0
    while place < len(phases):
        places.refill(only)
        used = places.used[0]
        at, end, context = places.at[0, used], places.end[0, used], places.context[0, used]
        left, factor = end - at, machine.factor(float(ms.sum()))
        plain = np.minimum(best_free[at], left - 1)
        best: tuple[float, np.ndarray, float] | None = None
        for model in models or [None]:
            gains = np.repeat(plain[:, None], len(depth), axis=1)
            if model is not None:
                own = np.minimum(library.accepted[model.name][at], left - 1)[:, None]
                reach = np.minimum(own, depth)
                if machine.chains:
                    behind = np.minimum(at[:, None] + depth, (end - 1)[:, None])
                    more = np.minimum(best_free[behind], (left - 1)[:, None] - depth)
                    whole = (own >= depth) & (depth > 0)
                    reach = np.where(whole, depth + np.maximum(more, 0), reach)
                gains = np.maximum(gains, np.minimum(reach, LONGEST))
            rows = np.where(depth == 0, plain[:, None], gains)
            verify = factor * machine.cost.verify_ms(1 + rows.T, np.tile(context, (len(depth), 1)))
            taken = verify + machine.overhead_ms + share * verify * (rows.sum(axis=0) > 0)
            if model is not None:
                taken = taken + (depth > 0) * model.fixed_ms + depth * model.depth_ms
            goodput = (rows.sum(axis=0) + len(at)) / taken
            pick = int(goodput.argmax())
            if best is None or goodput[pick] > best[0]:
                best = (float(goodput[pick]), rows[:, pick], float(taken[pick]))
        assert best is not None
        _, gained, took = best
        verify = factor * machine.cost.verify_ms(np.ones_like(gained), context)
        if len(at) / (verify + machine.overhead_ms) > best[0]:
            gained, took = np.zeros_like(gained), float(verify + machine.overhead_ms)
        committed = np.minimum(gained + 1, left)
        places.at[0, used] += committed
        places.context[0, used] += committed
        tokens[place] += committed.sum()
        ms[place] += took
        steps += 1
        drafted += int(gained.sum())
        request_steps += len(at)
        if tokens[place] >= phases[place].work:
            place += 1
            if place < len(phases):
                places.begin(0, place)
    found = tuple((int(t), float(m)) for t, m in zip(tokens, ms, strict=True))
    return Result(found, steps, drafted, request_steps)
