"""The texts that the n-gram drafter follows: their rows, the memory behind them, their intake."""

from __future__ import annotations

import mmap
import secrets
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.drafters.ngram import index
from engine.drafters.ngram.loops import Loops
from engine.drafters.ngram.recycling import SIZE
from engine.drafters.shadow import DRAFT
from engine.drafters.texts import Text, Texts, missing

if TYPE_CHECKING:
    from engine.request import Request

BUDGET = 4096
"""Prompt tokens taken in per step, over all requests: below a millisecond."""

_SPARE = 1024
"""Output tokens that the first table has room for."""
_LARGE = 1 << 20


class NgramText(Text):
    """arrays: those behind its row, by the word of the row that holds their address."""

    __slots__ = ("arrays",)

    def __init__(self, request: Request, slot: int) -> None:
        super().__init__(request, slot)
        self.arrays: dict[int, Any] = {}


class NgramTexts(Texts[NgramText]):
    """rows int64 [S, WORDS] and shadows int64 [S, DRAFT + longest draft], by slot. Each step takes
    in BUDGET tokens of the pending texts, those with the fewest missing first."""

    def __init__(self, longest: int, loops: Loops) -> None:
        super().__init__()
        self.rows = np.zeros((0, index.WORDS), dtype=np.int64)
        self.shadows = np.zeros((0, DRAFT + longest), dtype=np.int64)
        self.recycle = False
        self._longest = longest
        self._loops = loops
        self._seed = secrets.randbits(62)
        self._budget = BUDGET

    def take_in(self) -> None:
        self._budget = BUDGET
        for text in sorted(self.pending.values(), key=missing):
            self._take_in(text)

    def set_recycle(self, recycle: bool) -> None:
        """Give every text a pool for recycled tokens, or none."""
        self.recycle = recycle
        for text in self.known.values():
            self._pool(text)

    def grow(self, text: NgramText, count: int) -> None:
        """Room for `count` more tokens, and a larger table if the present one is half full."""
        row = self.rows[text.slot]
        length, room = int(row[index.LENGTH]), int(row[index.ROOM])
        if length + count > room:
            old = text.arrays[index.TOKENS]
            self._tokens(text, 2 * room + count)[:length] = old[:length]
        if row[index.NEXT] == 0 and 2 * length > row[index.MASK]:
            text.arrays[index.TABLE] = text.arrays.get(index.NEXT, text.arrays[index.TABLE])
            row[index.NEXT_MASK] = self._put(text, index.NEXT, _table(2 * length + 2)).shape[1] - 1
            row[index.BUILT] = 0

    def _take_in(self, text: NgramText) -> None:
        """A request whose text cannot be taken in is forgotten, so that it keeps nobody waiting."""
        request, row = text.request, self.rows[text.slot]
        length = len(request.tokens)
        try:
            if length > row[index.ROOM] or 2 * length > row[index.MASK]:
                self._open(text)  # more output came meanwhile than was expected
            count = min(length - text.length, self._budget)
            part = np.array(request.tokens[text.length : text.length + count], dtype=np.int64)
            self._loops.take_in(row, part)
        except Exception:
            self.remove(request.id)
            raise
        text.length += count
        self._budget -= count
        if text.length == length:
            del self.pending[request.id]

    def _make(self, request: Request, slot: int) -> NgramText:
        return NgramText(request, slot)

    def _grow(self, slots: int) -> None:
        more = slots - len(self.rows)
        self.rows = np.pad(self.rows, ((0, more), (0, 0)))
        self.shadows = np.pad(self.shadows, ((0, more), (0, 0)))

    def _open(self, text: NgramText) -> None:
        """Give it empty arrays with room for the request's text and some output."""
        request, row = text.request, self.rows[text.slot]
        room = len(request.tokens) + min(max(request.remaining, 0), _SPARE) + 1
        row[:] = 0
        self.shadows[text.slot] = 0
        row[index.PROMPT] = request.prompt_length
        row[index.SEED] = self._seed
        text.length = 0
        text.arrays = {}
        self._tokens(text, room)
        row[index.MASK] = self._put(text, index.TABLE, _table(room)).shape[1] - 1
        self._pool(text)

    def _tokens(self, text: NgramText, room: int) -> Any:
        """A new array for its tokens, with room for a draft behind them."""
        self.rows[text.slot, index.ROOM] = room
        return self._put(text, index.TOKENS, np.empty(room + self._longest, dtype=np.int32))

    def _pool(self, text: NgramText) -> None:
        """An empty pool, or none when nothing is recycled."""
        if self.recycle:
            self._put(text, index.POOL, np.zeros(SIZE, dtype=np.int32))
        else:
            text.arrays.pop(index.POOL, None)
            self.rows[text.slot, index.POOL] = 0

    def _put(self, text: NgramText, word: int, array: Any) -> Any:
        text.arrays[word] = array
        self.rows[text.slot, word] = array.ctypes.data
        return array


def _table(tokens: int) -> Any:
    """An empty table that so many tokens fill to a half at most. A large one gets its memory page
    by page as it fills; huge pages, which numpy asks for, would stop the loop for milliseconds."""
    width = 1 << (2 * tokens).bit_length()
    size = 4 * index.MAX_N * width
    if size < _LARGE:
        return np.zeros((index.MAX_N, width), dtype=np.int32)
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        memory.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(memory, dtype=np.int32).reshape(index.MAX_N, width)
