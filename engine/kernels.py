"""Attention over pages as one compiled CPU function (numba): no gathers, no call per request.

Compiled once per head layout for this machine's CPU and kept on disk by numba. Every thread of
torch's own OpenMP team runs `body` and takes its share of the heads, so that no second set of
threads competes with torch's."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numba import cfunc, njit, types

from engine import kernels_attention_float
from engine.intrinsics import OPTIONS, as_float, call, exp, load, pointer, shift, store

ITEM = 7
"""int64 words of a work item: first row, rows, position of the first row, oldest visible
position of it, offset of the chunk's pages in the page list, first KV head, KV heads."""
MOST_SCORES = 1 << 16
"""Scores that an item of several KV heads has at most, so that they stay in the cache."""
WORDS, TENSORS = 21, 10
"""int64 words of the arguments of one call, in the order in which `body` reads them; the first
TENSORS of them are addresses and row strides of tensors."""

_WORDS = types.CPointer(types.int64)
_LOWEST = np.float32(-3.0e38)


@dataclass(frozen=True)
class Layout:
    """What the compiled code takes as constants. bfloat16: of queries, keys, values and output,
    which are float32 otherwise. Sums are float32."""

    kv_heads: int
    group: int
    head_dim: int
    value_dim: int
    page_size: int
    bfloat16: bool


