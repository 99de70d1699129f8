"""Grows suffix trees: every suffix of a text, counted, one token at a time.

The suffixes of a growing text that also occur elsewhere are its tips, the longest first to leave:
a suffix that occurs nowhere else is a leaf, and a leaf needs no work to grow. So a token costs
as many steps as the longest repeated suffix has tokens, and the tips of a text are at the same
time the matches of its end in the tree."""

from __future__ import annotations

from typing import Any

from numba import boolean, int64, njit, void

from engine.drafters.suffix_children import (
    add_child,
    child_by,
    child_rose,
    join_only_child,
    replace_child,
)
from engine.drafters.suffix_memory import (
    DEPTH_LIMIT,
    LIMIT,
    TOKENS,
    TRUNCATIONS,
    USED,
    VOCABULARY,
    compiled,
    give,
    take,
)
from engine.drafters.suffix_nodes import (
    BEST,
    CHILD,
    CLOSED,
    COUNT,
    DEPTH,
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


@njit(int64(int64), cache=True, nogil=True)
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


@compiled(void, int64)
def truncate(memory: Any, sequence: int) -> None:
    """Take no more tokens of a live sequence; what it has stays until it is removed."""
    close(memory, sequence)
    memory.blocks[sequence, STATE_OF] = TRUNCATED
    memory.state[TRUNCATIONS] += 1


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
    more: it is not live, the id is not in the vocabulary, or memory is full; what is in the tree
    stays valid."""
    blocks, words, state = memory.blocks, memory.words, memory.state
    if blocks[sequence, STATE_OF] != LIVE:
        return False
    root, length, weight = (
        blocks[sequence, ROOT],
        blocks[sequence, LENGTH],
        blocks[sequence, WEIGHT],
    )
    depth = state[DEPTH_LIMIT]
    if (
        token < 0
        or token >= state[VOCABULARY]
        or blocks[root, COUNT] > _MOST - weight
        or state[USED] + depth + 1 > state[LIMIT]
        or not _make_room(memory, sequence)
    ):
        truncate(memory, sequence)
        return False
    words[(blocks[sequence, TEXT] << 4) + length] = token
    blocks[sequence, LENGTH] = length + 1
    state[TOKENS] += 1
    tips = blocks[sequence, TIPS] << 4
    kept = 0
    for m in range(blocks[sequence, TIP_COUNT], -1, -1):
        node = root if m == 0 else words[tips + m - 1]
        tip = _advance(memory, node, m, sequence, length - m, token, weight)
        if tip and m + 1 < depth:
            words[tips + m] = tip
            kept = max(kept, m + 1)
    blocks[root, COUNT] += weight
    blocks[sequence, TIP_COUNT] = kept
    return True


@compiled(int64, int64, int64[::1])
def count_of(memory: Any, root: int, tokens: Any) -> int:
    """Occurrences of a string of at most the depth limit below a root."""
    words = memory.words
    node, at = root, 0
    while at < len(tokens):
        node = child_by(memory, node, tokens[at])
        if node == 0:
            return 0
        stop, label = end_of(memory, node), label_start(memory, node)
        at += 1
        while at < min(stop, len(tokens)):
            if words[label + at] != tokens[at]:
                return 0
            at += 1
        if at < stop and at >= len(tokens):
            break
    return memory.blocks[node, COUNT]
