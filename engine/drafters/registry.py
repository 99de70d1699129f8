"""The drafters the engine offers: one line each."""

from __future__ import annotations

from collections.abc import Callable

from engine.drafters.base import Drafter
from engine.drafters.ngram import NgramDrafter

DRAFTERS: dict[str, Callable[[int, frozenset[int]], Drafter]] = {
    "ngram": NgramDrafter,
}
"""name -> constructor(max_draft_length, end_ids)."""
