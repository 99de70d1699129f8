"""The longest single calls of the suffix drafter while its memory is too small for what comes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle, islice
from typing import Any, ParamSpec, TypeVar

import numpy as np

from engine.bench.requests import request_of
from engine.config import EngineConfig
from engine.drafters.base import Committed
from engine.drafters.suffix.drafter import SuffixDrafter
from engine.request import Request

SOAK_MB = 16
SOAK_TOKENS = 300_000
"""Memory too small for so many tokens: answers are evicted all the time."""
TOGETHER = 8
"""Requests at a time."""
RUN = 8
"""Tokens of each per commit."""
CORPUS_TOKENS, MESSAGE_TOKENS = 32_768, 8_192
"""A corpus is put in messages, one a commit, and dropped when it has been indexed for a while."""
WORK_EVERY = 64
"""Commits between two calls for work of its own: what is left goes on in commits."""
TURN = 256
"""Commits from one put to its drop, and to the next put."""

P = ParamSpec("P")
T = TypeVar("T")


class Clock:
    """longest: seconds of CPU time of the calling thread, by name, of the longest single call."""

    def __init__(self) -> None:
        self.longest: dict[str, float] = {}

    def time(self, name: str, call: Callable[P, T], *given: P.args, **named: P.kwargs) -> T:
        begin = time.thread_time()
        answer = call(*given, **named)
        self.longest[name] = max(self.longest.get(name, 0.0), time.thread_time() - begin)
        return answer


def pauses(texts: Sequence[Sequence[int]], vocabulary: int, depth: int) -> dict[str, Any]:
    """Milliseconds of the longest calls, and bytes at the end. texts: of one token or more; they
    are repeated until SOAK_TOKENS have come."""
    soak(texts, vocabulary, depth, 4 * TOGETHER * len(texts[0]), Clock())  # compiles what it must
    clock = Clock()
    suffix, tokens = soak(texts, vocabulary, depth, SOAK_TOKENS, clock)
    stats = suffix.memory
    return {f"longest_{name}_ms": round(1e3 * s, 3) for name, s in clock.longest.items()} | {
        "soak_tokens": tokens,
        "soak_bytes": stats.touched_bytes,
        "soak_limit_bytes": stats.limit_bytes,
    }


def soak(
    texts: Sequence[Sequence[int]], vocabulary: int, depth: int, most: int, clock: Clock
) -> tuple[SuffixDrafter, int]:
    """Answers come and go, TOGETHER at a time, and a corpus does. Returns the drafter and how many
    tokens of answers it got: `most`, and what the last ones have more."""
    config = EngineConfig(suffix_memory_mb=SOAK_MB, suffix_depth=depth, max_draft_length=16)
    suffix = SuffixDrafter(config, frozenset(), vocabulary)
    coming = enumerate(cycle(texts))
    running: dict[int, tuple[Request, Iterator[int]]] = {}
    messages = list(corpus_messages(texts))
    tokens = commits = 0
    while tokens < most:
        while len(running) < TOGETHER:
            number, text = next(coming)
            request = request_of(text[:1], number)
            clock.time("admit", suffix.admit, request)
            running[number] = (request, iter(text[1:]))
        told: list[Committed] = []
        for request, rest in running.values():
            run = list(islice(rest, RUN))
            start = len(request.tokens)
            request.tokens.extend(run)
            told.append(Committed(request, start, run, ended=len(run) < RUN))
            tokens += len(run) or 1
        clock.time("commit", suffix.commit, told)
        for one in told:
            if one.ended:
                clock.time("forget", suffix.forget, one.request.id)
                del running[one.request.id]
        turn = commits % (2 * TURN)
        if turn < len(messages):
            ids, lengths = messages[turn]
            clock.time("put", suffix.put_corpus, "soak", ids, lengths, turn == 0)
        elif turn == TURN:
            clock.time("drop", suffix.drop_corpus, "soak")
        if commits % WORK_EVERY == WORK_EVERY - 1:
            clock.time("work", suffix.work)
        commits += 1
    return suffix, tokens


def corpus_messages(texts: Sequence[Sequence[int]]) -> Iterator[tuple[Any, Any]]:
    """Tokens int32 and lengths int64 of documents, CORPUS_TOKENS in all, as messages."""
    sizes: list[int] = []
    ids: list[int] = []
    given = 0
    for text in cycle(texts):
        part = text[:MESSAGE_TOKENS]
        sizes.append(len(part))
        ids += part
        if len(ids) >= MESSAGE_TOKENS:
            yield np.array(ids, np.int32), np.array(sizes, np.int64)
            given += len(ids)
            sizes, ids = [], []
            if given >= CORPUS_TOKENS:
                return
