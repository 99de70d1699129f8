"""What a training process is asked to do, on its standard input, and what it answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec.structs import replace

from engine.bench.job import Prompt
from engine.config import EngineConfig

Say = Callable[[str, float, str], None]
"""(stage, fraction of it that is done, what it is doing)."""


class Generate(msgspec.Struct, frozen=True, tag="generate"):
    """Have the target answer prompts, into the file `out`.

    prompts: JSON lines with `turns`; empty for none. own_prompts: how many prompts the target
    writes itself, each of at most `prompt_tokens`. exclude: files whose texts no prompt may share
    twelve consecutive words with. temperatures: one answer to each prompt at each of them.
    greedy_share: of the prompts, how many get a greedy answer too. answer_tokens: of an answer at
    most. longest_prompt: longer ones, in tokens with the template, are left out. speculation: the
    controller drafts as in serving, or never. seconds: begin no answer after so long, and write
    those that there are; 0 never."""

    config: EngineConfig
    out: str
    prompts: str = ""
    own_prompts: int = 0
    prompt_tokens: int = 384
    exclude: tuple[str, ...] = ()
    temperatures: tuple[float, ...] = (0.7, 1.0)
    greedy_share: float = 0.33
    answer_tokens: int = 176
    longest_prompt: int = 1024
    seed: int = 0
    speculation: bool = True
    seconds: float = 0.0


class Vocabulary(msgspec.Struct, frozen=True, tag="vocabulary"):
    """Write the `size` target ids that a drafter may draft to the .npy file `out`: special ones,
    then the most frequent ones of the answers. answers: files that `generate` wrote. prompts: see
    read_answers."""

    config: EngineConfig
    out: str
    answers: tuple[str, ...]
    prompts: str = ""
    size: int = 8192


class Corpus(msgspec.Struct, frozen=True, tag="corpus"):
    """Write answers of the file `answers` to the .npz file `out`, for drafters to copy from: at
    most so many tokens, some of every prompt before more of any."""

    answers: str
    out: str
    most_tokens: int = 900_000
    seed: int = 0


class Prompts(msgspec.Struct, frozen=True, tag="prompts"):
    """Write at most so many prompts to the JSON lines file `out`: one of the asks each, with a
    passage of the documents, JSON lines files too, in the place of {text}. words: of a passage, at
    least and at most. category: of all these prompts."""

    documents: tuple[str, ...]
    out: str
    asks: tuple[str, ...]
    words: tuple[int, int]
    most: int
    category: str = ""
    seed: int = 0


class Extract(msgspec.Struct, frozen=True, tag="extract"):
    """Write shards of what the target sees in its answers to the folder `out`.

    taps: layers whose residual stream is stored, as many as the target has for what follows its
    last norm; empty for a middle one, a late one and the last. most_tokens: of prompts and answers
    together, 0 for all. seed: of the order in which answers go to the shards."""

    config: EngineConfig
    out: str
    answers: tuple[str, ...]
    prompts: str = ""
    taps: tuple[int, ...] = ()
    most_tokens: int = 0
    seed: int = 0


class Fit(msgspec.Struct, frozen=True, tag="fit"):
    """Train a drafter on shards into the checkpoint folder `out`. draft_ids: the .npy file of what
    it may draft. options: as in engine.training.fit. What is needed to go on lies in `run`."""

    config: EngineConfig
    out: str
    run: str
    shards: str
    draft_ids: str
    options: dict[str, Any]
    checkpoint_steps: int = 25


class Evaluate(msgspec.Struct, frozen=True, tag="evaluate"):
    """Measure drafters through the serving engine.

    prompts: answered in every mode at each of the temperatures, at most answer_tokens each,
    `concurrency` at a time. modes: a drafter and how many tokens it drafts ("mtp:3"), or several
    that the controller chooses among ("suffix+mtp"). corpus: .npz with tokens and offsets that
    drafters may copy from; "" for none. speed_prompts: so many are also answered one at a time
    without drafts and in every mode in turn, speed_rounds times, for tokens per second."""

    config: EngineConfig
    prompts: tuple[Prompt, ...]
    modes: tuple[str, ...] = ("mtp:3",)
    temperatures: tuple[float, ...] = (0.0,)
    answer_tokens: int = 160
    concurrency: int = 8
    corpus: str = ""
    speed_prompts: int = 0
    speed_rounds: int = 2


def without_drafters(config: EngineConfig) -> EngineConfig:
    """For a stage that reads texts and serves nobody."""
    return replace(config, mtp="off", draft_model="off")


Job = Generate | Prompts | Vocabulary | Corpus | Extract | Evaluate


class Line(msgspec.Struct, frozen=True):
    """One line of the output: progress of a stage (fraction 0 to 1), or at the end the result."""

    stage: str = ""
    fraction: float = 0.0
    message: str = ""
    result: dict[str, Any] | None = None
    error: str | None = None
