"""The n-gram drafter's work of one step, for all requests in one compiled call each (numba).

`rows` int64 [S, WORDS] are the indexes, `shadows` int64 [S, DRAFT + longest draft] the shadows, by
slot. Kept on disk by numba once compiled."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numba import njit, types

from engine.drafters.ngram.index import (
    LENGTH,
    MATCH,
    POOL,
    PROMPT,
    ROOM,
    TOKENS,
    append,
    copy,
    crowded,
    match,
)
from engine.drafters.ngram.recycling import extend, find, harvest
from engine.drafters.shadow import DRAFT, begin, due, interrupt, lived, packed_features, take
from engine.drafters.texts import ENDED, UNSCORED
from engine.drafters.texts import HEAD as TOLD
from engine.intrinsics import pointer

SOURCES = ("", "prompt", "output", "pool")
HEAD = TOLD + 1
"""int64 words before a commit's tokens, rejected drafts and the target's tokens after them: those
of every drafter, and how many rejected."""
_IN_POOL = -1

_ROWS, _LIST = types.int64[:, ::1], types.int64[::1]


class Loops(NamedTuple):
    """offers(rows, shadows, slots, min_n, max_n, found): packed features of each offer to found,
    0 for none.

    drafts(rows, slots, lengths, ends, drafts, counts): drafts int64 [n, most] of this step's
    offers.

    commit(rows, shadows, words, first, settled, ends, min_n, max_n, scores, owners) -> (next,
    settled): takes in commits (HEAD words and tokens each) from words[first], until one finds no
    room for its tokens. Packed scores and the place of their commit go to scores and owners from
    `settled` on.

    tails(rows, words, ends, min_n, max_n, reserve, tails, counts): tails int64 [n, most] of texts
    that end with other drafts. words: for each request its slot, how many drafts, the most tokens
    to add, and the drafts; more of them than `reserve` get no tail.

    take_in(row, tokens): takes tokens of a prompt in. There must be room."""

    offers: Any
    drafts: Any
    commit: Any
    tails: Any
    take_in: Any


@cache
def loops() -> Loops:
    """The compiled functions."""
    try:
        return _compile(cache=True)
    except RuntimeError:  # numba finds no folder to keep them in
        return _compile(cache=False)


@njit
def _pool(row: Any) -> Any:
    return pointer(row[POOL], np.int32(0))


@njit
def _last(row: Any, back: int) -> Any:
    """The last token but `back` of the text, -1 where it has none."""
    if row[LENGTH] <= back:
        return np.int64(-1)
    return np.int64(pointer(row[TOKENS], np.int32(0))[row[LENGTH] - 1 - back])


@njit
def _find(row: Any, min_n: int, max_n: int) -> tuple[Any, Any, Any]:
    """(match length, where it continues, source) of the text's own longest match, else of what the
    pool has, which counts as a match of one token; length 0 for none."""
    matched, start = match(row, min_n, max_n)
    if matched == 0 and row[POOL]:
        found, _ = find(_pool(row), _last(row, 1), _last(row, 0))
        if found:
            return np.int64(1), np.int64(_IN_POOL), 3
    return np.int64(matched), np.int64(start), 1 if start < row[PROMPT] else 2


@njit
def _write(row: Any, start: int, count: int, ends: Any, out: Any) -> int:
    """Write a draft of at most `count` tokens from what `_find` found. Returns its length."""
    if start == _IN_POOL:
        return extend(_pool(row), _last(row, 1), _last(row, 0), count, ends, out)
    return copy(row, start, count, ends, out)


@njit
def _is_end(token: Any, ends: Any) -> bool:
    for end in ends:  # noqa: SIM110 - numba compiles no generators
        if token == end:
            return True
    return False


@njit
def _shadow(row: Any, shadow: Any, ends: Any, min_n: int, max_n: int) -> None:
    """Begin a draft of the shadow if it is due and something matches."""
    if due(shadow):
        matched, start, source = _find(row, min_n, max_n)
        if matched:
            drafted = _write(row, start, len(shadow) - DRAFT, ends, shadow[DRAFT:])
            begin(shadow, drafted, matched, source)


def _compile(*, cache: bool) -> Loops:
    number = types.int64

    @njit(types.void(_ROWS, _ROWS, _LIST, number, number, _LIST), cache=cache)
    def offers(rows: Any, shadows: Any, slots: Any, min_n: int, max_n: int, found: Any) -> None:
        for i in range(len(slots)):
            row = rows[slots[i]]
            matched, start, source = _find(row, min_n, max_n)
            row[MATCH] = start
            found[i] = packed_features(shadows[slots[i]], matched, source) if matched else 0

    @njit(types.void(_ROWS, _LIST, _LIST, _LIST, _ROWS, _LIST), cache=cache)
    def drafts(rows: Any, slots: Any, lengths: Any, ends: Any, out: Any, counts: Any) -> None:
        for i in range(len(slots)):
            row = rows[slots[i]]
            counts[i] = _write(row, row[MATCH], lengths[i], ends, out[i]) if row[MATCH] else 0

    @njit(
        types.UniTuple(number, 2)(
            _ROWS, _ROWS, _LIST, number, number, _LIST, number, number, _LIST, _LIST
        ),
        cache=cache,
    )
    def commit(
        rows: Any, shadows: Any, words: Any, at: int, settled: int, ends: Any,
        min_n: int, max_n: int, scores: Any, owners: Any,
    ) -> tuple[int, int]:  # fmt: skip
        while at < len(words):
            slot, owner, count = words[at], words[at + 1], words[at + 2]
            drafted, accepted, flags = words[at + 3], words[at + 4], words[at + 5]
            rejected = words[at + 6]
            row, shadow = rows[slot], shadows[slot]
            if row[LENGTH] + count > row[ROOM] or crowded(row):
                break
            at += HEAD
            row[MATCH] = 0
            scored = drafted == 0 and flags & UNSCORED == 0
            if not scored:
                score = interrupt(shadow)
                if score:
                    scores[settled], owners[settled] = score, owner
                    settled += 1
            if drafted:
                lived(shadow, accepted)
            for token in words[at : at + count]:
                if scored:
                    _shadow(row, shadow, ends, min_n, max_n)
                    score = take(shadow, token)
                    if score:
                        scores[settled], owners[settled] = score, owner
                        settled += 1
                append(row, token)
            at += count
            if rejected and row[POOL]:
                middle, end = at + rejected, at + 2 * rejected
                harvest(
                    _pool(row), _last(row, 1), _last(row, 0), words[at:middle], words[middle:end]
                )
            at += 2 * rejected
            if flags & ENDED:
                score = interrupt(shadow)
                if score:
                    scores[settled], owners[settled] = score, owner
                    settled += 1
        return at, settled

    @njit(types.void(_ROWS, _LIST, _LIST, number, number, number, _ROWS, _LIST), cache=cache)
    def tails(
        rows: Any,
        words: Any,
        ends: Any,
        min_n: int,
        max_n: int,
        reserve: int,
        out: Any,
        counts: Any,
    ) -> None:
        at = i = 0
        while at < len(words):
            row, count, most = rows[words[at]], words[at + 1], words[at + 2]
            at += 3
            counts[i] = 0
            if 0 < count <= reserve and not _is_end(words[at + count - 1], ends):
                # Beyond the text's end, so that nothing of it is indexed.
                tokens, length = pointer(row[TOKENS], np.int32(0)), row[LENGTH]
                for k in range(count):
                    tokens[length + k] = np.int32(words[at + k])
                row[LENGTH] = length + count
                matched, start = match(row, min_n, max_n)
                if matched:
                    counts[i] = copy(row, start, most, ends, out[i])
                row[LENGTH] = length
            at += count
            i += 1

    @njit(types.void(_LIST, _LIST), cache=cache)
    def take_in(row: Any, tokens: Any) -> None:
        for token in tokens:
            append(row, token)

    return Loops(offers, drafts, commit, tails, take_in)
