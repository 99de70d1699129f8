"""Grows suffix trees: every suffix of a text, counted, one token at a time.

The suffixes of a growing text that also occur elsewhere are its tips, the longest first to leave:
a suffix that occurs nowhere else is a leaf, and a leaf needs no work to grow. So a token costs
as many steps as the longest repeated suffix has tokens, and the tips of a text are at the same
time the matches of its end in the tree."""

from __future__ import annotations

from typing import Any

from numba import boolean, int64, void

from engine.drafters.suffix.children import (
    add_child,
    child_by,
    child_rose,
    join_only_child,
    replace_child,
)
from engine.drafters.suffix.memory import (
    COUNTED_OUT,
    CROWDED,
    DEPTH_LIMIT,
    FULL,
    LIMIT,
    TOKENS,
    UNKNOWN_ID,
    USED,
    VISITS,
    VOCABULARY,
    cached,
    compiled,
    give,
    take,
)
from engine.drafters.suffix.nodes import (
    BEST,
    CHILD,
    CLOSED,
    COUNT,
    DEPTH,
    GLOBAL,
    KIND,
    LENGTH,
    LIVE,
    NEXT,
    NODE,
    OPEN,
    PARENT,
    PREVIOUS,
    ROOT,
    SEQUENCE,
    STATE_OF,
    TEXT,
    TEXT_ORDER,
    TIP_COUNT,
    TIPS,
    TOKEN,
    TRUNCATED,
    WEIGHT,
    WIDTH,
    end_of,
    label_start,
    new_node,
    set_label,
)

_MOST = 2**31 - 1
CROWDED_COUNT = 3 << 29
"""A global tree that counts more, by weight, is crowded: it has to lose its oldest texts."""


@cached(int64(int64))
def tips_order(depth: int) -> int:
    order = 0
    while (16 << order) < depth:
        order += 1
    return order


@compiled(void, int64)
def close(memory: Any, sequence: int) -> None:
    """End a live sequence."""
    blocks = memory.blocks
    give(memory, blocks[sequence, TIPS], tips_order(memory.state[DEPTH_LIMIT]))
    blocks[sequence, TIPS] = blocks[sequence, TIP_COUNT] = 0
    blocks[sequence, STATE_OF] = CLOSED


@compiled(boolean, int64, int64)
def _truncate(memory: Any, sequence: int, reason: int) -> bool:
    """Take no more tokens of a live sequence; what it has stays until it is removed. False."""
    close(memory, sequence)
    memory.blocks[sequence, STATE_OF] = TRUNCATED
    memory.state[reason] += 1
    return False


@compiled(void, int64, int64)
def _close_leaf(memory: Any, leaf: int, depth: int) -> None:
    """Another suffix reached the end of a leaf. If its text still grows, its suffix is a tip
    from now on; shorter ones already are, since they occur wherever this one does."""
    blocks = memory.blocks
    blocks[leaf, DEPTH] = depth
    owner = blocks[leaf, SEQUENCE]
    if blocks[owner, STATE_OF] == LIVE and depth < memory.state[DEPTH_LIMIT]:
        memory.words[(blocks[owner, TIPS] << 4) + depth - 1] = leaf
        blocks[owner, TIP_COUNT] = max(blocks[owner, TIP_COUNT], depth)


