"""The suffix drafter's work of one step, for all requests in one compiled call each (numba).

`slots` int64 [S, WORDS] describe the requests; their drafts are in Held, by slot; `shadows` int64
[S, DRAFT + longest draft] score them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import float32, float64, int32, int64, njit, types, void
from numpy.typing import NDArray

from engine.drafters.shadow import DRAFT, begin, due, interrupt, lived, packed_features, take
from engine.drafters.suffix.handles import sequence_of, tree_of
from engine.drafters.suffix.match import draft
from engine.drafters.suffix.memory import VISITS, compiled
from engine.drafters.suffix.nodes import LIVE, STATE_OF
from engine.drafters.suffix.tree import append
from engine.drafters.texts import COUNT, ENDED, HEAD, UNSCORED

TEXT, RESPONSE, GLOBAL, FRESH, WORDS = range(5)
"""Words of a slot: handles of the request's own text, of its answer in the global tree and of that
tree (0: none), and whether the held draft is the one of the present text."""

SOURCES = ("", "prompt", "output", "global", "corpus")


class Held(NamedTuple):
    """The last draft of every slot. tokens int32 and probabilities float32 [S, longest]; facts
    int32 [S, 4] and scores float64 [S] as `match.draft` writes them."""

    tokens: NDArray[np.int32]
    probabilities: NDArray[np.float32]
    facts: NDArray[np.int32]
    scores: NDArray[np.float64]


class Rules(NamedTuple):
    """How long drafts may be: see `match.draft`. corpus: handle of the tree of corpora."""

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


@compiled(int64, _ROWS, int64, _LIST, int64, int64)
def take_in(memory: Any, slots: Any, slot: int, tokens: Any, prompt: int, budget: int) -> int:
    """Take tokens in unscored, of which the first `prompt` belong to the prompt: answers alone go
    to the global tree. Returns how many, before their cost (see memory.VISITS) goes beyond
    the budget by more than one token's."""
    end = memory.state[VISITS] + budget
    for i in range(len(tokens)):
        if memory.state[VISITS] >= end:
            return i
        if i < prompt:
            slots[slot, FRESH] = 0
            text = sequence_of(memory, slots[slot, TEXT])
            if text:
                append(memory, text, tokens[i])
        else:
            _append(memory, slots, slot, tokens[i])
    return len(tokens)


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


@njit
def _scored(head: Any) -> bool:
    """Whether the tokens of a commit are scored in the shadow."""
    return head[3] == 0 and head[5] & UNSCORED == 0


@njit
def _note(score: int, owner: int, scores: Any, owners: Any, settled: int) -> int:
    """Put a score that is not 0 where the next one goes. Returns how many there are."""
    if score == 0:
        return settled
    scores[settled], owners[settled] = score, owner
    return settled + 1


@compiled(int64, _ROWS, _ROWS, _LIST, RULES, _LIST, _HELD, _LIST, _LIST, int64)
def commit(
    memory: Any, slots: Any, shadows: Any, words: Any, rules: Any, ends: Any, held: Any,
    scores: Any, owners: Any, budget: int,
) -> int:  # fmt: skip
    """Take in commits: HEAD words and tokens each, of one request at most once. Packed scores and
    the place of their commit go to scores and owners; returns how many.

    The requests go on side by side, token by token: all drafts of a round are made before any of
    its tokens is in a tree. So none is scored on what another committed in the same step at the
    same place or later, and each still sees its own tokens before.

    Once they have cost the budget (see memory.VISITS) no more tokens are taken in, and in
    the HEAD is how many were."""
    end = memory.state[VISITS] + budget
    starts = np.empty(len(words), np.int64)
    number = at = settled = rounds = 0
    while at < len(words):
        starts[number] = at
        number += 1
        rounds = max(rounds, words[at + COUNT])
        at += HEAD + words[at + COUNT]
    for i in range(number):
        head = words[starts[i] :]
        if not _scored(head):
            settled = _note(interrupt(shadows[head[0]]), head[1], scores, owners, settled)
        if head[3]:
            lived(shadows[head[0]], head[4])
    for k in range(rounds):
        for i in range(number):
            head = words[starts[i] :]
            if k < head[COUNT] and _scored(head):
                _shadow(memory, slots, shadows, head[0], rules, ends, held)
                score = take(shadows[head[0]], head[HEAD + k])
                settled = _note(score, head[1], scores, owners, settled)
        for i in range(number):
            head = words[starts[i] :]
            if k >= head[COUNT]:
                continue
            if memory.state[VISITS] < end:
                _append(memory, slots, head[0], head[HEAD + k])
            else:
                settled = _note(interrupt(shadows[head[0]]), head[1], scores, owners, settled)
                head[COUNT] = k
    for i in range(number):
        head = words[starts[i] :]
        if head[5] & ENDED:
            settled = _note(interrupt(shadows[head[0]]), head[1], scores, owners, settled)
    return settled
