"""The cells of the suite: machine, texts and phases of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

import numpy as np

from controller.contract import CostPoint, Setting
from controller.simulate.calibration import calibrate
from controller.simulate.drafters import EAGLE_MS, head, lookup
from controller.simulate.load import Phase
from controller.simulate.machine import Machine
from controller.simulate.step_cost import FITTED
from controller.simulate.synthetic import RECIPES, make_texts
from controller.simulate.texts import LONGEST, Library, Text
from controller.simulate.traces import EAGLE, NGRAM, read_traces, traced_drafters

BATCHES = (1, 8, 32, 64, 128, 256)
SYNTHETIC_BATCHES = (1, 8, 64)
USELESS_BATCHES = (1, 8, 64, 128)
SHIFT_BATCHES = (8, 64)
LOADS = (1, 64, 8, 128, 2, 32)
STEADY = ("mixed", "edits", "prose")
USELESS, CONTENT = "useless drafters", "content shift"
SYNTHETIC_TEXTS = 200
SHORTEST = 12
"""Of the work of a cell: tokens of each request by batch, so that all run for seconds."""
TOKENS = {1: 6000, 2: 3000, 8: 4000, 32: 2500, 64: 2000, 128: 1000, 256: 700}
BREAKS = (("mixed", "useless"), ("edits", "prose"))
"""Kinds of text that take turns at once for all requests."""
BREAK_BATCH, BREAK_TURNS = 16, 12
BREAK_TOKENS = {"useless": 300, "prose": 600, "edits": 1700}
BREAK_TOKENS_ELSE = 900
"""Of each request in a turn, so that it lasts for about 300 steps."""
SHIFT_TOKENS, SHIFTS = 1000, 6
NOISE = 0.01

SETTING = Setting(max_draft_length=LONGEST)


@dataclass(frozen=True, slots=True)
class Cell:
    """kind: the figure that it belongs to. name: no other cell has it. corpora: trace files or
    recipes that phases name, each with what it is called."""

    kind: str
    name: str
    corpora: Mapping[str, str]
    phases: tuple[Phase, ...]

    @property
    def batch(self) -> int:
        """The largest."""
        return max(phase.requests for phase in self.phases)


def machine(max_batch: int) -> Machine:
    """Llama-3.1-8B on one H100 as measured, with the drafters of the traces."""
    plain_ms = FITTED.step_ms(1, 1, 0)
    drafters = (lookup(NGRAM), head(EAGLE, EAGLE_MS, plain_ms))
    return Machine(FITTED, drafters, noise=NOISE, row_limit=2048, max_batch=max_batch)


def find_traces(folder: Path) -> list[Path]:
    """The acceptance traces of a folder, by name. ValueError when there is none, and for one that
    lacks a drafter of the suite's machine."""
    known = {path: traced_drafters(path) for path in sorted(folder.glob("*.jsonl"))}
    found = [path for path, names in known.items() if names]
    if not found:
        raise ValueError(
            f"{folder}: there is no acceptance trace in it: .jsonl with prompt_token_ids, "
            "generated_token_ids, acc_eagle and acc_ngram."
        )
    for path in found:
        for name in (EAGLE, NGRAM):
            if name not in known[path]:
                raise ValueError(
                    f"{path.name}: it has no acc_{name}, but {', '.join(known[path])}; the suite "
                    "needs traces with acc_eagle and acc_ngram."
                )
    return found


def make_cells(traces: Sequence[Path], scale: float = 1.0) -> list[Cell]:
    """Every cell of the suite. scale: of the work of each, for trials. ValueError for traces that
    cannot be told apart."""
    called = labels(traces) | {recipe: recipe for recipe in RECIPES}
    names = [str(path) for path in traces]
    cells: list[Cell] = []

    def tokens(count: float) -> int:
        return max(round(count * scale), SHORTEST)

    def add(kind: str, name: str, phases: Sequence[Phase]) -> None:
        corpora = {phase.corpus: called[phase.corpus] for phase in phases}
        cells.append(Cell(kind, name, corpora, tuple(phases)))

    for corpora, batches in ((names, BATCHES), (STEADY, SYNTHETIC_BATCHES)):
        for corpus in corpora:
            for batch in batches:
                phase = Phase(batch, corpus, tokens(TOKENS[batch]))
                add("steady", f"{called[corpus]}, batch {batch}", [phase])
    for batch in USELESS_BATCHES:
        phase = Phase(batch, "useless", tokens(TOKENS[batch] / 2))  # a step each
        add("useless", f"{USELESS}, batch {batch}", [phase])
    turns = [names[i % len(names)] for i in range(SHIFTS)]
    for batch in SHIFT_BATCHES:
        phases = [Phase(batch, corpus, tokens(SHIFT_TOKENS)) for corpus in turns]
        add("content", f"{CONTENT}, batch {batch}", phases)
    both = [
        Phase(batch, turns[i % len(turns)], tokens(SHIFT_TOKENS))
        for i, batch in enumerate((*LOADS, *LOADS[1:], LOADS[0]))
    ]
    add("load", "load and content shift", both)
    for one, other in [*BREAKS, (names[0], names[1])] if len(names) > 1 else BREAKS:
        phases = [
            Phase(BREAK_BATCH, kind, tokens(BREAK_TOKENS.get(kind, BREAK_TOKENS_ELSE)), fresh=True)
            for kind in [(one, other)[i % 2] for i in range(BREAK_TURNS)]
        ]
        add("break", f"breaks, {called[one]} and {called[other]}", phases)
    return cells


def labels(traces: Sequence[Path]) -> dict[str, str]:
    """What each trace is called: its file's name without what all of them share, or in full where
    something else has that name. ValueError for two with one name."""
    short = {path: path.stem.removeprefix("acceptance_") for path in traces}
    count = Counter([*short.values(), *RECIPES, USELESS, CONTENT, ""])
    found = {str(path): name if count[name] == 1 else path.name for path, name in short.items()}
    names = sorted(found.values())
    for name, other in pairwise(names):
        if name == other:
            raise ValueError(f"{name}: two traces would have this name; rename one of them")
    return found


@lru_cache(maxsize=8)
def texts_of(corpus: str) -> tuple[Text, ...]:
    """Of a recipe by its name, or of a trace file."""
    recipe = RECIPES.get(corpus)
    if recipe is not None:
        return tuple(make_texts(recipe, SYNTHETIC_TEXTS, seed=1))
    return tuple(read_traces(Path(corpus)))


@lru_cache(maxsize=4)
def library_of(corpora: tuple[str, ...]) -> Library:
    return Library({name: texts_of(name) for name in corpora}, (NGRAM, EAGLE))


def points_of(one: Machine, seed: int) -> tuple[CostPoint, ...]:
    """What the simulated machine measured of itself at its start."""
    return calibrate(one.cost, one.max_batch, one.noise, np.random.default_rng((seed, 2)))
