"""The stage that measures trained drafters through the serving engine."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from statistics import median
from typing import Any

import torch
from msgspec.structs import replace

from controller.cost import CostModel
from engine.bench.measuring import Counter, cost, in_turn
from engine.bench.modes import Mode
from engine.bench.tokens import Run
from engine.build import Target, calibrate, open_target
from engine.config import EngineConfig
from engine.draft_models.sources import NAMES
from engine.drafters.base import Drafter
from engine.drafters.registry import DRAFTERS
from engine.errors import RequestError, StartError
from engine.training.answers import read_corpus
from engine.training.job import Evaluate, Say

SPEED = "tokens/s"
PLAIN = Mode("none", ())


def evaluate(job: Evaluate, say: Say) -> dict[str, Any]:
    """Acceptance and tokens per step of every mode, cost of its models, and tokens per second.
    Raises StartError."""
    modes = [read_mode(name, job.config.max_draft_length) for name in job.modes]
    target = open_target(needed(job.config, modes), say)
    models = {name: ready.drafter for name, ready in target.drafters.items()}
    check_models(modes, models)
    corpus = read_corpus(job.corpus, target.loaded.decoder.shape.vocabulary)
    evaluation = Evaluation(job, target, models, corpus, say)
    found: dict[str, Any] = {
        "model": target.loaded.architecture,
        "dtype": str(target.device.dtype).removeprefix("torch."),
        "device": str(target.device.torch_device),
        "threads": torch.get_num_threads(),
    }
    try:
        found["modes"] = {mode.name: evaluation.mode(mode) for mode in modes}
        if job.speed_prompts:
            found["speed"] = evaluation.speed(modes)
    except RequestError as error:  # all prompts get the same limits and template
        raise StartError("prompt_refused", f"--prompts: {error.message}") from error
    return found


def read_mode(name: str, longest: int) -> Mode:
    """The mode that a name such as mtp:3 or suffix+mtp stands for. Raises StartError."""
    drafters, _, length = name.partition(":")
    names = tuple(drafters.split("+"))
    known = {*DRAFTERS, *NAMES}
    unknown = [one for one in names if one not in known]
    if unknown or len(set(names)) < len(names):
        raise StartError(
            "unknown_drafter",
            f"--modes {name}: name drafters of {', '.join(sorted(known))}, one with its draft "
            "length (mtp:3) or several joined by + (suffix+mtp).",
        )
    if length and (len(names) > 1 or not length.isdecimal() or not 1 <= int(length) <= longest):
        raise StartError(
            "bad_draft_length",
            f"--modes {name}: a draft length is for a single drafter, from 1 to {longest}, which "
            "is --max-draft-length.",
        )
    return Mode(name, names, length=int(length or 0))


def needed(config: EngineConfig, modes: Sequence[Mode]) -> EngineConfig:
    """Without models that no mode names."""
    named = {name for mode in modes for name in mode.drafters}
    return replace(config, **{name: "off" for name in NAMES if name not in named})


def check_models(modes: Sequence[Mode], models: Mapping[str, Drafter]) -> None:
    for mode in modes:
        for name in mode.drafters:
            if name in NAMES and name not in models:
                option = "--" + name.replace("_", "-")
                raise StartError(
                    "drafter_not_found",
                    f"--modes {mode.name}: {name} is not loaded, since nothing that fits ships "
                    f"for this model. Give the folder of a trained one with {option}.",
                )


@dataclass(frozen=True)
class Evaluation:
    """Over a loaded target. models: its drafters with a model by name."""

    job: Evaluate
    target: Target
    models: Mapping[str, Drafter]
    corpus: Sequence[Sequence[int]]
    say: Say

    def mode(self, mode: Mode) -> dict[str, Any]:
        """By temperature what its drafts got, and the cost of the model that it pins."""
        job = self.job
        found: dict[str, Any] = {"temperatures": {}}
        for temperature in job.temperatures:
            stage = f"{mode.name} at {temperature:g}"
            with self._run(mode) as run:
                done = Counter(self._say, stage, len(job.prompts))
                result = run.answer(
                    job.prompts, job.answer_tokens, job.concurrency, done, temperature
                )
            found["temperatures"][f"{temperature:g}"] = with_lengths(result.numbers())
        if len(mode.drafters) == 1 and mode.drafters[0] in self.models:
            drafter = self.models[mode.drafters[0]]
            length = mode.length or job.config.max_draft_length
            found["cost"] = cost(self.target, job.config, drafter, job.prompts, length, self._say)
        return found

    def speed(self, modes: Sequence[Mode]) -> dict[str, Any]:
        """Greedy tokens per second of one request at a time. The modes take turns, and their order
        changes from round to round; several drafters draft what pays at this machine's costs."""
        job = self.job
        some = in_turn(job.prompts)[: job.speed_prompts]
        points = calibrate(job.config, self.target, self.say).points
        rounds = [PLAIN, *modes]
        rates: dict[str, list[float]] = {mode.name: [] for mode in rounds}
        done = Counter(self._say, SPEED, job.speed_rounds * len(rounds) * len(some))
        for place in range(job.speed_rounds):
            turn = place % len(rounds)
            for mode in rounds[turn:] + rounds[:turn]:
                several = len(mode.drafters) > 1
                priced = Mode(mode.name, mode.drafters, length=mode.length, priced=several)
                with self._run(priced, CostModel(points)) as run:
                    begin = time.perf_counter()
                    result = run.answer(some, job.answer_tokens, 1, done)
                    took = time.perf_counter() - begin
                rates[mode.name].append((result.whole.tokens + len(some)) / took)
        plain = median(rates[PLAIN.name])
        return {
            name: {
                "tokens_per_second": round(median(each), 3),
                "over_none": round(median(each) / plain, 4),
                "rounds": [round(one, 3) for one in each],
            }
            for name, each in rates.items()
        }

    def _run(self, mode: Mode, cost: CostModel | None = None) -> Run:
        mode = Mode(mode.name, mode.drafters, bool(self.corpus), mode.length, mode.priced)
        return Run(self.target, self.job.config, mode, self.corpus, self.models, cost)

    def _say(self, stage: str, fraction: float) -> None:
        self.say(stage, fraction, "")


def with_lengths(numbers: dict[str, Any]) -> dict[str, Any]:
    """Numbers of a run, with the acceptance length of every drafter, in whole and by category."""
    numbers["acceptance_length"] = {
        name: acceptance_length([one["rate"] for one in places])
        for name, places in numbers["positions"].items()
    }
    for category in numbers.get("categories", {}).values():
        with_lengths(category)
    return numbers


def acceptance_length(rates: Sequence[float]) -> float:
    """Expected tokens of a step that drafts so many: 1 + a_1 + a_1 a_2 + ..., where a_k is the
    acceptance of position k when all before it were accepted."""
    return round(1.0 + sum(prod(rates[: k + 1]) for k in range(len(rates))), 4)
