"""Drafts from suffix trees: where the end of a text occurs, and what followed there most often."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import float32, float64, int32, int64

from engine.drafters.suffix.children import (
    best_child,
    child_by,
)
from engine.drafters.suffix.memory import DEPTH_LIMIT, SCRATCH, VOCABULARY, compiled
from engine.drafters.suffix.nodes import (
    CORPUS,
    COUNT,
    KIND,
    LENGTH,
    LIVE,
    PROMPT,
    ROOT,
    STATE_OF,
    TEXT,
    TIP_COUNT,
    TIPS,
    end_of,
    label_start,
)

TIE = 1e-9
"""Scores nearer than this are equal: 5/6 + 1/2 is 2/3 + 2/3, also in floating point."""

NONE, FROM_PROMPT, FROM_OUTPUT, FROM_GLOBAL, FROM_CORPUS = 0, 1, 2, 3, 4


@compiled(int64, int64, int32[::1], int64, int64)
def find(memory: Any, root: int, tokens: Any, begin: int, length: int) -> int:
    """The node on whose edge the path of tokens[begin:begin + length] ends, or 0."""
    words = memory.words
    node, at = root, 0
    while at < length:
        node = child_by(memory, node, tokens[begin + at])
        if node == 0:
            return 0
        stop, label = min(end_of(memory, node), length), label_start(memory, node)
        at += 1
        while at < stop:
            if words[label + at] != tokens[begin + at]:
                return 0
            at += 1
    return node


@compiled(int32[::1], int64[::1])
def searchable(memory: Any, tokens: Any) -> Any:
    """Tokens for `find`; -1, which no text has, for ids outside the vocabulary."""
    found = np.empty(len(tokens), np.int32)
    for i in range(len(tokens)):
        found[i] = tokens[i] if 0 <= tokens[i] < memory.state[VOCABULARY] else -1
    return found


@compiled(int64, int64, int64)
def find_matches(memory: Any, source: int, text: int) -> int:
    """Write to the scratch words, for m = 1, 2, … the node on whose edge the last m tokens of
    `text` (a live sequence) end in the source: a root, or a live sequence that ends with the
    same tokens. Returns the longest m."""
    blocks, words, state = memory.blocks, memory.words, memory.state
    length = blocks[text, LENGTH]
    most = min(state[DEPTH_LIMIT] - 1, length)
    found, root = 0, source
    if blocks[source, STATE_OF] >= LIVE:
        if blocks[source, STATE_OF] == LIVE:
            found = blocks[source, TIP_COUNT]
            tips = blocks[source, TIPS] << 4
            for m in range(found):
                state[SCRATCH + m] = words[tips + m]
            if found < blocks[source, LENGTH]:  # longer ones begin inside its text: only itself
                return found
        root = blocks[source, ROOT]
    base = blocks[text, TEXT] << 4
    while found < most:
        node = find(memory, root, words, base + length - found - 1, found + 1)
        if node == 0:
            break
        state[SCRATCH + found] = node
        found += 1
    return found


@compiled(float64, int64, int64, int64, float64)
def score_path(memory: Any, node: int, at: int, limit: int, least: float) -> float:
    """Sum of the path probabilities of the draft of at most `limit` tokens after the first `at`
    tokens of the node's path."""
    blocks = memory.blocks
    probability, total = 1.0, 0.0
    while limit > 0:
        stop = end_of(memory, node)
        if at == stop:
            child = best_child(memory, node)
            if child == 0:
                break
            probability *= blocks[child, COUNT] / blocks[node, COUNT]
            if probability < least:
                break
            node = child
            stop = end_of(memory, node)
        steps = min(stop - at, limit)
        total += steps * probability
        limit -= steps
        at += steps
    return total


@compiled(int64, int64, int64, int64, float64, int32[::1], float32[::1])
def write_path(
    memory: Any, node: int, at: int, limit: int, least: float, tokens: Any, probabilities: Any
) -> int:
    """Write the draft that `score_path` measures. Returns its length."""
    blocks, words = memory.blocks, memory.words
    probability, count = 1.0, 0
    while count < limit:
        stop = end_of(memory, node)
        if at == stop:
            child = best_child(memory, node)
            if child == 0:
                break
            probability *= blocks[child, COUNT] / blocks[node, COUNT]
            if probability < least:
                break
            node = child
            stop = end_of(memory, node)
        label = label_start(memory, node)
        while at < stop and count < limit:
            tokens[count] = words[label + at]
            probabilities[count] = probability
            count += 1
            at += 1
    return count


@compiled(int64, int64, int64, int64)
def _where_from(memory: Any, text: int, node: int, at: int) -> int:
    """Whether the own text's occurrence that gave the first drafted token is in its prompt."""
    blocks = memory.blocks
    if at == end_of(memory, node):
        node = best_child(memory, node)
    position = label_start(memory, node) + at - (blocks[text, TEXT] << 4)
    return FROM_PROMPT if position < blocks[blocks[text, ROOT], PROMPT] else FROM_OUTPUT


@compiled(
    float64,
    int64,
    int64[::1],
    int64,
    float64,
    float64,
    float64,
    int32[::1],
    float32[::1],
    int32[::1],
)
def draft(
    memory: Any, text: int, sources: Any, longest: int, factor: float, offset: float,
    least: float, tokens: Any, probabilities: Any, facts: Any,
) -> float:  # fmt: skip
    """The best draft after a live sequence from its own tree and then from the sources (blocks
    of roots or of live sequences with the same end; 0 for none), in this order: among equal
    scores the earlier source and in it the longer match.

    A match of m tokens drafts at most min(longest, floor(m * factor + offset + 1e-6)). Writes
    tokens and probabilities (of the path up to each) and facts = [length, match length, where
    from, index of the source, -1 for its own tree]. Returns the score, 0 for no draft."""
    blocks, state = memory.blocks, memory.state
    best, best_node, best_match, best_limit, best_source = 0.0, 0, 0, 0, -1
    own = blocks[text, STATE_OF] == LIVE
    for index in range(-1, len(sources) if own else -1):
        source = text if index < 0 else sources[index]
        if source == 0 or best >= longest:
            continue
        for m in range(find_matches(memory, source, text), 0, -1):
            limit = min(longest, int(np.floor(m * factor + offset + 1e-6)))
            if limit <= best:
                break  # a path of so few tokens cannot score more, nor can shorter matches
            node = state[SCRATCH + m - 1]
            score = score_path(memory, node, m, limit, least)
            if score > best + TIE:
                best, best_node, best_match, best_limit = score, node, m, limit
                best_source = index
    facts[:] = 0
    facts[3] = best_source
    if best_node == 0:
        return 0.0
    facts[0] = write_path(memory, best_node, best_match, best_limit, least, tokens, probabilities)
    facts[1] = best_match
    facts[2] = _where_from(memory, text, best_node, best_match)
    if best_source >= 0:
        facts[2] = FROM_GLOBAL
        source = sources[best_source]
        root = blocks[source, ROOT] if blocks[source, STATE_OF] >= LIVE else source
        if blocks[root, KIND] == CORPUS:
            facts[2] = FROM_CORPUS
    return best
