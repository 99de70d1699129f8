"""Continues a text that is not in any tree: a request's end and another drafter's draft."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import float32, int32, int64, void

from engine.drafters.suffix.handles import sequence_of, tree_of
from engine.drafters.suffix.loops import GLOBAL, RULES, TEXT
from engine.drafters.suffix.match import TIE, find, score_path, searchable, write_path
from engine.drafters.suffix.memory import DEPTH_LIMIT, compiled
from engine.drafters.suffix.nodes import ROOT

HEAD = 3
"""int64 words before the tokens of an entry: slot, how many tokens, most tokens to add."""


@compiled(
    void, int64[:, ::1], int64[::1], RULES, int64[::1], int32[:, ::1], float32[::1], int64[::1]
)
def tails(
    memory: Any, slots: Any, words: Any, rules: Any, ends: Any, out: Any, paths: Any, counts: Any
) -> None:  # fmt: skip
    """For each entry (HEAD words and its last tokens) what follows them, as `match.draft`
    chooses it, cut after one of `ends`. out: int32 [n, most], counts: how many of each."""
    roots = np.zeros(3, np.int64)
    at = number = 0
    while at < len(words):
        slot, count, longest = words[at], words[at + 1], words[at + 2]
        text = searchable(memory, words[at + HEAD : at + HEAD + count])
        at += HEAD + count
        own = sequence_of(memory, slots[slot, TEXT])
        roots[0] = memory.blocks[own, ROOT] if own else 0
        roots[1] = tree_of(memory, slots[slot, GLOBAL])
        roots[2] = tree_of(memory, rules.corpus)
        best, best_node, best_match, best_limit = 0.0, 0, 0, 0
        for root in roots:
            if root == 0:
                continue
            top, found, match, limit = 0.0, 0, 0, 0
            for m in range(1, min(count, memory.state[DEPTH_LIMIT] - 1) + 1):
                node = find(memory, root, text, count - m, m)
                if node == 0:
                    break
                most = min(longest, int(np.floor(m * rules.factor + rules.offset + 1e-6)))
                score = score_path(memory, node, m, most, rules.least)
                if score > 0.0 and score >= top - TIE:
                    top, found, match, limit = max(score, top), node, m, most
            if top > best + TIE:
                best, best_node, best_match, best_limit = top, found, match, limit
        counts[number] = 0
        if best_node:
            counts[number] = write_path(
                memory, best_node, best_match, best_limit, rules.least, out[number], paths
            )
        for k in range(counts[number]):
            for end in ends:
                if out[number, k] == end:
                    counts[number] = min(counts[number], k + 1)
        number += 1
