"""Children of nodes: a list, a hash table when they are many, and which counts most."""

from __future__ import annotations

from typing import Any

from numba import int64, void

from engine.drafters.suffix.memory import (
    DEPTH_LIMIT,
    LIMIT,
    USED,
    cached,
    compiled,
    give,
    take,
)
from engine.drafters.suffix.nodes import (
    BEST,
    CHILD,
    COUNT,
    KIND,
    NEXT,
    NODE,
    PARENT,
    PREVIOUS,
    SECOND,
    STALE,
    TABLE,
    TABLE_ORDER,
    TOKEN,
    WIDTH,
    free_node,
)

_LIST = 4
"""Children up to here are found along their list, more of them by a table."""
_SHRINK = 2


@cached(int64(int64, int64))
def _home(token: int, order: int) -> int:
    return ((token * 2654435769) & 0xFFFFFFFF) >> (29 - order)


@compiled(int64, int64, int64)
def _place(memory: Any, node: int, token: int) -> int:
    """Word of the token's pair in the node's table, or of the free pair where it would be."""
    words, order = memory.words, memory.blocks[node, TABLE_ORDER]
    base, mask = memory.blocks[node, TABLE] << 4, (8 << order) - 1
    at = _home(token, order)
    while words[base + 2 * at + 1] and words[base + 2 * at] != token:
        at = (at + 1) & mask
    return base + 2 * at


@compiled(int64, int64, int64)
def child_by(memory: Any, node: int, token: int) -> int:
    """The child whose edge begins with the token, or 0."""
    blocks = memory.blocks
    if blocks[node, TABLE] == 0:
        child = blocks[node, CHILD]
        while child and blocks[child, TOKEN] != token:
            child = blocks[child, NEXT]
        return child
    return memory.words[_place(memory, node, token) + 1]


@compiled(void, int64, int64)
def _enter(memory: Any, node: int, child: int) -> None:
    place = _place(memory, node, memory.blocks[child, TOKEN])
    memory.words[place] = memory.blocks[child, TOKEN]
    memory.words[place + 1] = child


@compiled(void, int64)
def _drop_table(memory: Any, node: int) -> None:
    blocks = memory.blocks
    give(memory, blocks[node, TABLE], blocks[node, TABLE_ORDER])
    blocks[node, TABLE] = blocks[node, TABLE_ORDER] = 0


@compiled(void, int64, int64)
def add_child(memory: Any, node: int, child: int) -> None:
    """Make `child`, whose TOKEN is set, a child of the node. BEST is the caller's."""
    blocks, words, state = memory.blocks, memory.words, memory.state
    first = blocks[node, CHILD]
    blocks[child, PARENT] = node
    blocks[child, NEXT] = first
    blocks[child, PREVIOUS] = 0
    if first:
        blocks[first, PREVIOUS] = child
    blocks[node, CHILD] = child
    blocks[node, WIDTH] += 1
    width = blocks[node, WIDTH]
    table = blocks[node, TABLE]
    size = 8 << blocks[node, TABLE_ORDER]
    if width <= _LIST and table == 0:
        return
    if table and width * 4 <= size * 3:
        _enter(memory, node, child)
        return
    order = 0
    while width * 4 > (8 << order) * 3:
        order += 1
    wider = 0
    # Nodes of the token being added come first: a table is a help, a node is not.
    if state[USED] + (1 << order) + state[DEPTH_LIMIT] < state[LIMIT]:
        wider = take(memory, order)
    if wider == 0:
        if table and width < size:
            _enter(memory, node, child)
        elif table:
            _drop_table(memory, node)
        return
    words[wider << 4 : (wider << 4) + (16 << order)] = 0
    blocks[node, TABLE] = wider
    old_order = blocks[node, TABLE_ORDER]
    blocks[node, TABLE_ORDER] = order
    if table:
        for place in range(table << 4, (table << 4) + 2 * size, 2):
            if words[place + 1]:
                at = _place(memory, node, words[place])
                words[at], words[at + 1] = words[place], words[place + 1]
        give(memory, table, old_order)
        _enter(memory, node, child)
    else:
        while child:
            _enter(memory, node, child)
            child = blocks[child, NEXT]