@compiled(int64, int64, int64, int64, int64, int64, int64)
def _advance(
    memory: Any, node: int, depth: int, sequence: int, start: int, token: int, weight: int
) -> int:
    """Move the suffix that ends at the node on by the token. The node where it now ends; 0 when
    it became a leaf."""
    blocks, words = memory.blocks, memory.words
    child = child_by(memory, node, token)
    if child == 0:
        leaf = new_node(memory, sequence, start, OPEN, weight)
        blocks[leaf, TOKEN] = token
        add_child(memory, node, leaf)
        child_rose(memory, node, leaf)
        join_only_child(memory, node)
        return 0
    depth += 1
    if end_of(memory, child) == depth:
        if blocks[child, DEPTH] == OPEN:
            _close_leaf(memory, child, depth)
        blocks[child, COUNT] += weight
        set_label(memory, child, sequence, start)
        child_rose(memory, node, child)
        join_only_child(memory, node)
        return child
    if (
        blocks[node, KIND] == NODE
        and blocks[node, WIDTH] == 1
        and blocks[node, COUNT] == blocks[child, COUNT] + weight
    ):
        # Only this suffix ends here: the node moves along the edge with it.
        blocks[node, DEPTH] = depth
        set_label(memory, node, sequence, start)
        blocks[child, TOKEN] = words[label_start(memory, child) + depth]
        return node
    middle = new_node(memory, sequence, start, depth, blocks[child, COUNT] + weight)
    replace_child(memory, child, middle)
    blocks[middle, CHILD] = blocks[middle, BEST] = child
    blocks[middle, WIDTH] = 1
    blocks[child, PARENT] = middle
    blocks[child, NEXT] = blocks[child, PREVIOUS] = 0
    blocks[child, TOKEN] = words[label_start(memory, child) + depth]
    child_rose(memory, node, middle)
    return middle


@compiled(boolean, int64)
def _make_room(memory: Any, sequence: int) -> bool:
    """Room for one more token of text, doubled when it is full."""
    blocks, words, state = memory.blocks, memory.words, memory.state
    length, order = blocks[sequence, LENGTH], blocks[sequence, TEXT_ORDER]
    if length < 16 << order:
        return True
    if state[USED] + (2 << order) + state[DEPTH_LIMIT] + 1 > state[LIMIT]:
        return False
    wider = take(memory, order + 1)
    if wider == 0:
        return False
    old = blocks[sequence, TEXT]
    words[wider << 4 : (wider << 4) + length] = words[old << 4 : (old << 4) + length]
    blocks[sequence, TEXT], blocks[sequence, TEXT_ORDER] = wider, order + 1
    give(memory, old, order)
    return True


@compiled(boolean, int64, int64)
def append(memory: Any, sequence: int, token: int) -> bool:
    """Append a token to a live sequence and count its suffixes. False when the sequence takes no
    more: it is not live, the id is not in the vocabulary, the tree's counts are at their limit,
    or memory is full; what is in the tree stays valid."""
    blocks, words, state = memory.blocks, memory.words, memory.state
    if blocks[sequence, STATE_OF] != LIVE:
        return False
    root, length, weight = (
        blocks[sequence, ROOT],
        blocks[sequence, LENGTH],
        blocks[sequence, WEIGHT],
    )
    depth = state[DEPTH_LIMIT]
    if token < 0 or token >= state[VOCABULARY]:
        return _truncate(memory, sequence, UNKNOWN_ID)
    if blocks[root, COUNT] > _MOST - weight:
        return _truncate(memory, sequence, COUNTED_OUT)
    if state[USED] + depth + 1 > state[LIMIT] or not _make_room(memory, sequence):
        return _truncate(memory, sequence, FULL)
    words[(blocks[sequence, TEXT] << 4) + length] = token
    blocks[sequence, LENGTH] = length + 1
    state[TOKENS] += 1
    state[VISITS] += 1 + blocks[sequence, TIP_COUNT]
    tips = blocks[sequence, TIPS] << 4
    kept = 0
    for m in range(blocks[sequence, TIP_COUNT], -1, -1):
        node = root if m == 0 else words[tips + m - 1]
        tip = _advance(memory, node, m, sequence, length - m, token, weight)
        if tip and m + 1 < depth:
            words[tips + m] = tip
            kept = max(kept, m + 1)
    blocks[root, COUNT] += weight
    if blocks[root, COUNT] > CROWDED_COUNT and blocks[root, KIND] == GLOBAL:
        state[CROWDED] = root
    blocks[sequence, TIP_COUNT] = kept
    return True
