"""What the target said at rejected rows, kept per request to draft from (numba).

A verify step computes the rows after the first mismatch too. Their tokens are guesses: what the
target would say if the drafts before them were right. Kept are the runs of guesses by the token
before them, as Token Recycling (Luo et al. 2024) keeps the target's candidates by token and
Lookahead Decoding (Fu et al. 2024) keeps n-grams from its guesses, but without rows of their own:

    the correction is followed by the guesses of the next rows (one step of Jacobi iteration), and
    each rejected token by the guess of its row.

A pool is int32 [SIZE], a cache by token: SETS sets of WAYS runs. The runs after a token share a
set, the latest first, and the oldest makes room. A run is its token + 1 (0: empty), the token
before that, its length and up to RUN tokens."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

SETS, WAYS, RUN = 512, 4, 8
_KEY, _BEFORE, _COUNT, _FIRST = range(4)
_WIDTH = _FIRST + RUN
SIZE = SETS * WAYS * _WIDTH
"""90 kB for a request."""


@njit
def _set(token: Any) -> Any:
    """Where the token's set begins."""
    mixed = np.uint32(token) * np.uint32(0x9E3779B1)
    return np.int64(mixed >> np.uint32(16)) % SETS * (WAYS * _WIDTH)


@njit
def find(pool: Any, before: Any, token: Any) -> tuple[Any, Any]:
    """(how many tokens match: 2, 1 or 0, where the run is) of the best run after the tokens
    `before` and `token`: the latest after both, else the latest after `token`."""
    first = _set(token)
    known = np.int64(-1)
    if token < 0:  # no token: it would match what is empty
        return 0, known
    for run in range(first, first + WAYS * _WIDTH, _WIDTH):
        if pool[run + _KEY] == token + 1:
            if pool[run + _BEFORE] == before:
                return 2, run
            if known < 0:
                known = run
    return (1, known) if known >= 0 else (0, known)


@njit
def extend(pool: Any, before: Any, token: Any, count: int, ends: Any, out: Any) -> int:
    """Write up to `count` tokens that follow to out, run after run, cut after one of `ends`.
    Returns how many."""
    written = 0
    while written < count:
        matched, run = find(pool, before, token)
        if not matched:
            break
        for i in range(min(pool[run + _COUNT], count - written)):
            before, token = token, np.int64(pool[run + _FIRST + i])
            out[written] = token
            written += 1
            for end in ends:
                if token == end:
                    return written
    return written


@njit
def _keep(pool: Any, before: Any, token: Any, guesses: Any) -> None:
    """Put a run first in its set, in place of one that begins the same or of the oldest."""
    first = _set(token)
    run, last = first, first + (WAYS - 1) * _WIDTH
    while run < last and not (
        pool[run + _KEY] == token + 1
        and pool[run + _BEFORE] == before
        and pool[run + _FIRST] == guesses[0]
    ):
        run += _WIDTH
    while run > first:
        for i in range(_WIDTH):
            pool[run + i] = pool[run + i - _WIDTH]
        run -= _WIDTH
    count = min(len(guesses), RUN)
    pool[run + _KEY], pool[run + _BEFORE], pool[run + _COUNT] = token + 1, before, count
    for i in range(count):
        pool[run + _FIRST + i] = guesses[i]


@njit
def harvest(pool: Any, before: Any, correction: Any, rejected: Any, guesses: Any) -> None:
    """Take in a rejected tail. before and correction: the last two tokens of the text. rejected:
    the drafts from the first mismatch on; guesses: the target's token after each."""
    for i in range(len(guesses) - 1, -1, -1):
        if i == 0 or rejected[i] != guesses[i - 1]:
            _keep(pool, before if i == 0 else rejected[i - 1], rejected[i], guesses[i:])
    for i in range(len(guesses) - 1, 0, -1):
        _keep(pool, correction if i == 1 else guesses[i - 2], guesses[i - 1], guesses[i:])
    if len(guesses):
        _keep(pool, before, correction, guesses)
