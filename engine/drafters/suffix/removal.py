"""Removes texts and drops trees, a bounded part per call."""

from __future__ import annotations

from typing import Any

from numba import int64, void

from engine.drafters.suffix.children import (
    child_by,
    child_fell,
    join_only_child,
    remove_child,
)
from engine.drafters.suffix.memory import (
    CROWDED,
    DEPTH_LIMIT,
    DROPPING,
    DROPS,
    FADE_NEXT,
    FADED_TO,
    FADING,
    LAST_REMOVAL,
    NEWEST,
    OLDEST,
    REMOVALS,
    SCRATCH,
    TREES,
    compiled,
)
from engine.drafters.suffix.nodes import (
    BORN,
    CHILD,
    CLOSED,
    COUNT,
    CURSOR,
    DEAD,
    FIRST_SEQUENCE,
    GHOST,
    HELD,
    KIND,
    LENGTH,
    LIVE,
    NEWER,
    NEXT,
    NEXT_DROP,
    NEXT_REMOVAL,
    OLDER,
    PARENT,
    REMOVING,
    ROOT,
    SEQUENCE,
    START,
    STATE_OF,
    TEXT,
    WEIGHT,
    WIDTH,
    end_of,
    free_node,
    free_sequence,
)
from engine.drafters.suffix.tree import (
    close,
)


@compiled(void, int64)
def drop_tree(memory: Any, root: int) -> None:
    """Take a tree out of use; `sweep` frees it."""
    blocks, state = memory.blocks, memory.state
    blocks[root, KIND] = DEAD
    if state[CROWDED] == root:
        state[CROWDED] = 0
    first = state[DROPS]
    if first:  # which may be half freed
        blocks[root, NEXT_DROP] = blocks[first, NEXT_DROP]
        blocks[first, NEXT_DROP] = root
    else:
        blocks[root, NEXT_DROP] = 0
        state[DROPS] = root


@compiled(void, int64)
def _forget_age(memory: Any, sequence: int) -> None:
    """Take a sequence out of the list by age, where only those of global trees are."""
    blocks, state = memory.blocks, memory.state
    older, newer = blocks[sequence, OLDER], blocks[sequence, NEWER]
    if state[FADE_NEXT] == sequence:
        state[FADE_NEXT] = newer
    if older:
        blocks[older, NEWER] = newer
    elif state[OLDEST] == sequence:
        state[OLDEST] = newer
    if newer:
        blocks[newer, OLDER] = older
    elif state[NEWEST] == sequence:
        state[NEWEST] = older
    blocks[sequence, OLDER] = blocks[sequence, NEWER] = 0


@compiled(void, int64)
def _relabel(memory: Any, node: int) -> None:
    """Give a node another occurrence than the one that goes: a child's, or else keep the text
    for it. Only leaving out of turn gets that far: the newest occurrence labels a node."""
    blocks = memory.blocks
    if blocks[node, WIDTH]:
        child = blocks[node, CHILD]
        blocks[node, SEQUENCE], blocks[node, START] = blocks[child, SEQUENCE], blocks[child, START]
    else:
        blocks[node, START] = -1 - blocks[node, START]
    if blocks[node, START] < 0:
        blocks[blocks[node, SEQUENCE], HELD] += 1


@compiled(int64, int64, int64, int64)
def _lower_suffix(memory: Any, sequence: int, start: int, weight: int) -> int:
    """Count the suffix that begins at start less by a weight, its whole one to take it out of its
    tree. Returns the nodes visited. Called in the order of the text, so a string never counts
    more than its own end does."""
    blocks, words, state = memory.blocks, memory.words, memory.state
    whole = weight == blocks[sequence, WEIGHT]
    extent = min(blocks[sequence, LENGTH] - start, state[DEPTH_LIMIT])
    text = (blocks[sequence, TEXT] << 4) + start
    node, at, visited = blocks[sequence, ROOT], 0, 0
    blocks[node, COUNT] -= weight
    while at < extent:
        node = child_by(memory, node, words[text + at])
        at = end_of(memory, node)
        blocks[node, COUNT] -= weight
        state[SCRATCH + visited] = node
        visited += 1
    last = blocks[sequence, ROOT]
    for i in range(visited):
        if blocks[state[SCRATCH + i], COUNT] == 0:
            break
        last = state[SCRATCH + i]
    for i in range(visited - 1, -1, -1):
        node = state[SCRATCH + i]
        parent = blocks[node, PARENT]
        if blocks[node, COUNT] == 0:
            remove_child(memory, parent, node)
            free_node(memory, node)
        else:
            child_fell(memory, parent, node)
            if whole and blocks[node, SEQUENCE] == sequence and blocks[node, START] == start:
                _relabel(memory, node)
    join_only_child(memory, last)
    return visited + 1


