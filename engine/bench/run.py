"""The parts of a run, one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from controller.cost import CostModel
from engine.bench.calls import calls
from engine.bench.job import Document, Job
from engine.bench.measuring import Counter, Say, cost
from engine.bench.modes import Mode
from engine.bench.tokens import Run
from engine.build import Target, calibrate, open_target
from engine.drafters.registry import DRAFTERS
from engine.errors import StartError

MODEL_FREE = (
    Mode("none", ()),
    Mode("ngram", ("ngram",)),
    Mode("suffix", ("suffix",)),
    Mode("mix", ("ngram", "suffix")),
    Mode("suffix, warm", ("suffix",), warm=True),
    Mode("mix, warm", ("ngram", "suffix"), warm=True),
)


def modes_with(models: Sequence[str], length: int) -> list[Mode]:
    """Those of models: each alone with drafts of `length` tokens, each beside the suffix drafter,
    from an empty tree and a warm one, and everything at what it costs here."""
    found: list[Mode] = []
    for name in models:
        both = ("suffix", name)
        found.append(Mode(name, (name,), length=length))
        found.append(Mode(f"suffix or {name}", both))
        found.append(Mode(f"suffix or {name}, warm", both, warm=True))
    everything = (*DRAFTERS, *models)
    if models:
        found.append(Mode("auto", everything, priced=True))
        found.append(Mode("auto, warm", everything, warm=True, priced=True))
    return found


def run(job: Job, say: Say) -> dict[str, Any]:
    """Raises StartError when the model cannot be served."""

    def tell(stage: str, fraction: float, text: str) -> None:
        say(text, fraction)

    target = open_target(job.config, tell)
    found: dict[str, Any] = {
        "model": target.loaded.architecture,
        "dtype": str(target.device.dtype).removeprefix("torch."),
        "threads": torch.get_num_threads(),
        "vocabulary": target.loaded.decoder.shape.vocabulary,
        "tokens_per_step": {},
    }
    corpus = documents(target, job.documents)
    models = {name: ready.drafter for name, ready in target.drafters.items()}
    modes = modes_of(job, list(models), bool(corpus))
    models = {name: one for name, one in models.items() if any(name in m.drafters for m in modes)}
    priced = any(mode.priced for mode in modes)
    points = calibrate(job.config, target, tell).points if priced else []
    for mode in modes:
        with Run(target, job.config, mode, corpus, models, CostModel(points)) as one:
            done = Counter(say, mode.name, len(job.prompts))
            result = one.answer(job.prompts, job.max_tokens, job.concurrency, done)
        found["tokens_per_step"][mode.name] = result.numbers()
    if models:
        found["model_length"] = job.model_length
        found["cost"] = {
            name: cost(
                target, job.config, drafter, job.prompts, job.model_length, say, job.max_tokens
            )
            for name, drafter in models.items()
        }
    if job.calls:
        found |= drafting_alone(job, target, corpus, say)
    return found


def modes_of(job: Job, models: Sequence[str], with_corpus: bool) -> list[Mode]:
    """The modes that are run: those that were named, else all that can be. Raises StartError."""
    every = [*MODEL_FREE, *modes_with(models, job.model_length)]
    there = {mode.name: mode for mode in every if with_corpus or not mode.warm}
    for name in job.modes:
        if name not in there:
            more = "" if with_corpus else "; with --corpus also warm ones"
            raise StartError("unknown_mode", f"--only {name}: there are {', '.join(there)}{more}.")
    return [mode for name, mode in there.items() if not job.modes or name in job.modes]


def drafting_alone(
    job: Job, target: Target, corpus: Sequence[Sequence[int]], say: Say
) -> dict[str, Any]:
    """The same prompts again and again, the CPU time of drafting in a large batch, and the calls of
    the drafters over the corpus."""
    found: dict[str, Any] = {}
    if job.rounds:
        one = Run(target, job.config, Mode("suffix", ("suffix",)), ())
        asked = job.prompts[: job.round_prompts]
        rounds = []
        for _ in range(job.rounds):
            done = Counter(say, "the same prompts again", len(asked))
            rounds.append(one.answer(asked, job.max_tokens, 1, done).whole.numbers())
        found["rounds"] = rounds
    if job.mixed:
        one = Run(target, job.config, Mode("mix", ("ngram", "suffix")), ())
        asked = job.prompts[: 4 * job.mixed]
        done = Counter(say, f"drafting at batch {job.mixed}", len(asked))
        result = one.answer(asked, job.max_tokens, job.mixed, done)
        found["drafting"] = {
            "concurrency": job.mixed,
            "drafting_cpu_s": round(result.drafting_s, 4),
            "steps_cpu_s": round(result.steps_s, 3),
            "share": round(result.drafting_s / max(result.steps_s, 1e-9), 5),
        }
    if any(len(ids) > 1 for ids in corpus):
        vocabulary = target.loaded.decoder.shape.vocabulary
        found["calls"] = calls(corpus, vocabulary, job.config.suffix_depth, say)
    return found


def documents(target: Target, given: Sequence[Document]) -> list[Sequence[int]]:
    """The token ids of those that have some. Raises StartError for ids that the model lacks."""
    vocabulary = target.loaded.decoder.shape.vocabulary
    found: list[Sequence[int]] = []
    for number, document in enumerate(given, 1):
        ids = document.token_ids
        if ids is None:
            ids = target.text.encode(document.text or "")
        for place, token in enumerate(ids):
            if not 0 <= token < vocabulary:
                raise StartError(
                    "corpus_broken",
                    f"--corpus: token {place} of document {number} is {token}; the model's ids are "
                    f"0 to {vocabulary - 1}. Take a corpus with this model's ids, or text.",
                )
        if len(ids):
            found.append(ids)
    return found
