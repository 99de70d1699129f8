"""Small texts, machines and runs for the tests of the simulator."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from controller.contract import Setting
from controller.simulate.calibration import calibrate
from controller.simulate.drafters import head, lookup
from controller.simulate.load import Phase
from controller.simulate.machine import Machine
from controller.simulate.policy import SERVES, Choice, build
from controller.simulate.run import Clock, Run, closed
from controller.simulate.step_cost import StepCost
from controller.simulate.synthetic import RECIPES, make_texts
from controller.simulate.texts import Library, Numbers, Text

COST = StepCost(base_ms=5.0, row_ms=0.05, kv_ms=1e-5)
SETTING = Setting(max_draft_length=20)


def numbers(*values: int) -> Numbers:
    return np.array(values, np.int64)


def text(accepted: Sequence[int], match: Sequence[int], prompt: int = 10) -> Text:
    """A text with one drafter without a model."""
    return Text(
        prompt,
        len(accepted),
        {"ngram": numbers(*accepted)},
        {"ngram": numbers(*match)},
        {"ngram": numbers(*[2 if m else 0 for m in match])},
    )


def machine(noise: float = 0.0, chains: bool = False, cost: StepCost = COST) -> Machine:
    drafters = (lookup("ngram"), head("eagle", 0.5, 5.0))
    return Machine(cost, drafters, noise=noise, chains=chains, max_batch=64, row_limit=4096)


def library(recipe: str = "mixed", count: int = 20) -> Library:
    return Library({recipe: make_texts(RECIPES[recipe], count, seed=3)}, ("ngram", "eagle"))


def run(
    phases: Sequence[Phase],
    setting: Setting = SETTING,
    *,
    choice: Choice = SERVES,
    on: Machine | None = None,
    texts: Library | None = None,
    seed: int = 0,
) -> Run:
    simulated = on or machine()
    points = calibrate(simulated.cost, simulated.max_batch, 0.0, np.random.default_rng(1))
    clock = Clock()
    controller = build(choice, simulated, points, clock, setting)
    return closed(simulated, texts or library(), phases, controller, clock, seed)


def write_trace(path: Path, count: int = 6, length: int = 60, seed: int = 0) -> Path:
    """A trace file in the published form. The texts repeat themselves, so there are n-grams."""
    rng = random.Random(seed)
    with path.open("w", encoding="utf-8") as out:
        for number in range(count):
            phrase = [rng.randrange(100, 200) for _ in range(12)]
            output = (phrase * (length // 12 + 1))[:length]
            eagle = [1 + min(rng.choice((0, 1, 2, 4)), length - t) for t in range(length)]
            ngram = [
                1 if t < 15 else 1 + min(rng.choice((0, 6)), length - t) for t in range(length)
            ]
            record = {
                "id": str(number),
                "prompt_token_ids": list(range(20)),
                "generated_token_ids": output,
                "acc_eagle": {"acc_len": eagle},
                "acc_ngram": {"acc_len": ngram},
            }
            out.write(json.dumps(record) + "\n")
    return path