@compiled(void, int64, int64)
def remove_child(memory: Any, node: int, child: int) -> None:
    """Take a child out of its node's list, table and BEST."""
    blocks, words = memory.blocks, memory.words
    before, after = blocks[child, PREVIOUS], blocks[child, NEXT]
    if before:
        blocks[before, NEXT] = after
    else:
        blocks[node, CHILD] = after
    if after:
        blocks[after, PREVIOUS] = before
    blocks[node, WIDTH] -= 1
    if blocks[node, WIDTH] == 0:
        blocks[node, BEST] = blocks[node, SECOND] = 0
    elif blocks[node, BEST] == child:
        blocks[node, BEST] = STALE
    if blocks[node, TABLE] == 0:
        return
    if blocks[node, WIDTH] <= _SHRINK:
        _drop_table(memory, node)
        return
    # Close the gap: move up what was pushed past it.
    base, mask = blocks[node, TABLE] << 4, (8 << blocks[node, TABLE_ORDER]) - 1
    gap = (_place(memory, node, blocks[child, TOKEN]) - base) >> 1
    at = gap
    while True:
        words[base + 2 * gap] = words[base + 2 * gap + 1] = 0
        while True:
            at = (at + 1) & mask
            if words[base + 2 * at + 1] == 0:
                return
            home = _home(words[base + 2 * at], blocks[node, TABLE_ORDER])
            if (at - home) & mask >= (at - gap) & mask:
                break
        words[base + 2 * gap] = words[base + 2 * at]
        words[base + 2 * gap + 1] = words[base + 2 * at + 1]
        gap = at


@compiled(void, int64, int64)
def replace_child(memory: Any, old: int, new: int) -> None:
    """Put `new` where `old` is among the children of its node, BEST included."""
    blocks = memory.blocks
    node, before, after = blocks[old, PARENT], blocks[old, PREVIOUS], blocks[old, NEXT]
    blocks[new, PARENT] = node
    blocks[new, TOKEN] = blocks[old, TOKEN]
    blocks[new, PREVIOUS], blocks[new, NEXT] = before, after
    if before:
        blocks[before, NEXT] = new
    else:
        blocks[node, CHILD] = new
    if after:
        blocks[after, PREVIOUS] = new
    if blocks[node, BEST] == old:
        blocks[node, BEST] = new
    if blocks[node, TABLE]:
        memory.words[_place(memory, node, blocks[old, TOKEN]) + 1] = new


@compiled(void, int64, int64)
def child_rose(memory: Any, node: int, child: int) -> None:
    """Keep BEST after the child's count went up: among equals the last to get there."""
    blocks = memory.blocks
    best, count = blocks[node, BEST], blocks[child, COUNT]
    if best == 0:
        blocks[node, BEST] = child
    elif best == STALE:
        return
    elif child != best and count >= blocks[best, COUNT]:
        blocks[node, SECOND] = max(blocks[node, SECOND], blocks[best, COUNT])
        blocks[node, BEST] = child
    elif child != best:
        blocks[node, SECOND] = max(blocks[node, SECOND], count)


@compiled(void, int64, int64)
def child_fell(memory: Any, node: int, child: int) -> None:
    """Keep BEST after the child's count went down, not to zero."""
    blocks = memory.blocks
    if blocks[node, BEST] == child and blocks[child, COUNT] < blocks[node, SECOND]:
        blocks[node, BEST] = STALE


@compiled(int64, int64)
def best_child(memory: Any, node: int) -> int:
    """The child with the highest count, 0 for none. After counts fell, equals are taken in the
    order of the list, the youngest first."""
    blocks = memory.blocks
    best = blocks[node, BEST]
    if best != STALE:
        return best
    second = 0
    best = child = blocks[node, CHILD]
    while True:
        child = blocks[child, NEXT]
        if child == 0:
            break
        if blocks[child, COUNT] > blocks[best, COUNT]:
            second = blocks[best, COUNT]
            best = child
        else:
            second = max(second, blocks[child, COUNT])
    blocks[node, BEST], blocks[node, SECOND] = best, second
    return best


@compiled(void, int64)
def join_only_child(memory: Any, node: int) -> None:
    """Take out a node where nothing branches or ends: its only child takes its place."""
    blocks = memory.blocks
    if blocks[node, KIND] != NODE or blocks[node, WIDTH] != 1:
        return
    child = blocks[node, CHILD]
    if blocks[child, COUNT] == blocks[node, COUNT]:
        replace_child(memory, node, child)
        free_node(memory, node)
