"""Memory of suffix trees: one reserved range of 64-byte blocks, handed out by a buddy system.

Nodes, texts, child tables and lists are all blocks of 2^order units, so one number limits them
all, growth never copies what is there, and what is freed merges back into large blocks. Compiled
functions take the memory as their first argument and never allocate anywhere else."""

from __future__ import annotations

import mmap
import sys
from typing import Any, NamedTuple

import numpy as np
from numba import int32, int64, njit, types, void
from numpy.typing import NDArray

UNIT = 16
"""int32 words of a unit: 64 bytes, a cache line."""
UNIT_BYTES = UNIT * 4
ORDERS = 28

# Words of the state, int64. FREE: a list of free blocks for each order.
FREE = 0
FRONTIER, LIMIT, USED = 32, 33, 34
DEPTH_LIMIT, VOCABULARY = 35, 36
NODES, TOKENS, SEQUENCES, TREES = 37, 38, 39, 40
GENERATION = 42
OLDEST, NEWEST = 43, 44
REMOVALS, LAST_REMOVAL = 45, 46
DROPS, DROPPING = 47, 48
FADE_NEXT, FADING, FADED_TO = 49, 50, 51
VISITS = 52
"""Suffixes moved by `append` since the start: the cost of growing, which only goes up."""
FULL, UNKNOWN_ID, COUNTED_OUT = 53, 54, 55
"""Sequences cut short, by the reason: memory, the vocabulary, counts that near 2^31."""
CROWDED = 56
"""A global tree whose counts near 2^31, or 0."""
TOUCHED = 57
"""Units that the system may have given pages for: the highest FRONTIER since they went back."""
SCRATCH = 64

MAX_DEPTH = 256
STATE = SCRATCH + MAX_DEPTH

# Words of a free block. Word 0 of a block in use is never negative, which tells the two apart.
MARK, NEXT_FREE, PREVIOUS_FREE = 0, 1, 2

_GIVE_BACK = 8 << 20
"""Bytes given back to the system per call at most: it takes about 0.1 ms per MiB."""
_KEEP = 1 << 20
_NO_RESERVE = 0x4000 if sys.platform == "linux" else 0
"""MAP_NORESERVE, which Python has no name for: a range may be larger than memory."""


class Memory(NamedTuple):
    """blocks: int32 [units, 16]; words: the same, flat; state: int64 [STATE]."""

    blocks: NDArray[np.int32]
    words: NDArray[np.int32]
    state: NDArray[np.int64]


def cached(signature: Any) -> Any:
    """Decorator: compile a function for this signature alone, and keep the result on disk where
    there is a folder for it."""

    def compile_it(function: Any) -> Any:
        try:
            return njit(signature, cache=True, nogil=True)(function)
        except RuntimeError:  # numba finds no folder to keep it in
            return njit(signature, nogil=True)(function)

    return compile_it


def compiled(returns: Any, *arguments: Any) -> Any:
    """`cached` for a function of (memory, *arguments)."""
    return cached(returns(MEMORY, *arguments))


MEMORY = types.NamedTuple([int32[:, ::1], int32[::1], int64[::1]], Memory)


