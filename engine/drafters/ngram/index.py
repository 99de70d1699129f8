"""Compiled hash index of one text: n-gram -> where its latest occurrence continues.

One row of int64 words describes a text: addresses of its tokens and of its tables. A table holds,
for each n from 1 to MAX_N, positions hashed by the n tokens before them (open addressing, at most
half full). Positions are checked against the tokens, so the index never reports a false match. An
n-gram is in the table only when the token after it is known, so a text never matches its own end.

A table that gets half full is replaced without a pause: each further token also moves REFILL older
ones to a table of twice the size."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from engine.intrinsics import pointer

TOKENS, ROOM, LENGTH, PROMPT, TABLE, MASK, NEXT, NEXT_MASK, BUILT, SEED, MATCH, POOL, WORDS = range(
    13
)
"""Words of a row. Of the text: address of its tokens (int32), how many they have room for, how many
there are, how many of them are the prompt, a random number. Address of the table (int32
[MAX_N, 1 + MASK]) and its mask; the same of the table that replaces it (address 0: none), and the
last position that is in that one. Where the match of this step's offer continues (0: none; -1: in
the pool), and the address of the pool (see recycling; 0: none)."""

MAX_N = 5
"""Longest n-gram indexed; longer matches are found by comparing backwards."""

MATCH_CAP = 32
"""Match lengths above this are reported as this."""

REFILL = 8
_PROBES = 128
"""A position that finds no place among so many replaces the last of them: nobody can make the
index slow by a text whose n-grams collide."""


@njit
def _mix(state: Any, token: Any) -> Any:
    state = (state ^ np.uint64(np.uint32(token))) * np.uint64(0x9E3779B97F4A7C15)
    return state ^ (state >> np.uint64(29))


@njit
def _same(tokens: Any, one: Any, other: Any, n: int) -> bool:
    """Whether the n tokens before two positions are the same."""
    back = 1
    while back <= n and tokens[one - back] == tokens[other - back]:
        back += 1
    return back > n


@njit
def _insert(table: Any, mask: int, tokens: Any, end: int, seed: int) -> None:
    """Enter the n-grams before position `end`."""
    state = np.uint64(seed)
    for n in range(1, min(MAX_N, end) + 1):
        state = _mix(state, tokens[end - n])
        base, place = (n - 1) * (mask + 1), np.int64(state & np.uint64(mask))
        for _ in range(_PROBES):
            found = np.int64(table[base + place])
            if found == 0 or _same(tokens, found, end, n):
                break
            place = (place + 1) & mask
        table[base + place] = np.int32(end)


@njit
def append(row: Any, token: int) -> None:
    """Take one token in. There must be room for it."""
    tokens = pointer(row[TOKENS], np.int32(0))
    length = row[LENGTH]
    tokens[length] = np.int32(token)
    row[LENGTH] = length + 1
    _insert(pointer(row[TABLE], np.int32(0)), row[MASK], tokens, length, row[SEED])
    if row[NEXT]:
        last = min(length, row[BUILT] + REFILL)
        for end in range(row[BUILT] + 1, last + 1):
            _insert(pointer(row[NEXT], np.int32(0)), row[NEXT_MASK], tokens, end, row[SEED])
        row[BUILT] = last
        if last == length:
            row[TABLE], row[MASK], row[NEXT] = row[NEXT], row[NEXT_MASK], 0


@njit
def crowded(row: Any) -> bool:
    """Whether the table is half full and nothing replaces it yet."""
    return row[NEXT] == 0 and 2 * row[LENGTH] > row[MASK]


@njit
def match(row: Any, min_n: int, max_n: int) -> tuple[Any, Any]:
    """(match length, position that continues it) for the text's end; (0, 0) for none. The longest
    n-gram of min_n to max_n tokens wins, among equal ones the latest; the match is then extended
    backwards up to MATCH_CAP."""
    tokens, table = pointer(row[TOKENS], np.int32(0)), pointer(row[TABLE], np.int32(0))
    end, mask, state = row[LENGTH], row[MASK], np.uint64(row[SEED])
    length = start = 0
    for n in range(1, min(max_n, end) + 1):
        state = _mix(state, tokens[end - n])
        base, place = (n - 1) * (mask + 1), np.int64(state & np.uint64(mask))
        found = np.int64(0)
        for _ in range(_PROBES):
            found = np.int64(table[base + place])
            if found == 0 or _same(tokens, found, end, n):
                break
            place = (place + 1) & mask
        if found == 0 or not _same(tokens, found, end, n):
            break  # then no longer one occurs either
        length, start = n, found
    if length < min_n:
        return 0, 0
    limit = min(MATCH_CAP, start)
    while length < limit and tokens[start - length - 1] == tokens[end - length - 1]:
        length += 1
    return length, start


@njit
def copy(row: Any, start: int, count: int, ends: Any, out: Any) -> int:
    """Write up to `count` tokens that follow from `start` to out, running on into the draft itself
    when the text ends first (a loop of any period), cut after one of `ends`. Returns how many."""
    tokens = pointer(row[TOKENS], np.int32(0))
    period = row[LENGTH] - start
    for offset in range(count):
        token = np.int64(tokens[start + offset]) if offset < period else out[offset - period]
        out[offset] = token
        for end in ends:
            if token == end:
                return offset + 1
    return count
