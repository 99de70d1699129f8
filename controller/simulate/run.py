"""Runs a load on one simulated node under one policy: a closed loop, or requests that arrive."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from controller.contract import Controller, Decision
from controller.simulate.live import Live
from controller.simulate.load import Arrival, Phase
from controller.simulate.machine import Machine
from controller.simulate.predicted import Predictions
from controller.simulate.recovery import BIN_STEPS
from controller.simulate.step import Step, Stepper
from controller.simulate.texts import Library

BINS = 200
"""Points of a run's course that are kept for plots."""

Progress = Callable[[float], None]


class Clock:
    """Seconds of the simulated world, for controllers that ask the time."""

    def __init__(self) -> None:
        self.ms = 0.0

    def __call__(self) -> float:
        return self.ms / 1e3


@dataclass(slots=True)
class Latency:
    """Of a finished request in ms: to its first token, and per token after that, None where there
    was none."""

    first_ms: float
    per_token_ms: float | None


class Point(NamedTuple):
    """A stretch of a run: when it ended, mean requests, speed, D per request, and the share of
    request-steps by drafter."""

    second: float
    requests: float
    tokens_per_s: float
    length: float
    shares: dict[str, float]


@dataclass(slots=True)
class Run:
    """What a run gave. tokens: of decoding requests. first_tokens: those that came with prompts.
    phases: (tokens, ms) of each. bins: of each phase, (tokens, ms) of every BIN_STEPS steps of it.
    course: of stretches of as many steps each. calibration: relative errors of the predicted tokens
    and ms, see Predictions."""

    steps: int = 0
    tokens: int = 0
    ms: float = 0.0
    drafted: int = 0
    accepted: int = 0
    request_steps: int = 0
    plan_seconds: float = 0.0
    drafting: dict[str, int] = field(default_factory=dict)
    phases: list[tuple[int, float]] = field(default_factory=list)
    bins: list[list[tuple[int, float]]] = field(default_factory=list)
    first_tokens: int = 0
    decisions: list[Decision] = field(default_factory=list)
    latencies: list[Latency] = field(default_factory=list)
    course: list[Point] = field(default_factory=list)
    calibration: dict[str, float] | None = None
    _bin: list[Step] = field(default_factory=list)
    _bin_size: int = 16

    @property
    def throughput(self) -> float:
        """Committed tokens per second."""
        return 1e3 * (self.tokens + self.first_tokens) / self.ms if self.ms else 0.0

    @property
    def acceptance_length(self) -> float:
        """Committed tokens per request and step."""
        return self.tokens / self.request_steps if self.request_steps else 0.0

    @property
    def mean_length(self) -> float:
        """Mean D per request and step."""
        return self.drafted / self.request_steps if self.request_steps else 0.0

    def add(self, step: Step) -> None:
        self.steps += 1
        self.tokens += step.tokens
        self.first_tokens += step.first_tokens
        self.ms += step.ms
        self.drafted += step.drafted
        self.accepted += step.accepted
        self.request_steps += step.requests
        self.plan_seconds += step.plan_seconds
        for name, count in step.drafting.items():
            self.drafting[name] = self.drafting.get(name, 0) + count
        self._bin.append(step)
        if len(self._bin) >= self._bin_size:
            self.flush()

    def flush(self) -> None:
        """Close the bin of the course; when there are too many, they become twice as wide."""
        some, self._bin = self._bin, []
        ms = sum(one.ms for one in some)
        if not ms:
            return
        requests = sum(one.requests for one in some)
        shares: dict[str, float] = {}
        for one in some:
            for name, count in one.drafting.items():
                shares[name] = shares.get(name, 0.0) + count / max(requests, 1)
        tokens = sum(one.tokens + one.first_tokens for one in some)
        length = sum(one.drafted for one in some) / max(requests, 1)
        self.course.append(
            Point(self.ms / 1e3, requests / len(some), 1e3 * tokens / ms, length, shares)
        )
        if len(self.course) >= 2 * BINS:
            self.course = self.course[1::2]
            self._bin_size *= 2


