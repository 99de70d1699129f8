"""Corpora in the suffix drafter's forest: queued whole, indexed and removed a little at a time."""

from __future__ import annotations

from collections import deque

import numpy as np
from numpy.typing import NDArray

from engine.drafters.corpus import CorpusState
from engine.drafters.suffix.forest import SuffixForest
from engine.drafters.suffix.slices import DOCUMENT, FULL, PRICE, TAKEN, index, remove

SHARE = 0.5
"""Of the forest's memory that corpora may take, those that wait for removal included; the rest is
for requests and their answers. What waits for indexing may take as much beside the forest."""
_CALL_PRICE = 64
"""Of a call for one part, however little there is in it; in the unit of slices.py."""


class _Part:
    """Documents that came together. tokens int32, bounds int64 [documents + 1] and the cursor are
    of use until they are indexed; handles int64 [documents], until they are removed."""

    __slots__ = ("bounds", "cursor", "handles", "tokens")

    def __init__(self, tokens: NDArray[np.int32], lengths: NDArray[np.int64]) -> None:
        self.tokens = tokens
        self.bounds = np.zeros(len(lengths) + 1, dtype=np.int64)
        np.cumsum(lengths, out=self.bounds[1:])
        self.handles = np.zeros(len(lengths), dtype=np.int64)
        self.cursor = np.zeros(2, dtype=np.int64)

    @property
    def indexed(self) -> int:
        """Tokens."""
        return int(self.bounds[self.cursor[DOCUMENT]] + self.cursor[TAKEN])

    @property
    def queue_bytes(self) -> int:
        return self.tokens.nbytes + self.bounds.nbytes + self.handles.nbytes


class _Corpus:
    """handles: of its sequences, by part. queue: parts that are not wholly indexed. reached: how
    many tokens were indexed when there was no room for more, if that was so: nothing of it is
    kept then, and no more is taken in."""

    def __init__(self) -> None:
        self.handles: deque[NDArray[np.int64]] = deque()
        self.queue: deque[_Part] = deque()
        self.sequences = 0
        self.tokens = 0
        self.indexed = 0
        self.bytes = 0
        self.reached: int | None = None

    def state(self, limit: int) -> CorpusState:
        indexed = self.indexed + (self.queue[0].indexed if self.queue else 0)
        failed = None
        if self.reached is not None:
            failed = (
                f"it does not fit into the {SHARE:.0%} of {limit >> 20} MiB of suffix memory that "
                f"all corpora together may take; {self.reached:,} of its tokens did. Load less, "
                "remove another, or serve with a larger --suffix-memory-mb."
            )
        return CorpusState(self.sequences, self.tokens, indexed, self.bytes, failed)


class Corpora:
    """One tree for all of them, which every request may draft from."""

    def __init__(self, forest: SuffixForest) -> None:
        self._forest = forest
        self._limit = forest.stats().limit_bytes
        self._by_name: dict[str, _Corpus] = {}
        self._leaving: deque[_Corpus] = deque()
        self._removed = 0
        """Sequences of the first part of the first that leaves that are removed already."""
        self._swept = 0
        """Bytes of those that left and may not be free yet."""
        self._queued = 0
        """Bytes of what waits for indexing."""
        self.tree = 0
        """Handle of the tree; 0 while there is nothing in it."""

    def put(
        self, name: str, tokens: NDArray[np.int32], lengths: NDArray[np.int64], first: bool
    ) -> None:
        """See CorpusHolder."""
        if first:
            self.drop(name)
        corpus = self._by_name.setdefault(name, _Corpus())
        corpus.sequences += len(lengths)
        corpus.tokens += len(tokens)
        part = _Part(tokens, lengths)
        if self._queued + part.queue_bytes > SHARE * self._limit:
            self._fail(corpus)
        if corpus.reached is None and len(tokens):
            corpus.queue.append(part)
            self._queued += part.queue_bytes

    def drop(self, name: str) -> None:
        """Drafts come from it until `keep_up` has removed it."""
        corpus = self._by_name.pop(name, None)
        if corpus is None:
            return
        self._stop(corpus)
        if self._by_name:
            self._leaving.append(corpus)
            return
        self._forest.drop_tree(self.tree)
        self._swept += corpus.bytes + sum(one.bytes for one in self._leaving)
        self._leaving.clear()
        self._removed = self.tree = 0

    def states(self) -> dict[str, CorpusState]:
        return {name: corpus.state(self._limit) for name, corpus in self._by_name.items()}

    @property
    def waiting(self) -> bool:
        """Whether `keep_up` has something to do."""
        return bool(self._leaving) or any(one.queue for one in self._by_name.values())

    def keep_up(self, budget: int) -> None:
        """Remove and index what costs about `budget`."""
        while self._leaving and budget > 0:
            budget -= self._remove(self._leaving[0], budget)
        if self._swept and not self._leaving and not self._forest.stats().pending:
            self._swept = 0
        for corpus in self._by_name.values():
            while corpus.queue and budget > 0:
                if self._full():
                    if self._leaving or self._swept:
                        return  # there soon is more room
                    self._fail(corpus)
                    break
                budget -= self._index(corpus, corpus.queue[0], budget)

    def _full(self) -> bool:
        taken = sum(one.bytes for one in (*self._by_name.values(), *self._leaving))
        return taken + self._swept > SHARE * self._limit

    def _index(self, corpus: _Corpus, part: _Part, budget: int) -> int:
        """Go on with the first part that waits. Returns what it cost."""
        forest, before = self._forest, self._forest.stats().bytes
        if not self.tree:
            self.tree = forest.open_tree("corpus")
        left = index(
            forest.memory, self.tree, part.tokens, part.bounds, part.handles, part.cursor, budget
        )
        corpus.bytes += forest.stats().bytes - before
        if left == FULL:
            self._fail(corpus)
            return _CALL_PRICE
        if part.cursor[DOCUMENT] == len(part.handles):
            corpus.queue.popleft()
            corpus.indexed += part.indexed
            corpus.handles.append(part.handles)
            self._queued -= part.queue_bytes
        return budget - left + _CALL_PRICE

    def _fail(self, corpus: _Corpus) -> None:
        """There is no room for all of it: make what it took free for others."""
        self._stop(corpus)
        corpus.reached, corpus.indexed = corpus.indexed, 0
        leaving = _Corpus()
        leaving.handles, corpus.handles = corpus.handles, deque()
        leaving.bytes, corpus.bytes = corpus.bytes, 0
        if leaving.handles:
            self._leaving.append(leaving)

    def _stop(self, corpus: _Corpus) -> None:
        """Take nothing more of it in; what is indexed stays."""
        if not corpus.queue:
            return
        part = corpus.queue[0]
        begun = int(part.cursor[DOCUMENT])
        self._forest.close(int(part.handles[begun]))
        corpus.indexed += part.indexed
        corpus.handles.append(part.handles[: begun + 1])
        self._queued -= sum(part.queue_bytes for part in corpus.queue)
        corpus.queue.clear()

    def _remove(self, corpus: _Corpus, budget: int) -> int:
        """Take sequences of one that leaves out of use. Returns what it cost."""
        if not corpus.handles:
            self._leaving.popleft()
            self._swept += corpus.bytes
            return _CALL_PRICE
        handles, first = corpus.handles[0], self._removed
        self._removed = remove(self._forest.memory, handles, first, budget)
        cost = (self._removed - first) * PRICE + _CALL_PRICE
        if self._removed == len(handles):
            corpus.handles.popleft()
            self._removed = 0
        return cost
