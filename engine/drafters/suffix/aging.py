"""Lets texts of global trees grow old: their counts fade, and the oldest are evicted."""

from __future__ import annotations

from typing import Any

from numba import boolean, int64

from engine.drafters.suffix.memory import (
    CROWDED,
    FADE_NEXT,
    FADED_TO,
    FADING,
    OLDEST,
    USED,
    compiled,
)
from engine.drafters.suffix.nodes import (
    COUNT,
    DEAD,
    KIND,
    LIVE,
    NEWER,
    OPENED,
    ROOT,
    STATE_OF,
    WEIGHT,
)
from engine.drafters.suffix.removal import (
    fade_part,
    remove,
    sweep,
)

NEVER = -(2**31)
"""As older_than: nothing is old."""
CALM_COUNT = 5 << 28
"""Counts that eviction brings a crowded tree down to."""


@compiled(int64, int64, int64, int64, int64)
def fade(memory: Any, now: int, half_life: int, fresh: int, budget: int) -> int:
    """Halve the weight of sequences of global trees that are not live once for every half-life
    since they were opened, from `fresh`, never below 1. Returns the budget that is left, 1 at
    least at the end of a round: 0 means call again."""
    blocks, state = memory.blocks, memory.state
    if state[FADING] == 0 and state[FADE_NEXT] == 0:
        state[FADE_NEXT] = state[OLDEST]
    while budget > 0:
        if state[FADING]:
            budget = fade_part(memory, budget)
            continue
        sequence = state[FADE_NEXT]
        if sequence == 0 or now - blocks[sequence, OPENED] < half_life:
            state[FADE_NEXT] = 0
            break
        state[FADE_NEXT] = blocks[sequence, NEWER]
        halvings = min((now - blocks[sequence, OPENED]) // half_life, 31)
        weight = max(fresh >> halvings, 1)
        dead = blocks[blocks[sequence, ROOT], KIND] == DEAD
        if blocks[sequence, STATE_OF] != LIVE and not dead and weight < blocks[sequence, WEIGHT]:
            state[FADING], state[FADED_TO] = sequence, weight
        budget -= 1
    finished = state[FADING] == 0 and state[FADE_NEXT] == 0
    return max(budget, 1 if finished else 0)


@compiled(boolean)
def _crowded(memory: Any) -> bool:
    """Whether a tree has still to lose counts."""
    tree = memory.state[CROWDED]
    if tree and memory.blocks[tree, COUNT] <= CALM_COUNT:
        memory.state[CROWDED] = 0
    return memory.state[CROWDED] != 0


@compiled(int64, int64, int64, int64)
def evict(memory: Any, older_than: int, to_units: int, budget: int) -> int:
    """Remove the oldest sequences of global trees that are no longer live, those opened before
    `older_than` and then further ones while more than `to_units` are in use or a tree is crowded.
    Returns the budget that is left: 0 means call again."""
    blocks, state = memory.blocks, memory.state
    budget = sweep(memory, budget)
    sequence = state[OLDEST]
    while budget > 0 and sequence:
        old = blocks[sequence, OPENED] < older_than
        if not old and state[USED] <= to_units and not _crowded(memory):
            break
        newer = blocks[sequence, NEWER]
        if blocks[sequence, STATE_OF] != LIVE:
            remove(memory, sequence)
            budget = sweep(memory, budget)
        sequence = newer
    return max(budget, 0)