def closed(
    machine: Machine,
    library: Library,
    phases: Sequence[Phase],
    controller: Controller,
    clock: Clock,
    seed: int,
    progress: Progress = lambda fraction: None,
) -> Run:
    """Decode only, as many requests as each phase has."""
    stepper = Stepper(machine, library, controller, np.random.default_rng((seed, 1)))
    run = Run()
    live: list[Live] = []
    number = 0
    whole = sum(phase.work for phase in phases)
    predictions = Predictions(controller)
    for place, phase in enumerate(phases):
        order = library.order(phase.corpus, np.random.default_rng((seed, 0, place))).tolist()
        drawn = 0
        stay = 0 if phase.fresh else phase.requests
        for one in live[stay:]:
            controller.forget(one.id)
        del live[stay:]
        tokens, begin = 0, run.ms
        steps, bins = 0, list[tuple[int, float]]()
        while tokens < phase.work:
            for slot in range(phase.requests):
                if slot < len(live) and live[slot].at < live[slot].end:
                    continue
                text = order[drawn % len(order)]
                drawn, number = drawn + 1, number + 1
                one = Live(
                    number, int(library.begin[text]), int(library.last[text]),
                    int(library.context[text]), len(stepper.shadows.names), run.ms,
                )  # fmt: skip
                stepper.start(one)
                if slot < len(live):
                    controller.forget(live[slot].id)
                    live[slot] = one
                else:
                    live.append(one)
            step = stepper.step(live, run.ms)
            tokens += step.tokens
            if step.looked:
                predictions.add(step.tokens, step.ms)
            if steps % BIN_STEPS == 0:
                bins.append((0, 0.0))
            bins[-1] = (bins[-1][0] + step.tokens, bins[-1][1] + step.ms)
            steps += 1
            run.add(step)
            clock.ms = run.ms
            _take(controller, run)
            if run.steps % 64 == 0:
                progress(run.tokens / whole)
        run.phases.append((tokens, run.ms - begin))
        run.bins.append(bins)
    run.calibration = predictions.errors()
    run.flush()
    progress(1.0)
    return run


def open_loop(
    machine: Machine,
    library: Library,
    requests: Sequence[Arrival],
    controller: Controller,
    clock: Clock,
    seed: int,
    progress: Progress = lambda fraction: None,
) -> Run:
    """Requests arrive by themselves, wait for a place, have their prompts computed in chunks
    beside the decoding ones, and decode. Ends when all are through."""
    stepper = Stepper(machine, library, controller, np.random.default_rng((seed, 1)))
    run = Run()
    waiting = deque(requests)
    live: list[Live] = []
    number, finished = 0, 0
    while waiting or live:
        if not live and waiting:
            clock.ms = max(clock.ms, waiting[0].ms)
        while waiting and waiting[0].ms <= clock.ms and len(live) < machine.max_batch:
            arrival = waiting.popleft()
            number += 1
            end = int(library.last[arrival.text])
            one = Live(
                number, end - arrival.output, end, arrival.prompt, len(stepper.shadows.names),
                arrival.ms,
            )  # fmt: skip
            one.prefill = arrival.prompt
            live.append(one)
        decoding = [one for one in live if not one.prefill]
        room, prefilled = machine.chunk_rows, list[Live]()
        for one in live:
            if one.prefill and room:
                rows = min(one.prefill, room)
                one.prefill -= rows
                room -= rows
                if not one.prefill:
                    prefilled.append(one)
        step = stepper.step(decoding, clock.ms, machine.chunk_rows - room)
        clock.ms += step.ms
        for one in prefilled:  # the first token comes with the prompt's last row
            one.at += 1
            one.starts = [one.at] * len(one.starts)
            one.first_ms = clock.ms
            stepper.start(one)
            step.first_tokens += 1
        run.add(step)
        _take(controller, run)
        for one in live:
            if one.at >= one.end and not one.prefill:
                more = one.produced - 1
                per_token = (clock.ms - one.first_ms) / more if more else None
                run.latencies.append(Latency(one.first_ms - one.arrived, per_token))
                controller.forget(one.id)
                finished += 1
        live = [one for one in live if one.at < one.end or one.prefill]
        if run.steps % 64 == 0:
            progress(finished / len(requests))
    run.phases.append((run.tokens, run.ms))
    run.flush()
    progress(1.0)
    return run


def _take(controller: Controller, run: Run) -> None:
    """Keep each decision as it was last told."""
    for decision in controller.take_decisions():
        run.decisions[:] = [one for one in run.decisions if one.id != decision.id]
        run.decisions.append(decision)
