"""The buddy system of suffix trees alone: blocks never overlap, whatever is taken and freed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from numba import int64, njit
from numba.core import caching

from engine.drafters.suffix.memory import (
    FREE,
    FRONTIER,
    LIMIT,
    MARK,
    NEXT_FREE,
    ORDERS,
    USED,
    Arena,
    cached,
    give,
    take,
)

UNITS = 1 << 9
ORDER = st.integers(0, 2) | st.integers(2, 6)


class BlocksMachine(RuleBasedStateMachine):
    """Blocks in use are filled with what free blocks may have left behind: marks of such orders
    as could begin there. Their own first words say that they are in use."""

    def __init__(self) -> None:
        super().__init__()
        self.arena = Arena(UNITS * 64)
        self.memory = self.arena.memory
        self.owned: dict[int, int] = {}

    @rule(order=ORDER, junk=st.integers(0, 7))
    def take(self, order: int, junk: int) -> None:
        block = take(self.memory, order)
        if not block:
            return
        size = 1 << order
        assert block % size == 0
        assert block + size <= UNITS
        assert all(
            block + size <= other or other + (1 << its) <= block
            for other, its in self.owned.items()
        )
        assert self.memory.blocks[block, MARK] == 0
        units = np.arange(block, block + size)
        alignment = np.log2(units & -units).astype(np.int32)
        self.memory.blocks[units] = -1 - np.minimum(alignment, junk)[:, None]
        self.memory.blocks[block, MARK] = junk
        self.owned[block] = order

    @rule(order=st.sampled_from([0, 0, 1]), count=st.integers(2, 40))
    def take_many(self, order: int, count: int) -> None:
        for junk in range(count):
            self.take(order, junk % 8)

    @rule(data=st.data())
    @precondition(lambda self: self.owned)
    def give(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from(sorted(self.owned)))
        give(self.memory, block, self.owned.pop(block))

    @rule(count=st.integers(1, 40), upwards=st.booleans())
    def give_last(self, count: int, upwards: bool) -> None:
        for block in sorted(sorted(self.owned)[-count:], reverse=not upwards):
            give(self.memory, block, self.owned.pop(block))

    @rule(count=st.integers(1, 12), order=st.integers(3, 6))
    def give_last_and_take_more(self, count: int, order: int) -> None:
        self.give_last(count, upwards=True)
        self.take(order, 7)

    @rule()
    def give_back_to_the_system(self) -> None:
        self.arena.give_back()

    @invariant()
    def every_unit_is_in_use_or_in_one_list(self) -> None:
        state, blocks = self.memory.state, self.memory.blocks
        free: dict[int, int] = {}
        for order in range(ORDERS):
            block = int(state[FREE + order])
            while block:
                assert blocks[block, MARK] == -1 - order
                assert block not in free
                free[block] = order
                block = int(blocks[block, NEXT_FREE])
        units = [0]
        for block, order in {**free, **self.owned}.items():
            units += range(block, block + (1 << order))
        assert sorted(units) == list(range(state[FRONTIER]))
        assert state[USED] == 1 + sum(1 << order for order in self.owned.values())
        assert state[FRONTIER] <= state[LIMIT] == UNITS
        assert not any(free.get(block ^ (1 << order)) == order for block, order in free.items()), (
            "free buddies are merged"
        )

    def teardown(self) -> None:
        for block, order in self.owned.items():
            give(self.memory, block, order)
        assert self.memory.state[USED] == 1


TestBlocks = BlocksMachine.TestCase
TestBlocks.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


def test_what_earlier_blocks_left_behind_is_not_taken_for_free() -> None:
    memory = Arena(UNITS * 64).memory
    for _ in range(64):
        take(memory, 0)
    for unit in [*range(48, 65), *range(32, 48)]:
        give(memory, unit, 0)
    for unit in [take(memory, 0) for _ in range(3)]:
        give(memory, unit, 0)
    taken: set[int] = set()
    for order in (5, 4, 5, 4, 4, 5):
        block = take(memory, order)
        units = set(range(block, block + (1 << order)))
        assert not taken & units
        taken |= units


def _resident() -> int:
    """Bytes of this process in memory, shared ones included."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("Rss:"))


def test_memory_that_is_free_goes_back_to_the_system() -> None:
    size = 128 << 20
    arena = Arena(size * 2)
    before = _resident()
    blocks = [take(arena.memory, 14) for _ in range(size >> 20)]
    for block in blocks:
        arena.memory.blocks[block : block + (1 << 14)] = 1
    assert _resident() > before + size * 3 // 4
    for block in blocks:
        give(arena.memory, block, 14)
    while arena.touched_bytes > 4 << 20:
        arena.give_back()
    assert _resident() < before + size // 4
    assert not arena.memory.blocks[1 << 16 :].any(), "pages of a shared range would be kept"
    assert take(arena.memory, 14)


def test_functions_compile_where_no_folder_can_keep_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caching.CacheImpl, "_locator_classes", [])
    monkeypatch.setattr(caching.CompileResultCacheImpl, "_locator_classes", [])
    with pytest.raises(RuntimeError, match="no locator"):
        njit(int64(int64), cache=True)(_twice)
    assert cached(int64(int64))(_twice)(21) == 42


def _twice(number: int) -> int:
    return 2 * number
