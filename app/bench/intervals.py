"""Statistics of a benchmark: quantiles, and speed-ups with paired bootstrap intervals."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import NormalDist
from typing import NamedTuple

import msgspec
import numpy as np

RESAMPLES = 2000
LEVEL = 0.95
LEAST_PAIRS = 5
"""With fewer pairs there is a ratio, but no interval."""
BLOCK = 1 << 22
"""Resampled pairs drawn at a time: bounds the memory."""


class Pair(NamedTuple):
    """One prompt in both arms, its repeats together. Milliseconds of request time."""

    tokens: float
    ms: float
    base_tokens: float
    base_ms: float


class Ratio(msgspec.Struct, frozen=True):
    """A ratio of speeds over `pairs` prompts; low and high: its 95 % interval, None with too few
    pairs."""

    value: float
    low: float | None
    high: float | None
    pairs: int


def quantiles(values: Iterable[float]) -> dict[str, float]:
    """p50, p90 and p99 by the nearest rank; empty without values."""
    ranked = sorted(values)
    return {f"p{p}": nearest_rank(ranked, p) for p in (50, 90, 99)} if ranked else {}


def nearest_rank(ranked: Sequence[float], percent: int) -> float:
    """The smallest of the sorted values that at least `percent` % of them do not exceed."""
    return ranked[max(0, -(-len(ranked) * percent // 100) - 1)]


def speedup(pairs: Sequence[Pair], *, seed: int = 0, resamples: int = RESAMPLES) -> Ratio | None:
    """The ratio of tokens per millisecond of request time, arm over base, and its interval; None
    when an arm has no token or no time.

    In a closed loop the time that all requests take together is concurrency x wall time (Little's
    law), so this is the ratio of throughputs, and prompts can be resampled at any concurrency.
    The interval is the percentile bootstrap over prompts, in logarithms, widened about the estimate
    by t / z and sqrt(n / (n - 1)), since plain percentiles are too narrow for few pairs
    (Hesterberg 2015, "What teachers should know about the bootstrap", section 3.4)."""
    table = np.array(pairs, dtype=float).reshape(-1, 4)
    sums = table.sum(axis=0)
    if not (sums > 0).all():
        return None
    value = float(log_ratio(sums))
    count = len(table)
    if count < LEAST_PAIRS:
        return Ratio(math.exp(value), None, None, count)
    logs = resampled(table, seed, resamples)
    tail = 50 * (1 - LEVEL)
    low, high = (float(edge) for edge in np.percentile(logs, (tail, 100 - tail)))
    wider = widening(count)
    return Ratio(
        math.exp(value),
        math.exp(value + wider * (min(low, value) - value)),
        math.exp(value + wider * (max(high, value) - value)),
        count,
    )


def resampled(table: np.ndarray, seed: int, resamples: int) -> np.ndarray:
    """Log ratios [resamples] of sums over pairs [n, 4] drawn with replacement. Draws in which an
    arm has no token are left out."""
    random = np.random.default_rng(seed)
    count = len(table)
    even = np.full(count, 1 / count)
    block = max(1, BLOCK // count)
    found: list[np.ndarray] = []
    for start in range(0, resamples, block):
        times = random.multinomial(count, even, size=min(block, resamples - start))
        sums = times @ table
        found.append(log_ratio(sums[(sums > 0).all(axis=1)]))
    return np.concatenate(found)


def log_ratio(sums: np.ndarray) -> np.ndarray:
    """log(tokens / ms / (base tokens / base ms)) of sums [..., 4]."""
    logs = np.log(sums)
    return logs[..., 0] - logs[..., 1] - logs[..., 2] + logs[..., 3]


def widening(count: int) -> float:
    """t quantile over normal quantile for count - 1 degrees of freedom (Cornish-Fisher, good to 1 %
    from 4 degrees on), times sqrt(n / (n - 1))."""
    z = NormalDist().inv_cdf((1 + LEVEL) / 2)
    free = count - 1
    t = (
        z
        + (z**3 + z) / (4 * free)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * free**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * free**3)
    )
    return t / z * math.sqrt(count / free)
