"""The suite: every policy, the static grid and the clairvoyant in every cell, and the figures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from statistics import fmean

from controller.policies import ADAPTIVE, NAMES
from controller.simulate.cells import SETTING, Cell, library_of, machine, points_of
from controller.simulate.direct import grid, run_clairvoyant, run_statics
from controller.simulate.policy import Choice, build
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
    library = library_of(cell.corpora)
    return row(name, closed(simulated, library, cell.phases, controller, clock, seed))


def _bounds(cell: Cell, seed: int) -> list[Row]:
    """Plain decoding, the best static choice with the speed of every other, the best static choice
    of each phase, and the clairvoyant."""
    simulated, library = machine(cell.batch), library_of(cell.corpora)
    choices = grid(simulated)
    results = run_statics(simulated, library, cell.phases, choices, seed)
    speeds = [result.throughput for result in results]
    best = max(range(len(choices)), key=speeds.__getitem__)
    work = [phase.work for phase in cell.phases]
    ms = sum(
        tokens * min(result.phases[p][1] / result.phases[p][0] for result in results)
        for p, tokens in enumerate(work)
    )
    grid_speeds = {
        choice.name: round(speed, 3) for choice, speed in zip(choices, speeds, strict=True)
    }
    return [
        bound(NONE_AT_ALL, results[0]),
        {**bound(BEST_STATIC, results[best]), "static": choices[best].name, "grid": grid_speeds},
        {"policy": BEST_BY_PHASE, "tokens_per_s": round(1e3 * sum(work) / ms, 3)},
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
        one
        for cell in cells
        for one in compare([found for found in rows if found["cell"] == cell.name])
    ]


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

    switches = values("steady", "switches_per_1000_steps")
    return {
        "steady": {
            "worst_vs_best_static": worst("steady", "vs_best_static"),
            "worst_vs_none": worst("steady", "vs_none"),
            "switches_per_1000_steps": round(fmean(switches), 2) if switches else None,
        },
        "useless_drafters": {"worst_vs_none": worst("useless", "vs_none")},
        "content_shift": {
            "b8": worst("content", "vs_best_static", 8),
            "b64": worst("content", "vs_best_static", 64),
        },
        "load_content_shift": worst("load", "vs_best_static"),
        "clairvoyant_ratio": worst("load", "vs_clairvoyant"),
    }
