"""Suffix decoding's memory of texts: trees of counted suffixes that are asked for drafts.

Needs numpy and numba only. Not safe to call from two threads at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from engine.drafters.suffix import calls
from engine.drafters.suffix.aging import NEVER, evict, fade
from engine.drafters.suffix.handles import open_tree
from engine.drafters.suffix.match import NONE
from engine.drafters.suffix.memory import (
    COUNTED_OUT,
    CROWDED,
    DEPTH_LIMIT,
    DROPS,
    FULL,
    LIMIT,
    MAX_DEPTH,
    NODES,
    REMOVALS,
    SEQUENCES,
    TOKENS,
    TREES,
    UNIT_BYTES,
    UNKNOWN_ID,
    VOCABULARY,
    Arena,
    Memory,
)
from engine.drafters.suffix.nodes import CORPUS, GLOBAL, LOCAL
from engine.drafters.suffix.removal import sweep

KINDS = {"local": LOCAL, "global": GLOBAL, "corpus": CORPUS}
ORIGINS: tuple[Literal["none", "prompt", "output", "global", "corpus"], ...] = (
    "none", "prompt", "output", "global", "corpus",
)  # fmt: skip
"""What `Drafts.origins` counts: where the first drafted token was found."""

MIN_BYTES, MAX_BYTES = 1 << 16, 1 << 36
MAX_DRAFT = 255
MAX_FACTOR = 64.0
MAX_WEIGHT = 1 << 6
"""All texts of a tree together count less than 2^31: 33 million tokens of this weight."""
BUDGET = 8_000
"""Nodes of removal that take about 2 ms."""


class Drafts(NamedTuple):
    """Drafts of one batch. The arrays are overwritten by the next call.

    tokens: int32 [B, MAX_DRAFT]. probabilities: float32, same shape, of the path up to each
    token. lengths, matches, origins (index of ORIGINS), sources (column, -1: own tree): int32
    [B]. scores: float64 [B], expected accepted tokens, 0 without a draft."""

    tokens: NDArray[np.int32]
    probabilities: NDArray[np.float32]
    lengths: NDArray[np.int32]
    matches: NDArray[np.int32]
    origins: NDArray[np.int32]
    sources: NDArray[np.int32]
    scores: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class ForestStats:
    """bytes: in use. touched_bytes: what the process has of them at most. limit_bytes: of both.
    truncated_full, truncated_id, truncated_count: sequences that were cut short since the start, by
    a full forest, an id outside the vocabulary, or counts of their tree that reached 2^31.
    pending: something removed or dropped waits for `sweep`. crowded: counts of a global tree come
    near 2^31; `evict` makes room."""

    bytes: int
    touched_bytes: int
    limit_bytes: int
    trees: int
    sequences: int
    nodes: int
    tokens: int
    truncated_full: int
    truncated_id: int
    truncated_count: int
    pending: bool
    crowded: bool

    @property
    def truncations(self) -> int:
        """Sequences cut short, whatever the reason."""
        return self.truncated_full + self.truncated_id + self.truncated_count


class SuffixForest:
    """Trees over texts that may still be growing. Trees and sequences are int handles; handles of
    what was dropped or removed are known as such, never taken for something else."""

    def __init__(self, limit_bytes: int, depth: int = 64, vocabulary: int = 2**31 - 1) -> None:
        """limit_bytes: of everything, 64 KiB to 64 GiB, reserved at once but taken only as it is
        needed. depth: longest string counted, 2 to 256 tokens: match and draft together. Ids
        from `vocabulary` on, or negative, are never stored. Raises ValueError."""
        _bound("limit_bytes", limit_bytes, MIN_BYTES, MAX_BYTES)
        _bound("depth", depth, 2, MAX_DEPTH)
        _bound("vocabulary", vocabulary, 1, 2**31 - 1)
        self._arena = Arena(limit_bytes)
        self.memory: Memory = self._arena.memory
        """For compiled code that calls `append` and `draft` itself."""
        state = self.memory.state
        state[DEPTH_LIMIT], state[VOCABULARY] = depth, vocabulary
        self._batch = 0
        self._grow(8)

    @property
    def depth(self) -> int:
        return int(self.memory.state[DEPTH_LIMIT])

    # Trees and sequences

    def open_tree(self, kind: Literal["local", "global", "corpus"], prompt_length: int = 0) -> int:
        """Handle of an empty tree, 0 when the forest is full. Only sequences of global trees are
        evicted. prompt_length: of a local tree, tokens at the front of its text that are prompt."""
        _bound("prompt_length", prompt_length, 0, 2**31 - 1)
        return open_tree(self.memory, KINDS[kind], prompt_length)

    def drop_tree(self, tree: int) -> bool:
        """Take a tree and its sequences out of use at once; `sweep` frees them. False if there
        is no such tree."""
        return calls.end(self.memory, tree, calls.DROP)

    def open_sequence(self, tree: int, now: int = 0, expected: int = 0, weight: int = 1) -> int:
        """Handle of an empty live sequence, 0 when the forest is full. now: the caller's clock in
        whole seconds, for eviction by age. expected: tokens to make room for at first. weight:
        what one of its occurrences counts, 1 to 64. Raises KeyError for an unknown tree."""
        _bound("now", now, -(2**31) + 1, 2**31 - 1)
        _bound("expected", expected, 0, 2**31 - 1)
        _bound("weight", weight, 1, MAX_WEIGHT)
        handle = calls.begin(self.memory, tree, now, expected, weight)
        if handle < 0:
            raise KeyError(f"no tree {tree} in this forest: it was dropped or never opened")
        return handle

    def extend(self, sequences: ArrayLike, tokens: ArrayLike, offsets: ArrayLike) -> NDArray[Any]:
        """Append tokens[offsets[i]:offsets[i + 1]] to sequences[i], in this order. Returns int64
        [n], how many each took. One that takes fewer is truncated for good (`ForestStats` tells
        why) or is not live; nothing is raised for it."""
        handles = np.ascontiguousarray(sequences, np.int64)
        ids = np.ascontiguousarray(tokens, np.int64)
        bounds = np.ascontiguousarray(offsets, np.int64)
        if len(bounds) != len(handles) + 1 or bounds[0] < 0 or bounds[-1] > len(ids):
            raise ValueError("offsets must be one more than the sequences and within the tokens")
        taken = np.empty(len(handles), np.int64)
        calls.extend_many(self.memory, handles, ids, bounds, taken)
        return taken

    def append(self, sequence: int, tokens: Sequence[int] | NDArray[Any]) -> int:
        """`extend` for one sequence."""
        return int(self.extend([sequence], tokens, [0, len(tokens)])[0])

    def close(self, sequence: int) -> bool:
        """End a live sequence: it stays in its tree. False if there is no such sequence."""
        return calls.end(self.memory, sequence, calls.CLOSE)

    def remove(self, sequence: int) -> bool:
        """Take a sequence out of use at once; `sweep` takes it out of its tree. False if there is
        no such sequence."""
        return calls.end(self.memory, sequence, calls.REMOVE)

    # Drafts

    def speculate(
        self, texts: ArrayLike, sources: ArrayLike, longest: ArrayLike,
        factor: float = 1.0, offset: float = 0.0, least: float = 0.1,
    ) -> Drafts:  # fmt: skip
        """Drafts after the ends of live sequences of local trees.

        texts: [B] handles. sources: [B, S] handles searched after the text's own tree, in this
        order: trees, or live sequences that end with the same tokens as the text (the request's
        own response in the global tree: its matches are known already, a tree is searched); 0
        for none. longest: [B], 0 to 255 tokens. A match of m tokens drafts at most
        min(longest, floor(m * factor + offset + 1e-6)) tokens, fewer when the path's
        probability falls below `least`. The highest sum of path probabilities wins; among equals
        the earlier source, then the longer match. Unknown handles give no draft."""
        handles = np.ascontiguousarray(texts, np.int64)
        columns = np.ascontiguousarray(sources, np.int64)
        lengths = np.ascontiguousarray(longest, np.int64)
        if columns.ndim != 2 or not len(handles) == len(columns) == len(lengths):
            raise ValueError("texts [B], sources [B, S] and longest [B] must have the same B")
        _bound("factor", factor, 0.0, MAX_FACTOR)
        _bound("offset", offset, -float(MAX_DRAFT), float(MAX_DRAFT))
        _bound("least", least, 0.0, 1.0)
        if len(lengths) and not 0 <= lengths.min() <= lengths.max() <= MAX_DRAFT:
            raise ValueError(f"longest must be 0 to {MAX_DRAFT} tokens, got {lengths}")
        batch = len(handles)
        if batch > self._batch:
            self._grow(batch)
        calls.draft_many(
            self.memory, handles, columns, lengths, float(factor), float(offset), float(least),
            self._tokens, self._probabilities, self._facts, self._scores,
        )  # fmt: skip
        facts = self._facts[:batch]
        return Drafts(
            self._tokens[:batch], self._probabilities[:batch],
            facts[:, 0], facts[:, 1], facts[:, 2], facts[:, 3], self._scores[:batch],
        )  # fmt: skip

    # Upkeep

    # Each returns what is left of its budget, for the next one: 0 means call again. A call costs
    # its budget, in nodes, and at most one suffix of `depth` nodes more.

    def sweep(self, budget: int = BUDGET) -> int:
        """Go on freeing what was removed or dropped."""
        _bound("budget", budget, 1, 2**31 - 1)
        left = sweep(self.memory, budget)
        self._arena.give_back()
        return left

    def evict(
        self, older_than: int | None = None, to_bytes: int | None = None, budget: int = BUDGET
    ) -> int:
        """`sweep`, then remove sequences of global trees that are not live, the oldest first:
        those opened before `older_than` (seconds), and then more until at most `to_bytes` are in
        use and no tree is crowded."""
        _bound("budget", budget, 1, 2**31 - 1)
        units = MAX_BYTES if to_bytes is None else max(to_bytes, 0) // UNIT_BYTES + 1
        age = NEVER if older_than is None else older_than
        left = evict(self.memory, age, units, budget)
        self._arena.give_back()
        return left

    def fade(self, now: int, half_life: int, fresh: int, budget: int = BUDGET) -> int:
        """Let old counts decay: a sequence of a global tree that was opened with weight `fresh`
        (a power of two, 1 to 64) and is not live counts half as much after each half-life
        (seconds), down to 1, until it is evicted. Counts stay exact sums of whole weights, so
        nothing is ever rescaled."""
        _bound("half_life", half_life, 1, 2**31 - 1)
        _bound("fresh", fresh, 1, MAX_WEIGHT)
        _bound("budget", budget, 1, 2**31 - 1)
        return fade(self.memory, now, half_life, fresh, budget)

    def count(self, tree: int, tokens: Sequence[int]) -> int:
        """Occurrences of a string of at most `depth` tokens in a tree, by weight; 0 for an
        unknown tree."""
        if len(tokens) > self.depth:
            raise ValueError(f"strings of more than {self.depth} tokens are not counted")
        return calls.occurrences(self.memory, tree, np.asarray(tokens, np.int64))

    def stats(self) -> ForestStats:
        state = self.memory.state
        return ForestStats(
            bytes=self._arena.used_bytes,
            touched_bytes=self._arena.touched_bytes,
            limit_bytes=int(state[LIMIT]) * UNIT_BYTES,
            trees=int(state[TREES]),
            sequences=int(state[SEQUENCES]),
            nodes=int(state[NODES]),
            tokens=int(state[TOKENS]),
            truncated_full=int(state[FULL]),
            truncated_id=int(state[UNKNOWN_ID]),
            truncated_count=int(state[COUNTED_OUT]),
            pending=bool(state[REMOVALS] or state[DROPS]),
            crowded=bool(state[CROWDED]),
        )

    def _grow(self, batch: int) -> None:
        self._batch = batch
        self._tokens = np.zeros((batch, MAX_DRAFT), np.int32)
        self._probabilities = np.zeros((batch, MAX_DRAFT), np.float32)
        self._facts = np.full((batch, 4), NONE, np.int32)
        self._scores = np.zeros(batch, np.float64)


def _bound(name: str, value: float, least: float, most: float) -> None:
    if not least <= value <= most:
        raise ValueError(f"{name} must be {least} to {most}, got {value}")
