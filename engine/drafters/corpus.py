"""Corpora: text from outside that a drafter may copy from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class CorpusState:
    """sequences and tokens: given so far. indexed: tokens of them that drafts can use already.
    bytes: memory that they take. failed: why no more are taken in, as a sentence."""

    sequences: int
    tokens: int
    indexed: int
    bytes: int
    failed: str | None = None


@runtime_checkable
class CorpusHolder(Protocol):
    """A drafter that takes corpora. Called from the engine's loop, between two steps."""

    def put_corpus(
        self, name: str, tokens: NDArray[np.int32], lengths: NDArray[np.int64], first: bool
    ) -> None:
        """Queue sequences for indexing, which goes on in bounded slices: their tokens one after
        the other, and the length of each. first: they replace what the name held; otherwise they
        add to it. Ids are in the vocabulary, and the arrays are the drafter's to keep. Raises
        ValueError: what is wrong, and what to do."""
        ...

    def drop_corpus(self, name: str) -> None:
        """Forget a corpus, which may go on in bounded slices; an unknown name has none."""
        ...

    def corpora(self) -> dict[str, CorpusState]:
        """By name, those dropped or replaced excepted."""
        ...
