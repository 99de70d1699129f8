"""Texts that are indexed or removed a part at a time, by what that costs (numba).

A budget counts suffixes that are moved (see memory.VISITS), each of them 0.2 to 0.5 µs."""

from __future__ import annotations

from typing import Any

from numba import int32, int64

from engine.drafters.suffix.calls import REMOVE, end
from engine.drafters.suffix.handles import open_sequence, sequence_of, tree_of
from engine.drafters.suffix.memory import VISITS, compiled
from engine.drafters.suffix.tree import append, close

DOCUMENT, TAKEN = 0, 1
"""Words of a cursor: the document that is next, and how many of its tokens are indexed."""
PRICE = 8
"""Of opening or removing a sequence, however short."""
FULL = -(2**31)
"""Instead of a budget that is left: memory is full."""


@compiled(int64, int64, int32[::1], int64[::1], int64[::1], int64[::1], int64)
def index(
    memory: Any, tree: int, tokens: Any, bounds: Any, handles: Any, cursor: Any, budget: int
) -> int:
    """Index documents tokens[bounds[i]:bounds[i + 1]] from the cursor on; handles[i] (0 before)
    becomes that of their sequence. Returns the budget that is left, which the last token may
    overdraw, or FULL."""
    state = memory.state
    root = tree_of(memory, tree)
    while budget > 0 and cursor[DOCUMENT] < len(handles):
        document = cursor[DOCUMENT]
        length = bounds[document + 1] - bounds[document]
        if handles[document] == 0:
            handles[document] = open_sequence(memory, root, 0, length, 1) if root else 0
            budget -= PRICE
        sequence = sequence_of(memory, handles[document])
        if sequence == 0:
            return FULL
        while budget > 0 and cursor[TAKEN] < length:
            before = state[VISITS]
            if not append(memory, sequence, int64(tokens[bounds[document] + cursor[TAKEN]])):
                return FULL
            cursor[TAKEN] += 1
            budget -= state[VISITS] - before
        if cursor[TAKEN] == length:
            close(memory, sequence)
            cursor[DOCUMENT] += 1
            cursor[TAKEN] = 0
    return budget


@compiled(int64, int64[::1], int64, int64)
def remove(memory: Any, handles: Any, first: int, budget: int) -> int:
    """Take sequences from handles[first] on out of use. Returns the place of the next."""
    while first < len(handles) and budget > 0:
        end(memory, handles[first], REMOVE)
        budget -= PRICE
        first += 1
    return first
