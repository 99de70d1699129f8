"""The cells of the suite: machine, texts and phases of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
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
from controller.simulate.traces import EAGLE, NGRAM, is_trace, read_traces

BATCHES = (1, 8, 32, 64, 128, 256)
SYNTHETIC_BATCHES = (1, 8, 64)
USELESS_BATCHES = (1, 8, 64, 128)
SHIFT_BATCHES = (8, 64)
LOADS = (1, 64, 8, 128, 2, 32)
STEADY = ("mixed", "edits", "prose")
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
    """kind: the figure that it belongs to. corpora: trace files or recipes that phases name."""

    kind: str
    name: str
    corpora: tuple[str, ...]
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
    """The acceptance traces of a folder, by name. ValueError when there is none."""
    found = sorted(path for path in folder.glob("*.jsonl") if is_trace(path))
    if not found:
        raise ValueError(
            f"{folder}: there is no acceptance trace in it: .jsonl with prompt_token_ids, "
            "generated_token_ids and acc_eagle or acc_ngram."
        )
    return found


def make_cells(traces: Sequence[Path], scale: float = 1.0) -> list[Cell]:
    """Every cell of the suite. scale: of the work of each, for trials."""
    names = [str(path) for path in traces]
    cells: list[Cell] = []

    def tokens(count: float) -> int:
        return max(round(count * scale), SHORTEST)

    for corpus in names:
        for batch in BATCHES:
            phase = Phase(batch, corpus, tokens(TOKENS[batch]))
            cells.append(Cell("steady", f"{label(corpus)}, batch {batch}", (corpus,), (phase,)))
    for corpus in STEADY:
        for batch in SYNTHETIC_BATCHES:
            phase = Phase(batch, corpus, tokens(TOKENS[batch]))
            cells.append(Cell("steady", f"{corpus}, batch {batch}", (corpus,), (phase,)))
    for batch in USELESS_BATCHES:
        phase = Phase(batch, "useless", tokens(TOKENS[batch] / 2))  # a step each
        cells.append(Cell("useless", f"useless drafters, batch {batch}", ("useless",), (phase,)))
    turns = [names[i % len(names)] for i in range(SHIFTS)]
    for batch in SHIFT_BATCHES:
        phases = tuple(Phase(batch, corpus, tokens(SHIFT_TOKENS)) for corpus in turns)
        cells.append(Cell("content", f"content shift, batch {batch}", tuple(names), phases))
    both = tuple(
        Phase(batch, turns[i % len(turns)], tokens(SHIFT_TOKENS))
        for i, batch in enumerate((*LOADS, *LOADS[1:], LOADS[0]))
    )
    cells.append(Cell("load", "load and content shift", tuple(names), both))
    pairs = [*BREAKS, tuple(names[:2])] if len(names) > 1 else BREAKS
    for pair in pairs:
        phases = tuple(
            Phase(BREAK_BATCH, kind, tokens(BREAK_TOKENS.get(kind, BREAK_TOKENS_ELSE)), fresh=True)
            for kind in [pair[i % 2] for i in range(BREAK_TURNS)]
        )
        cells.append(Cell("break", f"breaks, {label(pair[0])} and {label(pair[1])}", pair, phases))
    return cells


def is_code(corpus: str) -> bool:
    """Whether a trace is of code, by its name."""
    return "code" in label(corpus)


def label(corpus: str) -> str:
    """What a trace is called: its file's name without what all of them share."""
    return Path(corpus).stem.removeprefix("acceptance_")


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
