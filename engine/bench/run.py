"""The parts of a run, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from engine.bench.calls import calls
from engine.bench.job import Document, Job
from engine.bench.tokens import Mode, Result, Run
from engine.build import Target, open_target
from engine.errors import StartError

MODES = (
    Mode("none", ()),
    Mode("ngram", ("ngram",)),
    Mode("suffix", ("suffix",)),
    Mode("mix", ("ngram", "suffix")),
    Mode("suffix, warm", ("suffix",), warm=True),
    Mode("mix, warm", ("ngram", "suffix"), warm=True),
)

Say = Callable[[str, float], None]
"""(stage, fraction of it that is done)."""


def run(job: Job, say: Say) -> dict[str, Any]:
    """Raises StartError when the model cannot be served."""
    target = open_target(job.config, lambda stage, fraction, text: say(text, fraction))
    found: dict[str, Any] = {
        "model": target.loaded.architecture,
        "dtype": str(target.device.dtype).removeprefix("torch."),
        "threads": torch.get_num_threads(),
        "vocabulary": target.loaded.decoder.shape.vocabulary,
        "tokens_per_step": {},
    }
    corpus = documents(target, job.documents)
    modes = [mode for mode in MODES if corpus or not mode.warm]
    for mode in modes:
        one = Run(target, job.config, mode, corpus)
        done = _Counter(say, mode.name, len(job.prompts))
        result = one.answer(job.prompts, job.max_tokens, job.concurrency, done)
        found["tokens_per_step"][mode.name] = _shown(result)
    if job.rounds:
        one = Run(target, job.config, Mode("suffix", ("suffix",)), ())
        asked = job.prompts[: job.round_prompts]
        rounds = []
        for _ in range(job.rounds):
            done = _Counter(say, "the same prompts again", len(asked))
            rounds.append(one.answer(asked, job.max_tokens, 1, done).whole.numbers())
        found["rounds"] = rounds
    if job.mixed:
        one = Run(target, job.config, Mode("mix", ("ngram", "suffix")), ())
        asked = job.prompts[: 4 * job.mixed]
        done = _Counter(say, f"drafting at batch {job.mixed}", len(asked))
        result = one.answer(asked, job.max_tokens, job.mixed, done)
        found["drafting"] = {
            "concurrency": job.mixed,
            "drafting_cpu_s": round(result.drafting_s, 4),
            "steps_cpu_s": round(result.steps_s, 3),
            "share": round(result.drafting_s / max(result.steps_s, 1e-9), 5),
        }
    if any(len(ids) > 1 for ids in corpus):
        found["calls"] = calls(corpus, found["vocabulary"], job.config.suffix_depth, say)
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


class _Counter:
    def __init__(self, say: Say, stage: str, total: int) -> None:
        self._say, self._stage, self._total, self._done = say, stage, max(1, total), 0

    def __call__(self, more: int) -> None:
        if more:
            self._done += more
            self._say(self._stage, self._done / self._total)


def _shown(result: Result) -> dict[str, Any]:
    return result.whole.numbers() | {
        "drafting_cpu_s": round(result.drafting_s, 4),
        "steps_cpu_s": round(result.steps_s, 3),
        "categories": {name: tally.numbers() for name, tally in result.by_category.items()},
    }