@njit(inline="always")
def score(
    queries: Any, keys: Any, pages: Any, begin: int, end: int, rows: int,
    tile: Any, scores: Any, width: int, page: int, stride: int, dim: int,
) -> None:  # fmt: skip
    """scores[r, j - begin] = queries[r] @ key of the token j, in [begin, end)."""
    token = begin
    while token < end:
        slot, count = token % page, min(page - token % page, end - token)
        base = shift(keys, (pages[token // page] * page + slot) * stride)
        for j in range(count):
            for d in range(dim):
                tile[j * dim + d] = load(base[j * stride + d])
        for r in range(rows):
            query, out = shift(queries, r * dim), shift(scores, r * width + token - begin)
            for j in range(count):
                total = np.float32(0)
                for d in range(dim):
                    total += query[d] * tile[j * dim + d]
                out[j] = total
        token += count


@njit(inline="always")
def _soften(scores: Any, rows: int, first: int, window: int, width: int, group: int) -> None:
    """Softmax of each row over the keys it sees: `first` keys for the first token's rows and
    one more for each next, of those the last `window`. The rest becomes 0."""
    for r in range(rows):
        line = shift(scores, r * width)
        seen = first + r // group
        hidden = max(0, seen - window)
        top, all_finite = _LOWEST, np.float32(0)
        for j in range(hidden, seen):
            top = max(top, line[j])
            all_finite += line[j] * np.float32(0)  # max and exp lose a NaN
        total = np.float32(0)
        for j in range(hidden, seen):
            weight = exp(line[j] - top)
            line[j] = weight
            total += weight
        share = np.float32(1) / total + all_finite
        for j in range(hidden, seen):
            line[j] *= share
        for j in range(hidden):
            line[j] = np.float32(0)
        for j in range(seen, width):
            line[j] = np.float32(0)


@njit(inline="always")
def mix(
    weights: Any, values: Any, pages: Any, begin: int, end: int, rows: int,
    tile: Any, sums: Any, width: int, page: int, stride: int, dim: int, size: int,
) -> None:  # fmt: skip
    """sums[r] = weights[r] @ values of the tokens [begin, end). size is dim, but no constant: a
    loop of constant length would be unrolled and not vectorised."""
    for at in range(rows * dim):
        sums[at] = np.float32(0)
    token = begin
    while token < end:
        slot, count = token % page, min(page - token % page, end - token)
        base = shift(values, (pages[token // page] * page + slot) * stride)
        for j in range(count):
            for d in range(dim):
                tile[j * dim + d] = load(base[j * stride + d])
        padded = (count + 3) // 4 * 4
        for at in range(count * dim, padded * dim):
            tile[at] = np.float32(0)
        for r in range(rows):
            total, weight = shift(sums, r * dim), shift(weights, r * width)
            weight = shift(weight, token - begin)
            for j in range(0, padded, 4):
                a = shift(tile, j * dim)
                b, c = shift(a, dim), shift(a, 2 * dim)
                e = shift(a, 3 * dim)
                u, v, w, x = weight[j], weight[j + 1], weight[j + 2], weight[j + 3]
                for d in range(size):
                    total[d] += u * a[d] + v * b[d] + w * c[d] + x * e[d]
        token += count


@njit(inline="always")
def _attend(
    item: Any, page_list: Any, q: Any, q_stride: int, k: Any, k_stride: int, v: Any,
    v_stride: int, keys: Any, values: Any, out: Any, out_stride: int, scratch: Any,
    scale: float, window: int, kv_heads: int, group: int, dim: int, value_dim: int, size: int,
    page: int, zero: Any, head: int, score: Any, mix: Any,
) -> None:  # fmt: skip
    """Writes the rows' keys and values of one KV head to the pages and attends over them."""
    row, count, start, oldest = item[0], item[1], item[2], item[3]
    pages = shift(page_list, item[4])
    key_stride, value_stride = kv_heads * dim, kv_heads * value_dim
    for r in range(count):
        slot = pages[(start + r) // page] * page + (start + r) % page
        key, source = shift(keys, slot * key_stride + head * dim), (row + r) * k_stride
        for d in range(dim):
            key[d] = k[source + head * dim + d]
        value = shift(values, slot * value_stride + head * value_dim)
        source = (row + r) * v_stride
        for d in range(value_dim):
            value[d] = v[source + head * value_dim + d]
    end, rows = start + count, count * group
    width = (end - oldest + page + 3) // 4 * 4
    queries = shift(scratch, (page + 4) * max(dim, value_dim))
    sums = shift(queries, rows * dim)
    weights = shift(sums, rows * value_dim)
    for r in range(rows):
        place = (row + r // group) * q_stride + (head * group + r % group) * dim
        for d in range(dim):
            queries[r * dim + d] = load(q[place + d]) * scale
    head_keys, head_values = shift(keys, head * dim), shift(values, head * value_dim)
    score(
        queries, head_keys, pages, oldest, end, rows,
        scratch, weights, width, page, key_stride, dim,
    )  # fmt: skip
    _soften(weights, rows, start + 1 - oldest, window, width, group)
    mix(
        weights, head_values, pages, oldest, end, rows,
        scratch, sums, width, page, value_stride, value_dim, size,
    )  # fmt: skip
    for r in range(rows):
        place = (row + r // group) * out_stride + (head * group + r % group) * value_dim
        for d in range(value_dim):
            out[place + d] = store(sums[r * value_dim + d], zero)


@cache
def compiled(layout: Layout) -> Any:
    """The function for a head layout, with `address` and `ctypes`. Its argument is the address of
    WORDS int64 words."""
    try:
        return _compile(layout, cache=True)
    except RuntimeError:  # numba finds no folder to keep it in
        return _compile(layout, cache=False)


def _compile(layout: Layout, *, cache: bool) -> Any:
    kv_heads, group, page = layout.kv_heads, layout.group, layout.page_size
    dim, value_dim = layout.head_dim, layout.value_dim
    zero: Any = np.uint16(0) if layout.bfloat16 else np.float32(0)
    scores: Any = score
    mixes: Any = mix
    if not layout.bfloat16 and kernels_attention_float.fits(dim, value_dim, page):
        scores, mixes = kernels_attention_float.score, kernels_attention_float.mix

    @cfunc(types.void(_WORDS), cache=cache, **OPTIONS)
    def body(words: Any) -> None:
        me, team = np.int64(0), np.int64(1)
        if words[13] != 0:
            me, team = np.int64(call(words[13])), np.int64(call(words[14]))
        items, page_list = pointer(words[10], np.int64(0)), pointer(words[11], np.int64(0))
        bounds = pointer(words[12], np.int64(0))
        scratch = shift(pointer(words[15], np.float32(0)), me * words[16])
        scale, window, shares = as_float(np.uint32(words[17])), words[18], words[19]
        share = me
        while share < shares:  # more than once only if OpenMP gave fewer threads than asked for
            for index in range(bounds[share], bounds[share + 1]):
                item = shift(items, index * ITEM)
                for head in range(item[5], item[5] + item[6]):
                    _attend(
                        item, page_list,
                        pointer(words[0], zero), words[1], pointer(words[2], zero), words[3],
                        pointer(words[4], zero), words[5], pointer(words[6], zero),
                        pointer(words[7], zero), pointer(words[8], zero), words[9], scratch, scale,
                        window, kv_heads, group, dim, value_dim, words[20], page, zero, head,
                        scores, mixes,
                    )  # fmt: skip
            share += team

    return body


def scratch_floats(layout: Layout, rows: int, keys: int) -> int:
    """float32 numbers that one thread needs for chunks of at most `rows` rows over `keys`."""
    wide = max(layout.head_dim, layout.value_dim)
    fixed = (layout.page_size + 4) * wide
    each = layout.head_dim + layout.value_dim + keys + layout.page_size + 4
    return fixed + rows * layout.group * each + 16
