"""The drafters the engine offers: one line each."""

from __future__ import annotations

from collections.abc import Callable

from engine.config import EngineConfig
from engine.drafters.base import Drafter

Make = Callable[[EngineConfig, frozenset[int], int], Drafter]
"""constructor(config, end_ids, vocabulary). It imports its drafter when it is called, since that
may compile: by then the folder for compiled code is known."""


def _ngram(config: EngineConfig, end_ids: frozenset[int], vocabulary: int) -> Drafter:
    from engine.drafters.ngram import NgramDrafter

    return NgramDrafter(config.max_draft_length, end_ids)


def _suffix(config: EngineConfig, end_ids: frozenset[int], vocabulary: int) -> Drafter:
    from engine.drafters.suffix import SuffixDrafter

    return SuffixDrafter(config, end_ids, vocabulary)


DRAFTERS: dict[str, Make] = {
    "ngram": _ngram,
    "suffix": _suffix,
}
