"""What one row of a decoder layer needs between its matrices (numba): residual and norm, rope,
gating. A row's numbers depend on nothing but the row; sums are float32, rounded once at the end."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from engine.intrinsics import exp, load, shift, store


@njit(inline="always")
def _normed(x: Any, weight: Any, size: int, epsilon: float, out: Any, zero: Any) -> None:
    """out = x / sqrt(mean(x^2) + epsilon) * weight; out may be x."""
    total = np.float32(0)
    for d in range(size):
        value = load(x[d])
        total += value * value
    factor = np.float32(1) / np.sqrt(total / np.float32(size) + epsilon)
    for d in range(size):
        out[d] = store(load(x[d]) * factor * load(weight[d]), zero)


@njit(inline="always")
def add_norm(
    x: Any, branch: Any, has_branch: bool, scale: float, weight: Any, epsilon: float,
    size: int, total: Any, normed: Any, zero: Any,
) -> None:  # fmt: skip
    """total = x + scale * branch, or x; normed = its RMS norm. None of them overlap: a loop that
    writes what it reads would not be vectorised."""
    if has_branch:
        for d in range(size):
            total[d] = store(load(x[d]) + scale * load(branch[d]), zero)
    else:
        for d in range(size):
            total[d] = x[d]
    _normed(total, weight, size, epsilon, normed, zero)


@njit(inline="always")
def turn(
    row: Any, heads: int, norm: Any, has_norm: bool, epsilon: float, cos: Any, sin: Any,
    has_rope: bool, dim: int, scratch: Any, zero: Any,
) -> None:  # fmt: skip
    """Heads [heads, dim] of a row in place: their RMS norm and rope, either or both. cos and sin
    [dim] as in Decoder. scratch: float32 [dim]."""
    half = dim // 2
    for index in range(heads):
        head = shift(row, index * dim)
        if has_norm:
            _normed(head, norm, dim, epsilon, head, zero)
        if has_rope:
            for d in range(dim):
                scratch[d] = load(head[d])
            for d in range(half):
                a, b = scratch[d], scratch[d + half]
                head[d] = store(a * load(cos[d]) + b * load(sin[d]), zero)
                head[d + half] = store(b * load(cos[d + half]) + a * load(sin[d + half]), zero)


@njit(inline="always")
def gate(pair: Any, size: int, out: Any, zero: Any) -> None:
    """out [size] = silu(pair[:size]) * pair[size:]."""
    for d in range(size):
        x, up = load(pair[d]), load(pair[size + d])
        small = exp(-abs(x))
        top = np.float32(1) if x >= np.float32(0) else small
        out[d] = store(x * top / (np.float32(1) + small) * up, zero)