@compiled(int64, int64)
def fade_part(memory: Any, budget: int) -> int:
    """Go on lowering the weight of the sequence that fades. Returns the budget that is left."""
    blocks, state = memory.blocks, memory.state
    sequence = state[FADING]
    less = blocks[sequence, WEIGHT] - state[FADED_TO]
    if blocks[blocks[sequence, ROOT], KIND] == DEAD:
        state[FADING] = 0
        return budget - 1
    while budget > 0 and blocks[sequence, CURSOR] < blocks[sequence, LENGTH]:
        budget -= _lower_suffix(memory, sequence, blocks[sequence, CURSOR], less)
        blocks[sequence, CURSOR] += 1
    if blocks[sequence, CURSOR] == blocks[sequence, LENGTH]:
        blocks[sequence, CURSOR] = 0
        blocks[sequence, WEIGHT] = state[FADED_TO]
        state[FADING] = 0
    return budget


@compiled(void, int64)
def remove(memory: Any, sequence: int) -> None:
    """Take a sequence out of use; `sweep` takes its suffixes out of the tree, once it has faded to
    the end if it is just fading."""
    blocks, state = memory.blocks, memory.state
    if blocks[sequence, STATE_OF] == LIVE:
        close(memory, sequence)
    blocks[sequence, STATE_OF] = REMOVING
    _forget_age(memory, sequence)
    last = state[LAST_REMOVAL]
    if last:
        blocks[last, NEXT_REMOVAL] = sequence
    else:
        state[REMOVALS] = sequence
    state[LAST_REMOVAL] = sequence


@compiled(int64, int64, int64)
def _remove_part(memory: Any, sequence: int, budget: int) -> int:
    blocks, state = memory.blocks, memory.state
    if state[FADING] == sequence:
        budget = fade_part(memory, budget)
        if state[FADING] == sequence:
            return budget
    while budget > 0 and blocks[blocks[sequence, ROOT], KIND] != DEAD:
        start = blocks[sequence, CURSOR]
        if start == blocks[sequence, LENGTH]:
            break
        budget -= _lower_suffix(memory, sequence, start, blocks[sequence, WEIGHT])
        blocks[sequence, CURSOR] = start + 1
    dead = blocks[blocks[sequence, ROOT], KIND] == DEAD
    if dead or blocks[sequence, CURSOR] == blocks[sequence, LENGTH]:
        state[REMOVALS] = blocks[sequence, NEXT_REMOVAL]
        if state[REMOVALS] == 0:
            state[LAST_REMOVAL] = 0
        blocks[sequence, NEXT_REMOVAL] = 0
        blocks[sequence, STATE_OF] = CLOSED if dead else GHOST  # a dead tree frees its own
        if not dead and blocks[sequence, HELD] == 0:
            free_sequence(memory, sequence)
        budget -= 1
    return budget


@compiled(int64, int64, int64)
def _drop_part(memory: Any, root: int, budget: int) -> int:
    blocks, state = memory.blocks, memory.state
    node = state[DROPPING] if state[DROPPING] else root
    while budget > 0:
        child = blocks[node, CHILD]
        if child:
            node = child
            continue
        if node == root:
            break
        budget -= 1
        parent = blocks[node, PARENT]
        blocks[parent, CHILD] = blocks[node, NEXT]
        free_node(memory, node)
        node = parent
    state[DROPPING] = node
    if node != root or blocks[root, CHILD]:
        return budget
    while budget > 0 and blocks[root, FIRST_SEQUENCE]:
        sequence = blocks[root, FIRST_SEQUENCE]
        if blocks[sequence, STATE_OF] == LIVE:
            close(memory, sequence)
        _forget_age(memory, sequence)
        if state[FADING] == sequence:
            state[FADING] = 0
        free_sequence(memory, sequence)
        budget -= 1
    if blocks[root, FIRST_SEQUENCE] == 0:
        state[DROPPING] = 0
        state[DROPS] = blocks[root, NEXT_DROP]
        state[TREES] -= 1
        blocks[root, BORN] = 0
        free_node(memory, root)
    return budget


@compiled(int64, int64)
def sweep(memory: Any, budget: int) -> int:
    """Go on with what was removed and dropped, `budget` nodes of it and at most one suffix more.
    Returns the budget that is left: 0 means call again."""
    state = memory.state
    while budget > 0 and state[REMOVALS]:
        budget = _remove_part(memory, state[REMOVALS], budget)
    while budget > 0 and state[DROPS]:
        budget = _drop_part(memory, state[DROPS], budget)
    return max(budget, 0)
