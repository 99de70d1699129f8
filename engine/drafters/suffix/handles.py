"""Opens trees and sequences of a forest and tells which handles are still good."""

from __future__ import annotations

from typing import Any

from numba import int64

from engine.drafters.suffix.memory import (
    DEPTH_LIMIT,
    FRONTIER,
    GENERATION,
    LIMIT,
    NEWEST,
    NODES,
    OLDEST,
    SEQUENCES,
    TREES,
    USED,
    compiled,
    give,
    take,
)
from engine.drafters.suffix.nodes import (
    BORN,
    CORPUS,
    DEAD,
    FIRST_SEQUENCE,
    GLOBAL,
    KIND,
    LIVE,
    LOCAL,
    NEWER,
    OLDER,
    OPENED,
    PROMPT,
    ROOT,
    STATE_OF,
    TEXT,
    TEXT_ORDER,
    TIPS,
    TREE_NEXT,
    TREE_PREVIOUS,
    TRUNCATED,
    WEIGHT,
)
from engine.drafters.suffix.tree import (
    tips_order,
)


@compiled(int64, int64)
def _born(memory: Any, block: int) -> int:
    state = memory.state
    state[GENERATION] = state[GENERATION] % (2**31 - 1) + 1
    memory.blocks[block, BORN] = -state[GENERATION]
    return state[GENERATION] << 32 | block


@compiled(int64, int64, int64)
def open_tree(memory: Any, kind: int, prompt: int) -> int:
    """Handle of a new root; 0 when memory is full."""
    blocks, state = memory.blocks, memory.state
    root = take(memory, 0)
    if root == 0:
        return 0
    blocks[root, :] = 0
    blocks[root, KIND] = kind
    blocks[root, PROMPT] = prompt
    state[TREES] += 1
    state[NODES] += 1
    return _born(memory, root)


@compiled(int64, int64, int64, int64, int64)
def open_sequence(memory: Any, root: int, now: int, expected: int, weight: int) -> int:
    """Handle of a new live sequence with room for the expected tokens; 0 when memory is full."""
    blocks, state = memory.blocks, memory.state
    order, tips = 0, tips_order(state[DEPTH_LIMIT])
    while 16 << order < expected:
        order += 1
    if state[USED] + 1 + (1 << order) + (1 << tips) > state[LIMIT]:
        return 0
    sequence = take(memory, 0)
    text = take(memory, order)
    tip_block = take(memory, tips)
    if text == 0 or tip_block == 0:  # enough in all, but no piece is large enough
        give(memory, sequence, 0)
        if text:
            give(memory, text, order)
        if tip_block:
            give(memory, tip_block, tips)
        return 0
    blocks[sequence, :] = 0
    blocks[sequence, STATE_OF] = LIVE
    blocks[sequence, ROOT] = root
    blocks[sequence, TEXT], blocks[sequence, TEXT_ORDER] = text, order
    blocks[sequence, TIPS] = tip_block
    blocks[sequence, OPENED], blocks[sequence, WEIGHT] = now, weight
    first = blocks[root, FIRST_SEQUENCE]
    blocks[sequence, TREE_NEXT] = first
    if first:
        blocks[first, TREE_PREVIOUS] = sequence
    blocks[root, FIRST_SEQUENCE] = sequence
    if blocks[root, KIND] == GLOBAL:
        newest = state[NEWEST]
        blocks[sequence, OLDER] = newest
        if newest:
            blocks[newest, NEWER] = sequence
        else:
            state[OLDEST] = sequence
        state[NEWEST] = sequence
    state[SEQUENCES] += 1
    return _born(memory, sequence)


@compiled(int64, int64)
def _block_of(memory: Any, handle: int) -> int:
    block = handle & 0xFFFFFFFF
    if handle <= 0 or block == 0 or block >= memory.state[FRONTIER]:
        return 0
    return block if memory.blocks[block, BORN] == -(handle >> 32) else 0


@compiled(int64, int64)
def tree_of(memory: Any, handle: int) -> int:
    """Block of a tree that was not dropped, 0 for any other handle."""
    block = _block_of(memory, handle)
    return block if block and LOCAL <= memory.blocks[block, KIND] <= CORPUS else 0


@compiled(int64, int64)
def sequence_of(memory: Any, handle: int) -> int:
    """Block of a sequence that is not being removed, 0 for any other handle."""
    block = _block_of(memory, handle)
    if block == 0 or not LIVE <= memory.blocks[block, STATE_OF] <= TRUNCATED:
        return 0
    return block if memory.blocks[memory.blocks[block, ROOT], KIND] != DEAD else 0
