"""Guidelines for draft lengths: what arithmetic says before anything is measured, with its sources.

Priors, bounds and explanations only: what is measured overrides them. Words: D drafted tokens, B
decoding requests, G query heads per KV head, AL tokens per step and request (1 .. 1 + D), rho the
draft cost of a token and alpha the verify cost of a drafted row, both over one plain step.

Sources. [N]: the guidelines of NVIDIA, "Co-Designing AI Models Using Speculative Decoding for
Faster LLM Inference" (2026), as summed up by others. [R]: the roofline model (Williams et al.,
2009). [O]: optimal stopping of a ratio, as in Goodput (TurboSpec, arXiv 2406.14066) and TETRIS
(2502.15197).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

TILE = 128
"""Rows of an attention tile: query heads of one KV head times tokens."""
LONGEST = 1024
"""Draft lengths beyond it are not looked at."""


@dataclass(frozen=True, slots=True)
class Peak:
    """Where a speed-up is largest: the draft length, and the factor over plain decoding."""

    length: int
    speedup: float


def knee_rows(flops_per_s: float, bytes_per_s: float, bytes_per_weight: float = 2.0) -> float:
    """Rows at which a GEMM of the target turns from memory-bound to compute-bound.

    A row costs two operations per weight, reading a weight costs its bytes once for all rows; so
    peak * bytes / (2 * bandwidth): 206 on an H200 in bfloat16. Source: [R]. ValueError when a
    number is not above 0."""
    _above_0(flops_per_s=flops_per_s, bytes_per_s=bytes_per_s, bytes_per_weight=bytes_per_weight)
    return flops_per_s * bytes_per_weight / (2.0 * bytes_per_s)


def measured_knee_rows(step_ms: float, row_ms: float) -> float:
    """The same from measured times: the rows whose own time is as long as what a step costs
    whatever its rows. step_ms: of a step with one row; infinite when a row costs nothing.
    Source: [R], with the knee read off `T(rows) = fixed + row_ms * rows`."""
    _above_0(step_ms=step_ms)
    return max(step_ms - row_ms, 0.0) / row_ms if row_ms > 0.0 else math.inf


def knee_length(knee: float, batch: int) -> int:
    """Guideline 1: the longest D of `batch` requests that keeps the GEMMs below the knee,
    B * (1 + D) <= knee; 0 when the batch fills it alone. Source: [N] 1."""
    _at_least_1(batch=batch)
    return max(0, min(int(knee / batch) - 1 if math.isfinite(knee) else LONGEST, LONGEST))


def free_attention_length(group: int, tile: int = TILE) -> float:
    """Guideline 2: where attention dominates, D = tile / G - 1 fills the tile that plain decoding
    starts, at no further cost: 31 for G = 4, 15 for G = 8, 7 for G = 16, 0 for G = 128. An upper
    bound and a tie-breaker, not the best D. Source: [N] 2."""
    _at_least_1(group=group, tile=tile)
    return max(tile / group - 1.0, 0.0)


def tiles(length: int, group: int, tile: int = TILE) -> int:
    """Attention tiles that a request takes: G * (1 + D) rows of them, rounded up.
    Source: [N] 3."""
    _at_least_1(group=group, tile=tile)
    return math.ceil(group * (1 + length) / tile)


def tile_end(length: int, group: int, tile: int = TILE) -> int:
    """Guideline 3: the longest D that takes no more tiles than `length` does. From `length` to
    there attention costs nothing more. Source: [N] 3."""
    return tiles(length, group, tile) * tile // group - 1


def snap(length: int, group: int, tile: int = TILE) -> int:
    """Guideline 3: the longest D <= `length` that leaves no tile partly empty; `length` itself
    within the first tile. A D just past an edge pays a whole tile for a few rows.
    Source: [N] 3."""
    _at_least_1(group=group, tile=tile)
    full = group * (1 + length) // tile
    return full * tile // group - 1 if full else length


def low_latency_speedup(tokens: float, length: int, rho: float) -> float:
    """Guideline 4: AL / (1 + rho * D), the speed-up where verifying costs no more than decoding,
    as at batch 1. tokens: AL, 1 .. 1 + D. Source: [N] 4. ValueError for an AL out of range."""
    if length < 0 or not 1.0 <= tokens <= 1.0 + length:
        raise ValueError(f"tokens: {tokens} per step are not 1 to 1 + D = {1 + length}")
    return tokens / (1.0 + rho * length)


def deeper_pays(survival: float, tokens: float, length: int, rho: float) -> bool:
    """The marginal form of guideline 4: one token more than D pays when its chance of being
    accepted, S_(D+1), is above AL * rho / (1 + rho * D). Source: [N] 4, [O]."""
    return survival > tokens * rho / (1.0 + rho * length)


def speedup(tokens: float, drafting: float, rows: float, alpha: float) -> float:
    """E[acc] / (T_draft / T_decode + 1 + alpha * N): the speed-up over plain decoding of a step
    that commits `tokens` per request, drafts for `drafting` plain steps' time and verifies N =
    `rows` positions more than plain decoding does. Source: [O] in linear form."""
    return tokens / (drafting + 1.0 + alpha * rows)


def ceiling(alpha: float, rho: float = 0.0) -> float:
    """What `speedup` cannot exceed however good the drafts: 1 / alpha, since every committed token
    but one was a verified row, and 1 / (alpha + rho) for a drafter whose cost grows with D;
    infinite when both are 0. Never below 1, which D = 0 gives. Source: the limit of [O] for
    D -> infinity with all accepted."""
    return max(1.0 / (alpha + rho), 1.0) if alpha + rho > 0.0 else math.inf


def expected_tokens(survival: Sequence[float]) -> float:
    """AL = 1 + S_1 + ... + S_D: the accepted tokens and the target's own. Source: [O]."""
    return 1.0 + sum(survival)


def constant_survival(rate: float, length: int) -> list[float]:
    """S_1 .. S_length when every position is accepted with the same rate: rate ** k."""
    return [rate**k for k in range(1, length + 1)]


def speedups(
    survival: Sequence[float], alpha: float, rho: float = 0.0, fixed: float = 0.0
) -> list[float]:
    """`speedup` at D = 0, 1, ... as far as `survival` goes, drafting at fixed + rho * D plain
    steps; D = 0 drafts nothing and gives 1."""
    found, tokens = [1.0], 1.0
    for length, accepted in enumerate(survival, 1):
        tokens += accepted
        found.append(speedup(tokens, fixed + rho * length, length, alpha))
    return found


def peak(survival: Sequence[float], alpha: float, rho: float = 0.0, fixed: float = 0.0) -> Peak:
    """The D where the speed-up is largest; D = 0 when nothing pays. Source: [O]."""
    found = speedups(survival, alpha, rho, fixed)
    length = max(range(len(found)), key=found.__getitem__)
    return Peak(length, found[length])


def _above_0(**numbers: float) -> None:
    for name, value in numbers.items():
        if not value > 0.0:
            raise ValueError(f"{name}: must be above 0, not {value}")


def _at_least_1(**numbers: int) -> None:
    for name, value in numbers.items():
        if value < 1:
            raise ValueError(f"{name}: must be 1 or more, not {value}")
