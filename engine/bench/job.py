"""What a bench process is asked to do, on its standard input, and what it answers on its output."""

from __future__ import annotations

from typing import Any

import msgspec

from engine.config import EngineConfig


class Prompt(msgspec.Struct, frozen=True):
    category: str
    text: str


class Document(msgspec.Struct, frozen=True):
    """A text of a corpus, or its token ids."""

    text: str | None = None
    token_ids: tuple[int, ...] | None = None


class Job(msgspec.Struct, frozen=True):
    """prompts: answered in every mode, `max_tokens` each, `concurrency` at a time. documents: what
    the warm modes may draft from, and what the calls are timed with. mixed: requests at once when
    the CPU time of drafting is measured. rounds: how often the first `round_prompts` prompts are
    asked. model_length: tokens that a drafter with a model of its own drafts when it is alone.
    modes: those that are run, all when none is named. calls: also the rounds, the CPU time of
    drafting and the timed calls."""

    config: EngineConfig
    prompts: tuple[Prompt, ...]
    documents: tuple[Document, ...] = ()
    max_tokens: int = 160
    concurrency: int = 8
    mixed: int = 16
    rounds: int = 10
    round_prompts: int = 10
    model_length: int = 3
    modes: tuple[str, ...] = ()
    calls: bool = True


class Line(msgspec.Struct, frozen=True):
    """One line of the output: progress of a stage (fraction 0 to 1), or at the end the result."""

    stage: str = ""
    fraction: float = 0.0
    result: dict[str, Any] | None = None
    error: str | None = None
