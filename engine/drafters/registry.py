"""The drafters the engine offers: one line each."""

from __future__ import annotations

from collections.abc import Callable

from engine.config import EngineConfig
from engine.drafters.base import Drafter
from engine.errors import StartError

Make = Callable[[EngineConfig, frozenset[int], int], Drafter]
"""constructor(config, end_ids, vocabulary). It imports its drafter when it is called, since that
may compile: by then the folder for compiled code is known."""


def _ngram(config: EngineConfig, end_ids: frozenset[int], vocabulary: int) -> Drafter:
    from engine.drafters.ngram.drafter import NgramDrafter

    return NgramDrafter(config.max_draft_length, end_ids)


def _suffix(config: EngineConfig, end_ids: frozenset[int], vocabulary: int) -> Drafter:
    from engine.drafters.suffix.drafter import SuffixDrafter

    try:
        return SuffixDrafter(config, end_ids, vocabulary)
    except OSError as error:
        raise StartError(
            "memory_too_small",
            f"the system does not give the suffix drafter {config.suffix_memory_mb} MiB of address "
            f"space: {error}. Serve with a smaller --suffix-memory-mb.",
        ) from error


DRAFTERS: dict[str, Make] = {
    "ngram": _ngram,
    "suffix": _suffix,
}
