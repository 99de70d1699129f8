"""Compiled entry points of a forest: a whole batch in one call, handles checked on the way in."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import boolean, float32, float64, int32, int64, void

from engine.drafters.suffix.handles import open_sequence, sequence_of, tree_of
from engine.drafters.suffix.match import draft, find, searchable
from engine.drafters.suffix.memory import compiled
from engine.drafters.suffix.nodes import COUNT, LIVE, STATE_OF
from engine.drafters.suffix.removal import drop_tree, remove
from engine.drafters.suffix.tree import append, close

CLOSE, REMOVE, DROP = 0, 1, 2


@compiled(int64, int64, int64, int64, int64)
def begin(memory: Any, tree: int, now: int, expected: int, weight: int) -> int:
    """Handle of a new sequence, 0 when memory is full, -1 when there is no such tree."""
    root = tree_of(memory, tree)
    return open_sequence(memory, root, now, expected, weight) if root else -1


@compiled(void, int64[::1], int64[::1], int64[::1], int64[::1])
def extend_many(memory: Any, handles: Any, tokens: Any, offsets: Any, taken: Any) -> None:
    """Append tokens[offsets[i]:offsets[i + 1]] to handles[i]; taken[i] is how many it took."""
    for i in range(len(handles)):
        taken[i] = 0
        sequence = sequence_of(memory, handles[i])
        if sequence == 0:
            continue
        for at in range(offsets[i], offsets[i + 1]):
            if not append(memory, sequence, np.int64(tokens[at])):
                break
            taken[i] += 1


@compiled(
    void,
    int64[::1],
    int64[:, ::1],
    int64[::1],
    float64,
    float64,
    float64,
    int32[:, ::1],
    float32[:, ::1],
    int32[:, ::1],
    float64[::1],
)
def draft_many(
    memory: Any, texts: Any, sources: Any, longest: Any, factor: float, offset: float,
    least: float, tokens: Any, probabilities: Any, facts: Any, scores: Any,
) -> None:  # fmt: skip
    """`draft` for each text [B] from its own tree and the sources [B, S] of its row: handles of
    trees or of live sequences; what was dropped or removed is left out."""
    blocks = np.zeros(sources.shape[1], np.int64)
    for i in range(len(texts)):
        scores[i] = 0.0
        facts[i, :] = 0
        text = sequence_of(memory, texts[i])
        if text == 0:
            continue
        for j in range(len(blocks)):
            tree = tree_of(memory, sources[i, j])
            blocks[j] = tree if tree else sequence_of(memory, sources[i, j])
        scores[i] = draft(
            memory, text, blocks, longest[i], factor, offset, least,
            tokens[i], probabilities[i], facts[i],
        )  # fmt: skip


@compiled(boolean, int64, int64)
def end(memory: Any, handle: int, how: int) -> bool:
    """Close or remove a sequence or drop a tree; False when there is no such thing."""
    if how == DROP:
        root = tree_of(memory, handle)
        if root:
            drop_tree(memory, root)
        return root != 0
    sequence = sequence_of(memory, handle)
    if sequence == 0:
        return False
    if how == REMOVE:
        remove(memory, sequence)
    elif memory.blocks[sequence, STATE_OF] == LIVE:
        close(memory, sequence)
    return True


@compiled(int64, int64, int64[::1])
def occurrences(memory: Any, tree: int, tokens: Any) -> int:
    """Occurrences of a string of at most the depth limit in a tree, by weight."""
    root = tree_of(memory, tree)
    node = find(memory, root, searchable(memory, tokens), 0, len(tokens)) if root else 0
    return memory.blocks[node, COUNT] if node else 0
