"""A draft model that is ready to run."""

from __future__ import annotations

from dataclasses import dataclass

from engine.shape import Model
from engine.vocabulary import VocabularyMap


@dataclass(frozen=True, slots=True)
class DraftModel:
    """decoder: is fed the drafter's ids; its context may be shorter than the target's, and then
    nothing is fed or drafted at positions past it. vocabulary: of its logits, on its device.
    source: where it came from. note: how its vocabulary fits the target's, as a sentence part.
    weight_bytes: memory that it takes beside the target's, its keys and values not counted."""

    decoder: Model
    vocabulary: VocabularyMap
    source: str
    note: str
    weight_bytes: int
