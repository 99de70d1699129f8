"""Nodes of suffix trees: labels, counts and children.

A node stands for one string, the path to it from its root. Its label is an occurrence of that
whole path in a stored text, (sequence, start), so splitting and joining edges never moves labels.
Every string inside an edge has the count of the node the edge leads to."""

from __future__ import annotations

from typing import Any

from numba import int64, void

from engine.drafters.suffix.memory import (
    DEPTH_LIMIT,
    NODES,
    SEQUENCES,
    TOKENS,
    compiled,
    give,
    take,
)

# Kinds, word 0 of a node.
NODE, LOCAL, GLOBAL, CORPUS, DEAD = 1, 2, 3, 4, 5

# Words of a node.
KIND = 0
PARENT = 1
TOKEN = 2
"""First token of the edge that leads to the node."""
SEQUENCE, START = 3, 4
"""The label. START < 0: -1 - start, and the sequence is kept only because of such labels."""
DEPTH = 5
"""Length of the path. OPEN for a leaf: its one suffix, up to the depth limit, as it grows."""
COUNT = 6
"""Occurrences of the path, each with the weight of its sequence."""
WIDTH, CHILD, NEXT, PREVIOUS = 7, 8, 9, 10
BEST = 11
"""Child with the highest count, the one that reached it last; STALE: to be searched for."""
SECOND = 12
"""No other child has a higher count than this."""
TABLE, TABLE_ORDER = 13, 14
"""Hash table of (token, child) pairs, linear probing; a pair with child 0 is free."""

OPEN = -1
STALE = -1

# Words of a root that mean something else there.
BORN = 1
"""Minus the generation of a tree or sequence, 0 once it is freed: a handle that was freed is not
mistaken for a new one, nor for what a text has there, which is never negative."""
FIRST_SEQUENCE, PROMPT = 3, 4
NEXT_DROP = 9

# States, word 0 of a sequence.
LIVE, CLOSED, TRUNCATED, REMOVING, GHOST = 16, 17, 18, 19, 20

# Words of a sequence.
STATE_OF = 0
ROOT, LENGTH, TEXT, TEXT_ORDER, TIPS, TIP_COUNT = 2, 3, 4, 5, 6, 7
OLDER, NEWER, TREE_PREVIOUS, TREE_NEXT = 8, 9, 10, 11
OPENED, CURSOR, HELD, WEIGHT = 12, 13, 14, 15
NEXT_REMOVAL = TIPS
"""Of a closed sequence, which has no tips."""


@compiled(int64, int64, int64, int64, int64)
def new_node(memory: Any, sequence: int, start: int, depth: int, count: int) -> int:
    """A node without place; the caller has seen to it that a unit is free."""
    blocks = memory.blocks
    node = take(memory, 0)
    blocks[node, :] = 0
    blocks[node, KIND] = NODE
    blocks[node, SEQUENCE] = sequence
    blocks[node, START] = start
    blocks[node, DEPTH] = depth
    blocks[node, COUNT] = count
    memory.state[NODES] += 1
    return node


@compiled(void, int64)
def free_sequence(memory: Any, sequence: int) -> None:
    """Free a sequence that no label refers to."""
    blocks, state = memory.blocks, memory.state
    before, after = blocks[sequence, TREE_PREVIOUS], blocks[sequence, TREE_NEXT]
    if before:
        blocks[before, TREE_NEXT] = after
    else:
        blocks[blocks[sequence, ROOT], FIRST_SEQUENCE] = after
    if after:
        blocks[after, TREE_PREVIOUS] = before
    state[TOKENS] -= blocks[sequence, LENGTH]
    state[SEQUENCES] -= 1
    give(memory, blocks[sequence, TEXT], blocks[sequence, TEXT_ORDER])
    blocks[sequence, BORN] = 0
    give(memory, sequence, 0)


@compiled(void, int64)
def _release_label(memory: Any, node: int) -> None:
    blocks = memory.blocks
    if blocks[node, START] < 0:
        sequence = blocks[node, SEQUENCE]
        blocks[sequence, HELD] -= 1
        if blocks[sequence, HELD] == 0 and blocks[sequence, STATE_OF] == GHOST:
            free_sequence(memory, sequence)


@compiled(void, int64)
def free_node(memory: Any, node: int) -> None:
    blocks = memory.blocks
    _release_label(memory, node)
    if blocks[node, TABLE]:
        give(memory, blocks[node, TABLE], blocks[node, TABLE_ORDER])
    give(memory, node, 0)
    memory.state[NODES] -= 1


@compiled(int64, int64)
def end_of(memory: Any, node: int) -> int:
    """Length of the path to the end of the node's edge."""
    blocks = memory.blocks
    depth = blocks[node, DEPTH]
    if depth >= 0:
        return depth
    length = blocks[blocks[node, SEQUENCE], LENGTH] - blocks[node, START]
    return min(length, memory.state[DEPTH_LIMIT])


@compiled(int64, int64)
def label_start(memory: Any, node: int) -> int:
    """Word where the label's occurrence of the whole path begins."""
    blocks = memory.blocks
    start = blocks[node, START]
    if start < 0:
        start = -1 - start
    return (blocks[blocks[node, SEQUENCE], TEXT] << 4) + start


@compiled(void, int64, int64, int64)
def set_label(memory: Any, node: int, sequence: int, start: int) -> None:
    _release_label(memory, node)
    memory.blocks[node, SEQUENCE] = sequence
    memory.blocks[node, START] = start
