"""What the calls of the model-free drafters cost, one request at a time, over given texts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from engine.bench.pauses import pauses
from engine.bench.requests import request_of
from engine.config import EngineConfig
from engine.drafters.base import Committed, Drafter
from engine.drafters.ngram.drafter import NgramDrafter
from engine.drafters.suffix.drafter import SuffixDrafter
from engine.drafters.suffix.forest import SuffixForest
from engine.request import Request

GLOBAL_TOKENS = 400_000
"""Tokens of past answers that the suffix drafter knows when its proposals are timed."""
TEXTS = 100
"""Texts that are followed token by token."""
RUN = 8
"""Tokens per commit when appending is timed."""
CONTEXT = 32_768
"""Length of the text that n-grams are looked up in."""
REMOVED = 1000
LONGEST = 2048
"""Tokens of a text; longer documents are cut, as answers are of such a length."""

Step = Callable[[str, float], None]


def calls(
    documents: Sequence[Sequence[int]], vocabulary: int, depth: int, step: Step
) -> dict[str, Any]:
    """Microseconds and milliseconds of the calls, and bytes. documents: token ids, of which one
    has two or more. Up to GLOBAL_TOKENS of them are known when others, if there are others, are
    followed; what is known is never repeated, since a tree takes less for text that it has, and
    `global_tokens` is how much there was."""
    config = EngineConfig(suffix_memory_mb=512, suffix_depth=depth, max_draft_length=16)
    suffix = SuffixDrafter(config, frozenset(), vocabulary)
    known, fresh = split(documents)
    step("loading answers", 0.0)
    loading = _forest(known, vocabulary, depth)
    step("proposing", 0.3)
    for number, text in enumerate(known):
        _answered(suffix, number, text)
    suffix_result = _proposals(suffix, fresh) | _appends(suffix, fresh)
    step("looking up n-grams", 0.6)
    ngram_result = _ngram(fresh)
    step("evicting", 0.8)
    longest = pauses(known, vocabulary, depth)
    step("done", 1.0)
    return {"suffix": suffix_result | loading | longest, "ngram": ngram_result}


def split(documents: Sequence[Sequence[int]]) -> tuple[list[list[int]], list[list[int]]]:
    """Texts of about GLOBAL_TOKENS tokens in all, and up to TEXTS others to follow; of a single
    text both. A text has 2 to LONGEST tokens."""
    parts = [
        list(document[start : start + LONGEST])
        for document in documents
        for start in range(0, len(document), LONGEST)
    ]
    texts = [part for part in parts if len(part) > 1]
    fresh = texts[-min(TEXTS, max(1, len(texts) // 2)) :]
    known: list[list[int]] = []
    total = 0
    for text in texts[: -len(fresh)] or texts:
        if total >= GLOBAL_TOKENS:
            break
        known.append(text)
        total += len(text)
    return known, fresh


def _forest(texts: Sequence[Sequence[int]], vocabulary: int, depth: int) -> dict[str, float]:
    forest = SuffixForest(1 << 30, depth, vocabulary)
    tree = forest.open_tree("global")
    handles: list[int] = []
    begin = time.thread_time()
    for text in texts:
        handle = forest.open_sequence(tree, expected=len(text))
        forest.append(handle, text)
        forest.close(handle)
        handles.append(handle)
    seconds = time.thread_time() - begin
    stats = forest.stats()
    long = forest.open_sequence(tree, expected=REMOVED)
    flat = [token for text in texts for token in text]
    flat = (flat * (1 + REMOVED // len(flat)))[:REMOVED]
    forest.append(long, flat)
    forest.close(long)
    begin = time.thread_time()
    forest.remove(long)
    while not forest.sweep():
        pass
    removal = time.thread_time() - begin
    return {
        "global_tokens": stats.tokens,
        "load_us_per_token": round(1e6 * seconds / stats.tokens, 3),
        "bytes_per_token": round(stats.bytes / stats.tokens, 1),
        "remove_1000_tokens_ms": round(1e3 * removal, 3),
    }


def _proposals(suffix: SuffixDrafter, texts: Iterable[Sequence[int]]) -> dict[str, float]:
    """offer and propose after every token."""
    times: list[float] = []
    for number, text in enumerate(texts, 1_000_000):
        request = request_of(text[:1], number)
        suffix.admit(request)
        for at, token in enumerate(text[1:], 1):
            request.tokens.append(token)
            suffix.commit([Committed(request, at, [token], drafted=1)])
            begin = time.perf_counter()
            suffix.offer([request])
            suffix.propose([request], [16])
            times.append(time.perf_counter() - begin)
        suffix.forget(request.id)
    return {"proposal_us": _mean(times), "proposal_p99_us": _p99(times)}


def _appends(suffix: SuffixDrafter, texts: Iterable[Sequence[int]]) -> dict[str, float]:
    """commit of RUN tokens at a time, into the request's own tree and the global one."""
    seconds, tokens = 0.0, 0
    for number, text in enumerate(texts, 2_000_000):
        request = request_of(text[:1], number)
        suffix.admit(request)
        for at in range(1, len(text), RUN):
            run = list(text[at : at + RUN])
            request.tokens.extend(run)
            commits = [Committed(request, at, run, drafted=1)]
            begin = time.thread_time()
            suffix.commit(commits)
            seconds += time.thread_time() - begin
            tokens += len(run)
        suffix.forget(request.id)
    return {"append_us_per_token": round(1e6 * seconds / max(1, tokens), 3)}


def _ngram(texts: Sequence[Sequence[int]]) -> dict[str, float]:
    """offer and propose at the end of a text of CONTEXT tokens, while it grows."""
    flat = [token for text in texts for token in text]
    flat = (flat * (1 + 2 * CONTEXT // len(flat)))[: CONTEXT + 2000]
    drafter = NgramDrafter(16, frozenset())
    request = request_of(flat[:CONTEXT], 1)
    drafter.admit(request)
    while not _caught_up(drafter, request):
        drafter.commit([])
    times: list[float] = []
    commits: list[float] = []
    for at in range(CONTEXT, len(flat)):
        begin = time.perf_counter()
        drafter.offer([request])
        drafter.propose([request], [16])
        middle = time.perf_counter()
        times.append(middle - begin)
        request.tokens.append(flat[at])
        one = [Committed(request, at, [flat[at]], drafted=1)]
        middle = time.perf_counter()
        drafter.commit(one)
        commits.append(time.perf_counter() - middle)
    many = [request] * 64
    begin = time.perf_counter()
    for _ in range(100):
        drafter.offer(many)
        drafter.propose(many, [16] * 64)
    batched = (time.perf_counter() - begin) / 6400
    return {
        "proposal_us": _mean(times),
        "proposal_p99_us": _p99(times),
        "proposal_in_a_batch_of_64_us": round(1e6 * batched, 3),
        "commit_us": _mean(commits),
    }


def _caught_up(drafter: Drafter, request: Request) -> bool:
    (offer,) = drafter.offer([request])
    return offer is not None


def _answered(suffix: SuffixDrafter, number: int, text: Sequence[int]) -> None:
    request = request_of([0], number)
    suffix.admit(request)
    request.tokens.extend(text)
    suffix.commit([Committed(request, 1, list(text), drafted=1, ended=True)])
    suffix.forget(request.id)


def _mean(times: Sequence[float]) -> float:
    return round(1e6 * float(np.mean(times)), 3)


def _p99(times: Sequence[float]) -> float:
    return round(1e6 * float(np.quantile(times, 0.99)), 3)