class Arena:
    """Owns the reserved range. Only pages that were touched take memory."""

    def __init__(self, limit_bytes: int) -> None:
        units = limit_bytes // UNIT_BYTES
        # Private: pages of a shared range would stay taken after MADV_DONTNEED.
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE
        self._range = mmap.mmap(-1, units * UNIT_BYTES, flags)
        self._advise("MADV_HUGEPAGE", 0, len(self._range) // mmap.PAGESIZE * mmap.PAGESIZE)
        words = np.frombuffer(self._range, np.int32)
        state = np.zeros(STATE, np.int64)
        state[FRONTIER] = state[TOUCHED] = state[USED] = 1  # unit 0 is taken: 0 means none
        state[LIMIT] = units
        self.memory = Memory(words.reshape(units, UNIT), words, state)

    @property
    def used_bytes(self) -> int:
        return int(self.memory.state[USED] - 1) * UNIT_BYTES

    @property
    def touched_bytes(self) -> int:
        """What the system has given at most, to within a huge page."""
        return int(self.memory.state[TOUCHED]) * UNIT_BYTES

    def give_back(self) -> None:
        """Return memory behind the last block in use to the system, a part per call."""
        state = self.memory.state
        touched = self.touched_bytes
        if state[USED] == 1:
            state[FREE : FREE + ORDERS] = 0
            state[FRONTIER] = 1
        page = mmap.PAGESIZE
        keep = -(-(int(state[FRONTIER]) * UNIT_BYTES + _KEEP) // page) * page
        begin = max(keep, (touched - _GIVE_BACK) // page * page)
        if begin < touched:
            end = min(-(-touched // page) * page, len(self._range))
            self._advise("MADV_DONTNEED", begin, end - begin)
            state[TOUCHED] = begin // UNIT_BYTES

    def _advise(self, advice: str, begin: int, size: int) -> None:
        option = getattr(mmap, advice, None)  # the system may not know it
        if option is None or size <= 0:
            return
        try:
            self._range.madvise(option, begin, size)
        except OSError:
            return  # advice only: a kernel built without it works all the same


@compiled(void, int64, int64)
def _unlink(memory: Any, block: int, order: int) -> None:
    state, blocks = memory.state, memory.blocks
    after, before = blocks[block, NEXT_FREE], blocks[block, PREVIOUS_FREE]
    if before:
        blocks[before, NEXT_FREE] = after
    else:
        state[FREE + order] = after
    if after:
        blocks[after, PREVIOUS_FREE] = before


@compiled(void, int64, int64)
def _link(memory: Any, block: int, order: int) -> None:
    state, blocks = memory.state, memory.blocks
    first = state[FREE + order]
    blocks[block, MARK] = -1 - order
    blocks[block, NEXT_FREE] = first
    blocks[block, PREVIOUS_FREE] = 0
    if first:
        blocks[first, PREVIOUS_FREE] = block
    state[FREE + order] = block


@compiled(void, int64, int64)
def _join(memory: Any, block: int, order: int) -> None:
    """Put a free block into its list, merged with its free neighbours."""
    state, blocks = memory.state, memory.blocks
    while order < ORDERS - 1:
        buddy = block ^ (1 << order)
        if buddy + (1 << order) > state[FRONTIER] or blocks[buddy, MARK] != -1 - order:
            break
        _unlink(memory, buddy, order)
        block = min(block, buddy)
        order += 1
    if block + (1 << order) == state[FRONTIER]:
        state[FRONTIER] = block
    else:
        _link(memory, block, order)


@compiled(int64, int64)
def take(memory: Any, order: int) -> int:
    """A block of 2^order units, aligned to its size, with word 0 zero and the rest as it was; 0
    when the limit does not allow it."""
    state, blocks = memory.state, memory.blocks
    size = 1 << order
    if state[USED] + size > state[LIMIT]:
        return 0
    found = order
    while found < ORDERS and state[FREE + found] == 0:
        found += 1
    if found < ORDERS:
        block = state[FREE + found]
        _unlink(memory, block, found)
        while found > order:
            found -= 1
            _link(memory, block + (1 << found), found)
    else:
        gap = state[FRONTIER]
        block = (gap + size - 1) & -size
        if block + size > state[LIMIT]:
            return 0
        state[FRONTIER] = block + size
        state[TOUCHED] = max(state[TOUCHED], block + size)
        blocks[block, MARK] = 0  # what an earlier block left there must not pass as free
        first, first_part = gap, -1
        while gap < block:
            part = 0
            while gap & (1 << part) == 0:
                part += 1
            if first_part < 0:
                first_part = part
            else:
                _link(memory, gap, part)
            gap += 1 << part
        if first_part >= 0:  # the only piece with a buddy below, once all the others are marked
            _join(memory, first, first_part)
    state[USED] += size
    blocks[block, MARK] = 0
    return block


@compiled(void, int64, int64)
def give(memory: Any, block: int, order: int) -> None:
    """Free a block."""
    memory.state[USED] -= 1 << order
    _join(memory, block, order)
