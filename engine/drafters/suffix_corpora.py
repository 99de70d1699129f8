"""Corpora in the suffix drafter's forest: queued whole, indexed a little at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from engine.drafters.corpus import CorpusState
from engine.drafters.suffix_forest import SuffixForest

SHARE = 0.5
"""Of the forest's memory that corpora may take; the rest is for requests and their answers."""


class _Corpus:
    """handles: of its indexed sequences. queue: those that wait; the first may be indexed in part,
    up to `taken`, as the sequence `live`."""

    def __init__(self) -> None:
        self.handles: list[int] = []
        self.queue: deque[NDArray[np.int32]] = deque()
        self.live = 0
        self.taken = 0
        self.sequences = 0
        self.tokens = 0
        self.indexed = 0
        self.bytes = 0
        self.failed: str | None = None

    def state(self) -> CorpusState:
        return CorpusState(self.sequences, self.tokens, self.indexed, self.bytes, self.failed)


class Corpora:
    """One tree for all of them, which every request may draft from."""

    def __init__(self, forest: SuffixForest) -> None:
        self._forest = forest
        self._by_name: dict[str, _Corpus] = {}
        self.tree = 0
        """Handle of the tree; 0 while there is nothing in it."""

    def put(self, name: str, sequences: Sequence[NDArray[np.int32]], first: bool) -> None:
        """See CorpusHolder."""
        if first:
            self.drop(name)
        corpus = self._by_name.setdefault(name, _Corpus())
        corpus.sequences += len(sequences)
        corpus.tokens += sum(len(one) for one in sequences)
        if corpus.failed is None:
            corpus.queue.extend(one for one in sequences if len(one))

    def drop(self, name: str) -> None:
        corpus = self._by_name.pop(name, None)
        if corpus is None:
            return
        for handle in (*corpus.handles, corpus.live):
            if handle:
                self._forest.remove(handle)
        if not self._by_name and self.tree:
            self._forest.drop_tree(self.tree)
            self.tree = 0

    def states(self) -> dict[str, CorpusState]:
        return {name: corpus.state() for name, corpus in self._by_name.items()}

    @property
    def waiting(self) -> bool:
        return any(corpus.queue for corpus in self._by_name.values())

    def index(self, budget: int) -> None:
        """Index about `budget` tokens of what waits."""
        for corpus in self._by_name.values():
            while corpus.queue and budget > 0:
                budget -= self._slice(corpus, budget)

    def _slice(self, corpus: _Corpus, budget: int) -> int:
        """Index up to `budget` tokens of the corpus's first sequence that waits. Returns how many
        were tried."""
        forest, sequence = self._forest, corpus.queue[0]
        limit = forest.stats().limit_bytes
        before = forest.stats().bytes
        if sum(one.bytes for one in self._by_name.values()) > SHARE * limit:
            return self._fail(corpus, limit)
        if not self.tree:
            self.tree = forest.open_tree("corpus")
        if self.tree and not corpus.live:
            corpus.live = forest.open_sequence(self.tree, expected=len(sequence))
        if not corpus.live:
            return self._fail(corpus, limit)
        part = sequence[corpus.taken : corpus.taken + budget]
        taken = forest.append(corpus.live, part)
        corpus.taken += taken
        corpus.indexed += taken
        corpus.bytes += forest.stats().bytes - before
        if taken < len(part):
            return self._fail(corpus, limit)
        if corpus.taken == len(sequence):
            forest.close(corpus.live)
            corpus.handles.append(corpus.live)
            corpus.queue.popleft()
            corpus.live = corpus.taken = 0
        return taken

    def _fail(self, corpus: _Corpus, limit: int) -> int:
        """Take nothing more of it in; what is indexed stays."""
        if corpus.live:
            self._forest.close(corpus.live)
            corpus.handles.append(corpus.live)
        corpus.queue.clear()
        corpus.live = corpus.taken = 0
        corpus.failed = (
            f"only {corpus.indexed:,} of {corpus.tokens:,} tokens fit: corpora may take "
            f"{SHARE:.0%} of the {limit >> 20} MB of suffix memory. Load less, or serve with a "
            "larger --suffix-memory-mb."
        )
        return 0
