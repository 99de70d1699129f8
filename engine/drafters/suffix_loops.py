"""The suffix drafter's work of one step, for all requests in one compiled call each (numba).

`slots` int64 [S, WORDS] describe the requests; their drafts are in Held, by slot; `shadows` int64
[S, DRAFT + longest draft] score them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import float32, float64, int32, int64, types, void
from numpy.typing import NDArray

from engine.drafters.shadow import DRAFT, begin, due, interrupt, lived, packed_features, take
from engine.drafters.suffix_handles import sequence_of, tree_of
from engine.drafters.suffix_match import draft
from engine.drafters.suffix_memory import compiled
from engine.drafters.suffix_nodes import LIVE, STATE_OF
from engine.drafters.suffix_tree import append

TEXT, RESPONSE, GLOBAL, FRESH, WORDS = range(5)
"""Words of a slot: handles of the request's own text, of its answer in the global tree and of that
tree (0: none), and whether the held draft is the one of the present text."""

SOURCES = ("", "prompt", "output", "global", "corpus")
ENDED, UNSCORED = 1, 2
"""Flags of a commit."""
HEAD = 6
"""int64 words before the tokens of a commit: slot, its place in the results, how many tokens,
drafted, accepted, flags."""


class Held(NamedTuple):
    """The last draft of every slot. tokens int32 and probabilities float32 [S, longest]; facts
    int32 [S, 4] and scores float64 [S] as `suffix_match.draft` writes them."""

    tokens: NDArray[np.int32]
    probabilities: NDArray[np.float32]
    facts: NDArray[np.int32]
    scores: NDArray[np.float64]


class Rules(NamedTuple):
    """How long drafts may be: see `suffix_match.draft`. corpus: handle of the tree of corpora."""

    corpus: int
    longest: int
    factor: float
    offset: float
    least: float


_ROWS, _LIST = int64[:, ::1], int64[::1]
_HELD = types.NamedTuple([int32[:, ::1], float32[:, ::1], int32[:, ::1], float64[::1]], Held)
RULES = types.NamedTuple([int64, int64, float64, float64, float64], Rules)


@compiled(void, _ROWS, int64, RULES, _LIST, _HELD)
def _draft(memory: Any, slots: Any, slot: int, rules: Any, ends: Any, held: Any) -> None:
    """Make the slot's draft for its present text, cut after one of `ends`."""
    facts: Any = held.facts[slot]
    facts[0] = 0
    slots[slot, FRESH] = 1
    text = sequence_of(memory, slots[slot, TEXT])
    if text == 0:
        return
    sources = np.zeros(2, np.int64)
    sources[0] = sequence_of(memory, slots[slot, RESPONSE])
    if sources[0] == 0 or memory.blocks[sources[0], STATE_OF] != LIVE:
        sources[0] = tree_of(memory, slots[slot, GLOBAL])
    sources[1] = tree_of(memory, rules.corpus)
    held.scores[slot] = draft(
        memory, text, sources, rules.longest, rules.factor, rules.offset, rules.least,
        held.tokens[slot], held.probabilities[slot], facts,
    )  # fmt: skip
    for k in range(facts[0]):
        for end in ends:
            if held.tokens[slot, k] == end:
                facts[0] = k + 1
                return


@compiled(void, _ROWS, _ROWS, _LIST, RULES, _LIST, _HELD, _LIST)
def offers(
    memory: Any, slots: Any, shadows: Any, asked: Any, rules: Any, ends: Any, held: Any, found: Any
) -> None:
    """Drafts of the asked slots; found: the packed features of each, 0 where there is none."""
    for i in range(len(asked)):
        slot = asked[i]
        if slots[slot, FRESH] == 0:
            _draft(memory, slots, slot, rules, ends, held)
        facts: Any = held.facts[slot]
        found[i] = 0
        if facts[0]:
            found[i] = packed_features(shadows[slot], facts[1], facts[2])


@compiled(void, _ROWS, int64, int64)
def _append(memory: Any, slots: Any, slot: int, token: int) -> None:
    """Take an output token in: into the request's own text, and into its answer."""
    slots[slot, FRESH] = 0
    text = sequence_of(memory, slots[slot, TEXT])
    if text:
        append(memory, text, token)
    response = sequence_of(memory, slots[slot, RESPONSE])
    if response:
        append(memory, response, token)


@compiled(void, _ROWS, int64, _LIST, int64)
def take_in(memory: Any, slots: Any, slot: int, tokens: Any, prompt: int) -> None:
    """Take tokens in unscored, of which the first `prompt` belong to the prompt: answers alone go
    to the global tree."""
    for i in range(len(tokens)):
        if i < prompt:
            slots[slot, FRESH] = 0
            text = sequence_of(memory, slots[slot, TEXT])
            if text:
                append(memory, text, tokens[i])
        else:
            _append(memory, slots, slot, tokens[i])


@compiled(void, _ROWS, _ROWS, int64, RULES, _LIST, _HELD)
def _shadow(
    memory: Any, slots: Any, shadows: Any, slot: int, rules: Any, ends: Any, held: Any
) -> None:
    """Begin a draft of the shadow if it is due and there is one."""
    shadow: Any = shadows[slot]
    facts: Any = held.facts[slot]
    if not due(shadow):
        return
    if slots[slot, FRESH] == 0:
        _draft(memory, slots, slot, rules, ends, held)
    if facts[0]:
        for k in range(facts[0]):
            shadow[DRAFT + k] = held.tokens[slot, k]
        begin(shadow, facts[0], facts[1], facts[2])


@compiled(int64, _ROWS, _ROWS, _LIST, RULES, _LIST, _HELD, _LIST, _LIST)
def commit(
    memory: Any, slots: Any, shadows: Any, words: Any, rules: Any, ends: Any, held: Any,
    scores: Any, owners: Any,
) -> int:  # fmt: skip
    """Take in commits: HEAD words and tokens each. Packed scores and the place of their commit go
    to scores and owners; returns how many."""
    at = settled = 0
    while at < len(words):
        slot, owner, count = words[at], words[at + 1], words[at + 2]
        drafted, accepted, flags = words[at + 3], words[at + 4], words[at + 5]
        shadow = shadows[slot]
        at += HEAD
        scored = drafted == 0 and flags & UNSCORED == 0
        if not scored:
            score = interrupt(shadow)
            if score:
                scores[settled], owners[settled] = score, owner
                settled += 1
        if drafted:
            lived(shadow, accepted)
        for i in range(at, at + count):
            if scored:
                _shadow(memory, slots, shadows, slot, rules, ends, held)
                score = take(shadow, words[i])
                if score:
                    scores[settled], owners[settled] = score, owner
                    settled += 1
            _append(memory, slots, slot, words[i])
        at += count
        if flags & ENDED:
            score = interrupt(shadow)
            if score:
                scores[settled], owners[settled] = score, owner
                settled += 1
    return settled
