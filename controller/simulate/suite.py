"""The suite: every policy, the static grid and the clairvoyant in every cell, and the figures."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from statistics import fmean

from controller.policies import ADAPTIVE, NAMES
from controller.simulate.cells import (
    SETTING,
    Cell,
    library_of,
    machine,
    points_of,
)
from controller.simulate.direct import grid, run_clairvoyant, run_statics
from controller.simulate.policy import Choice, build
from controller.simulate.recovery import added_up, best_after, steps_to_recover
from controller.simulate.rows import (
    BEST_BY_PHASE,
    BEST_STATIC,
    CLAIRVOYANT,
    NONE_AT_ALL,
    Row,
    bound,
    compare,
    row,
)
from controller.simulate.run import Clock, closed

BREAK = "break"
STATICS = "static grid"
"""Names the task that runs all of them and the clairvoyant."""
COMPARED = tuple(name for name in NAMES if name not in (ADAPTIVE, "off"))
"""Policies beside the one that serves; plain decoding is in every cell anyway."""


@dataclass(frozen=True, slots=True)
class Task:
    """who: a policy's name, or STATICS."""

    cell: Cell
    who: str
    seed: int


def make_tasks(cells: Sequence[Cell], policies: Sequence[str], seed: int) -> list[Task]:
    """The longest first, so that processes end together."""
    found = [Task(cell, who, seed) for cell in cells for who in (STATICS, *policies)]
    return sorted(found, key=lambda task: -sum(phase.work for phase in task.cell.phases))


def run_task(task: Task) -> list[Row]:
    """The rows of one task."""
    cell, seed = task.cell, task.seed
    rows = _bounds(cell, seed) if task.who == STATICS else [_policy(cell, task.who, seed)]
    head = {"figure": cell.kind, "cell": cell.name, "batch": cell.batch}
    return [{**head, **one} for one in rows]


def _policy(cell: Cell, name: str, seed: int) -> Row:
    simulated = machine(cell.batch)
    clock = Clock()
    controller = build(Choice(name), simulated, points_of(simulated, seed), clock, SETTING)
    library = library_of(tuple(cell.corpora))
    run = closed(simulated, library, cell.phases, controller, clock, seed)
    found = row(name, run)
    if cell.kind == BREAK:
        found["after_break"] = added_up(cell.phases, run.bins, cell.corpora)
    return found


def _bounds(cell: Cell, seed: int) -> list[Row]:
    """Plain decoding, the best static choice with the speed of every other, the best static choice
    of each phase, and the clairvoyant."""
    simulated, library = machine(cell.batch), library_of(tuple(cell.corpora))
    choices = grid(simulated)
    results = run_statics(simulated, library, cell.phases, choices, seed)
    speeds = [result.throughput for result in results]
    best = max(range(len(choices)), key=speeds.__getitem__)
    work = [phase.work for phase in cell.phases]
    phases = [
        max((result.phases[p] for result in results), key=lambda phase: phase[0] / phase[1])
        for p in range(len(work))
    ]
    ms = sum(tokens * one[1] / one[0] for tokens, one in zip(work, phases, strict=True))
    by_phase: Row = {"policy": BEST_BY_PHASE, "tokens_per_s": round(1e3 * sum(work) / ms, 3)}
    if cell.kind == BREAK:
        by_phase["best_after"] = best_after(cell.phases, phases, cell.corpora)
    grid_speeds = {
        choice.name: round(speed, 3) for choice, speed in zip(choices, speeds, strict=True)
    }
    return [
        bound(NONE_AT_ALL, results[0]),
        {**bound(BEST_STATIC, results[best]), "static": choices[best].name, "grid": grid_speeds},
        by_phase,
        bound(CLAIRVOYANT, run_clairvoyant(simulated, library, cell.phases, seed)),
    ]


def run_all(work: Sequence[Task], processes: int) -> Iterable[tuple[int, list[Row]]]:
    """(number of the task, its rows), as they come."""
    if processes < 2:
        yield from ((i, run_task(task)) for i, task in enumerate(work))
        return
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        running = {pool.submit(run_task, task): i for i, task in enumerate(work)}
        for done in as_completed(running):
            yield running[done], done.result()


def judge(cells: Sequence[Cell], rows: Sequence[Row]) -> list[Row]:
    """The rows cell by cell, each compared within its cell."""
    return [
        _recovered(one, some)
        for cell in cells
        for some in ([found for found in rows if found["cell"] == cell.name],)
        for one in compare(some)
    ]


def _recovered(one: Row, cell: Sequence[Row]) -> Row:
    """With the steps that a policy took to recover, by kind of break: None where it did not."""
    speeds = next((other["best_after"] for other in cell if "best_after" in other), None)
    if speeds is None or "after_break" not in one:
        return one
    steps = {
        kind: steps_to_recover(bins, speeds[kind]) for kind, bins in one["after_break"].items()
    }
    return {**one, "recovery_steps": steps}


def figures(rows: Sequence[Row], who: str = ADAPTIVE) -> Row:
    """The suite's figures of one policy. Ratios: 1.18 is 18 % more. None where no cell belongs to
    a figure."""
    mine = [one for one in rows if one["policy"] == who]

    def values(kind: str, key: str, batch: int | None = None) -> list[float]:
        return [
            one[key]
            for one in mine
            if one["figure"] == kind and key in one and batch in (None, one["batch"])
        ]

    def worst(kind: str, key: str, batch: int | None = None) -> float | None:
        return min(values(kind, key, batch), default=None)

    steady = [one for one in mine if one["figure"] == "steady"]
    settled = sum(one.get("settled_steps", 0) for one in steady)
    switches = sum(one.get("settled_switches", 0) for one in steady)
    code = [one for one in steady if "code" in one["cell"].rpartition(", batch ")[0]]

    def edits(batch: int) -> float | None:
        return min((one["vs_best_static"] for one in code if one["batch"] == batch), default=None)

    return {
        "steady": {
            "worst_vs_best_static": worst("steady", "vs_best_static"),
            "worst_vs_none": worst("steady", "vs_none"),
            "switches_per_1000": round(1e3 * switches / settled, 2) if settled else None,
        },
        "useless_drafters": {"worst_vs_none": worst("useless", "vs_none")},
        "content_shift": {
            "b8": worst("content", "vs_best_static", 8),
            "b64": worst("content", "vs_best_static", 64),
        },
        "load_content_shift": worst("load", "vs_best_static"),
        "code_edits": {"b1": edits(1), "b8": edits(8)},
        "clairvoyant_ratio": worst("load", "vs_clairvoyant"),
        "recovery": _recovery(mine),
        "calibration": _calibration(steady),
    }


def _recovery(rows: Sequence[Row]) -> Row:
    """Over the kinds of break; None where a policy did not recover, which counts as longest."""
    steps = [
        math.inf if one is None else one
        for row in rows
        for one in row.get("recovery_steps", {}).values()
    ]
    found: Row = {}
    for name, share in (("steps_p50", 0.5), ("steps_p90", 0.9), ("steps_worst", 1.0)):
        value = sorted(steps)[math.ceil(share * len(steps)) - 1] if steps else math.inf
        found[name] = None if math.isinf(value) else value
    return found


def _calibration(rows: Sequence[Row]) -> Row:
    """Mean size of the relative errors over the cells, and the largest."""
    found: Row = {}
    for name in ("tokens", "ms"):
        sizes = [abs(one["calibration"][name]) for one in rows if one.get("calibration")]
        found[name] = round(fmean(sizes), 4) if sizes else None
        found[f"worst_{name}"] = max(sizes, default=None)
    return found
