"""What a benchmark runs, in which order: groups of slices that every arm runs in its turn."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import msgspec

from app.bench.arrivals import poisson, prompts_like, read_trace
from app.bench.phases import Phase, prompts_of, read_phases
from app.bench.prompts import category, chunks
from app.bench.workloads import Prompt
from app.failures import SettingsError

SMALLEST_CHUNK = 5
CHUNK_WAVES = 4


class Slice(msgspec.Struct, frozen=True):
    """Prompts that an arm runs in one go, `concurrency` at once, or at their times of arrival.
    temperature and max_tokens: instead of the run's."""

    number: int
    prompts: Sequence[Prompt]
    category: str
    concurrency: int = 0
    rate: float = 0.0
    arrivals: Sequence[float] | None = None
    phase: str = ""
    temperature: float | None = None
    max_tokens: int | None = None


Group = list[Slice]
"""Slices that an arm runs one after the other before the next arm has its turn."""


def groups(options: argparse.Namespace, prompts: list[Prompt]) -> list[Group]:
    """The groups of one repeat: each chunk at each concurrency and each rate, or a trace, or all
    phases in one group, because what an adaptive server learns in one matters in the next. Raises
    SettingsError."""
    phases = read_phases(options.phases, options.phase)
    chosen = [
        name
        for name, there in (
            ("--phase", phases), ("--trace", options.trace), ("--rate", options.rate),
        )
        if there
    ]  # fmt: skip
    if len(chosen) > 1:
        raise SettingsError(f"Give only one of {' and '.join(chosen)}.")
    if phases:
        return [phased(phases, prompts)]
    if options.trace:
        return [[traced(options, prompts)]]
    if options.rate:
        return [[opened(rate, prompts)] for rate in options.rate]
    return [[one] for concurrency in options.concurrency for one in closed(concurrency, prompts)]


def closed(concurrency: int, prompts: list[Prompt]) -> list[Slice]:
    """A chunk runs long enough to keep `concurrency` requests busy, and is short beside what a
    shared machine drifts in."""
    size = max(SMALLEST_CHUNK, CHUNK_WAVES * concurrency)
    parts = chunks(prompts, size, concurrency)
    return [Slice(number, part, category(part), concurrency) for number, part in enumerate(parts)]


def opened(rate: float, prompts: list[Prompt]) -> Slice:
    arrivals = poisson(rate, len(prompts))
    return Slice(0, prompts, category(prompts), rate=rate, arrivals=arrivals)


def traced(options: argparse.Namespace, prompts: list[Prompt]) -> Slice:
    trace = read_trace(
        Path(options.trace),
        limit=options.limit,
        speed=options.trace_speed,
        token_scale=options.trace_tokens,
    )
    made = prompts_like(trace, prompts)
    arrivals = [arrival.at_s for arrival in trace]
    rate = (len(trace) - 1) / arrivals[-1] if arrivals[-1] > 0 else 0.0
    return Slice(0, made, category(made), rate=rate, arrivals=arrivals)


def phased(phases: Sequence[Phase], prompts: list[Prompt]) -> Group:
    found = []
    for number, (phase, part) in enumerate(zip(phases, prompts_of(phases, prompts), strict=True)):
        open_loop = phase.rate is not None
        found.append(
            Slice(
                number,
                part,
                category(part),
                0 if open_loop else phase.concurrency,
                phase.rate or 0.0,
                poisson(phase.rate, len(part), seed=number + 1) if phase.rate else None,
                phase.name,
                phase.temperature,
                phase.max_tokens,
            )
        )
    return found


def rotated(names: list[str], by: int) -> list[str]:
    """Who starts changes from group to group, since the first meets the cold cache."""
    by %= len(names)
    return names[by:] + names[:by]
