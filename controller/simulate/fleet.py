"""A scenario: one node or many replicas under each of several policies.

Of many replicas a few are simulated, each with its own arrivals, noise and texts, and the sum is
scaled: replicas share nothing but the router that deals the requests out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from controller.contract import Setting
from controller.simulate.calibration import calibrate
from controller.simulate.direct import grid, run_clairvoyant, run_statics
from controller.simulate.load import Arrival, Phase
from controller.simulate.machine import Machine
from controller.simulate.policy import Choice, build
from controller.simulate.rows import BEST_STATIC, CLAIRVOYANT, NONE_AT_ALL, Row, bound, row
from controller.simulate.run import Clock, Progress, Run, closed, open_loop
from controller.simulate.texts import Library

QUANTILES = (0.5, 0.9, 0.99)

Deal = Callable[[Library, int, np.random.Generator], list[Arrival]]
"""The arrivals of one replica, by its number."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """phases: of a closed loop, per replica; or deal: of an open one.
    replicas: how many there are; sample: how many of them are simulated."""

    machine: Machine
    library: Library
    setting: Setting
    phases: tuple[Phase, ...] = ()
    deal: Deal | None = None
    replicas: int = 1
    sample: int = 1
    seed: int = 0


def simulate(scenario: Scenario, choice: Choice, progress: Progress) -> Row:
    """One policy on the sampled replicas; throughput is of all replicas together."""
    runs: list[Run] = []
    for replica in range(scenario.sample):

        def share(fraction: float, done: int = replica) -> None:
            progress((done + fraction) / scenario.sample)

        runs.append(_one(scenario, choice, replica, share))
    first = row(choice.label, runs[0])
    scale = scenario.replicas / scenario.sample
    first["tokens_per_s"] = round(scale * sum(run.throughput for run in runs), 3)
    first["replicas"], first["simulated"] = scenario.replicas, scenario.sample
    if scenario.deal is not None:
        first |= _latencies(runs)
    return first


def _one(scenario: Scenario, choice: Choice, replica: int, progress: Progress) -> Run:
    machine, library = scenario.machine, scenario.library
    seed = scenario.seed + 1000 * replica
    points = calibrate(
        machine.cost, machine.max_batch, machine.noise, np.random.default_rng((seed, 2))
    )
    clock = Clock()
    controller = build(choice, machine, points, clock, scenario.setting)
    if scenario.deal is None:
        return closed(machine, library, scenario.phases, controller, clock, seed, progress)
    requests = scenario.deal(library, replica, np.random.default_rng((seed, 3)))
    return open_loop(machine, library, requests, controller, clock, seed, progress)


def _latencies(runs: Sequence[Run]) -> dict[str, Any]:
    """Quantiles over the finished requests of all simulated replicas, in ms; of the time per token
    over those with two or more."""
    all_of = [one for run in runs for one in run.latencies]
    found: dict[str, Any] = {"finished": len(all_of)}
    for name, values in (
        ("ttft_ms", [one.first_ms for one in all_of]),
        ("tpot_ms", [one.per_token_ms for one in all_of if one.per_token_ms is not None]),
    ):
        if values:
            levels = np.quantile(values, QUANTILES).tolist()
            found[name] = {
                f"p{100 * q:g}": round(v, 3) for q, v in zip(QUANTILES, levels, strict=True)
            }
    return found


def bounds(scenario: Scenario) -> list[Row]:
    """Of a closed loop: plain decoding, the best static drafter and D in hindsight, and the
    clairvoyant, on the first replica and scaled. Nothing of an open one."""
    if scenario.deal is not None:
        return []
    machine, library, phases = scenario.machine, scenario.library, scenario.phases
    choices = grid(machine)
    results = run_statics(machine, library, phases, choices, scenario.seed)
    best = max(range(len(choices)), key=lambda i: results[i].throughput)
    seen = run_clairvoyant(machine, library, phases, scenario.seed)
    found = [
        bound(NONE_AT_ALL, results[0]),
        {**bound(BEST_STATIC, results[best]), "static": choices[best].name},
        bound(CLAIRVOYANT, seen),
    ]
    for one in found:
        one["tokens_per_s"] = round(scenario.replicas * one["tokens_per_s"], 3)
    return found
