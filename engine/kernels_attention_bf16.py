"""Attention over bfloat16 pages as one compiled CPU function (numba), for AVX-512 BF16.

Keys and values are multiplied as engine.kernels_product multiplies weights: blocks of 64 keys are
packed into panels, which all rows that see them share. Blocks begin at multiples of 64 of the
position, and what a row does not see counts as exactly 0, so that a row's result depends neither
on the rows beside it nor on where its chunk begins."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numba import cfunc, njit, types

from engine.intrinsics import OPTIONS, as_float, call, pointer, shift, store
from engine.kernels import ITEM, MOST_SCORES, Layout
from engine.kernels_pack import DEPTH, TILE, pack_keys, pack_values
from engine.kernels_product import LANES, MOST_AT_ONCE, PANEL, multiply_panel
from engine.kernels_softmax import soften

BLOCK = PANEL
"""Keys that are multiplied at once."""


@njit
def _multiply(sums: Any, x: Any, stride: int, panel: Any, pairs: int, rows: int) -> None:
    """sums [rows, 64] = x [rows, 2 pairs] @ panel [pairs][64][2], which lies in the cache."""
    for row in range(0, rows, MOST_AT_ONCE):
        out, source, count = shift(sums, row * PANEL), shift(x, row * stride), rows - row
        if count >= 6:
            multiply_panel(out, source, stride, panel, pairs, 6, panel, 0)
        elif count == 5:
            multiply_panel(out, source, stride, panel, pairs, 5, panel, 0)
        elif count == 4:
            multiply_panel(out, source, stride, panel, pairs, 4, panel, 0)
        elif count == 3:
            multiply_panel(out, source, stride, panel, pairs, 3, panel, 0)
        elif count == 2:
            multiply_panel(out, source, stride, panel, pairs, 2, panel, 0)
        else:
            multiply_panel(out, source, stride, panel, pairs, 1, panel, 0)


@njit(inline="always")
def _write(
    row: int, count: int, start: int, pages: Any, page: int, source: Any, stride: int, store: Any,
    first: int, size: int, all_heads: int,
) -> None:  # fmt: skip
    """Numbers first .. first + size of `all_heads` of the rows to their slots."""
    for r in range(count):
        slot = pages[(start + r) // page] * page + (start + r) % page
        target, origin = shift(store, slot * all_heads + first), (row + r) * stride + first
        for d in range(size):
            target[d] = source[origin + d]


@njit(inline="always")
def _find(slots: Any, pages: Any, page: int, base: int, oldest: int, end: int, count: int) -> None:
    """The slots of `count` tokens from base on; of the nearest token in [oldest, end) instead of
    one outside, which may have no slot, or one that nothing was written to."""
    for t in range(count):
        token = min(max(base + t, oldest), end - 1)
        slots[t] = pages[token // page] * page + token % page


@njit(inline="always")
def _rounded(numbers: int) -> int:
    """So many float32, up to the end of a cache line."""
    return (numbers + 15) // 16 * 16


@njit
def _attend(
    item: Any, following: Any, page_list: Any, q: Any, q_stride: int, k: Any, k_stride: int,
    v: Any, v_stride: int, keys: Any, values: Any, out: Any, out_stride: int, scratch: int,
    scale: float, window: int, kv_heads: int, group: int, dim: int, value_dim: int, page: int,
) -> None:  # fmt: skip
    """Writes the rows' keys and values of some KV heads to the pages and attends over them.
    following: the item whose first keys are fetched towards the end."""
    row, count, start, oldest, head, heads = item[0], item[1], item[2], item[3], item[5], item[6]
    pages = shift(page_list, item[4])
    key_stride, value_stride = kv_heads * dim, kv_heads * value_dim
    _write(row, count, start, pages, page, k, k_stride, keys, head * dim, heads * dim, key_stride)
    _write(row, count, start, pages, page, v, v_stride, values,
           head * value_dim, heads * value_dim, value_stride)  # fmt: skip
    end, rows = start + count, count * group
    base = oldest // BLOCK * BLOCK
    blocks = (end - base + BLOCK - 1) // BLOCK
    depth, panels = (dim + DEPTH - 1) // DEPTH, (value_dim + PANEL - 1) // PANEL
    wide = depth * DEPTH
    # the parts of the scratch memory, see scratch_floats
    none, half = np.float32(0), np.uint16(0)
    at = scratch
    panel = pointer(at, half)
    at += 4 * PANEL * max(depth * LANES, BLOCK // 2)
    part = pointer(at, none)
    at += 4 * PANEL * rows
    slots = pointer(at, np.int64(0))
    at += 8 * BLOCK * (blocks + 1)
    queries = pointer(at, half)
    at += 2 * heads * rows * wide
    shares = pointer(at, none)
    at += 4 * _rounded(heads * rows)
    totals = pointer(at, none)
    at += 4 * heads * rows * panels * PANEL
    scores = pointer(at, none)
    at += 4 * heads * rows * blocks * BLOCK
    weights = pointer(at, half)

    _find(slots, pages, page, base, oldest, end, blocks * BLOCK)
    later, after = following[3] // BLOCK * BLOCK, shift(page_list, following[4])
    _find(shift(slots, blocks * BLOCK), after, page, later, following[3],
          following[2] + following[1], BLOCK)  # fmt: skip
    for h in range(heads):
        for r in range(rows):
            place = (row + r // group) * q_stride + ((head + h) * group + r % group) * dim
            query = shift(queries, (h * rows + r) * wide)
            for d in range(dim):
                query[d] = q[place + d]
            for d in range(dim, wide):
                query[d] = half

    size = rows * BLOCK
    for block in range(blocks):
        first = max(oldest - base - block * BLOCK, 0) // TILE * TILE
        last = min(end - base - block * BLOCK, BLOCK)
        here = shift(slots, block * BLOCK)
        soon, then = keys, shift(here, BLOCK)
        if block + 1 == blocks:
            soon, then = values, slots
        for h in range(heads):
            at_head = (head + h) * dim
            for d in range(0, dim, DEPTH):
                for tile in range(first, last, TILE):
                    pack_keys(
                        shift(panel, d * PANEL + 2 * tile), shift(keys, at_head + d), key_stride,
                        shift(here, tile), min(dim - d, DEPTH), shift(soon, at_head + d),
                        shift(then, tile),
                    )  # fmt: skip
            _multiply(shift(scores, (h * blocks + block) * size), shift(queries, h * rows * wide),
                      wide, panel, (dim + 1) // 2, rows)  # fmt: skip
    for h in range(heads):
        for r in range(rows):
            seen, line = start + 1 + r // group, (h * blocks * rows + r) * BLOCK
            shares[h * rows + r] = soften(
                shift(scores, line), shift(weights, line), size, blocks,
                max(seen - window, oldest) - base, seen - base, scale,
            )  # fmt: skip
    for n in range(heads * rows * panels * PANEL):
        totals[n] = none
    for block in range(blocks):
        first = max(oldest - base - block * BLOCK, 0) // TILE * TILE
        last = (min(end - base - block * BLOCK, BLOCK) + 1) // 2 * 2
        here = shift(slots, block * BLOCK)
        soon, then = values, shift(here, BLOCK)
        if block + 1 == blocks:
            soon = keys
        for h in range(heads):
            for p in range(panels):
                at_head = (head + h) * value_dim + p * PANEL
                for d in range(0, min(PANEL, value_dim - p * PANEL), DEPTH):
                    pack_values(
                        shift(panel, 2 * d), shift(values, at_head + d), value_stride,
                        shift(here, first), last - first, min(value_dim - p * PANEL - d, DEPTH),
                        shift(soon, at_head + d), shift(then, first),
                    )  # fmt: skip
                _multiply(part, shift(weights, (h * blocks + block) * size + first), BLOCK, panel,
                          (last - first) // 2, rows)  # fmt: skip
                for r in range(rows):
                    total = shift(totals, ((h * rows + r) * panels + p) * PANEL)
                    for d in range(PANEL):
                        total[d] += part[r * PANEL + d]
    for h in range(heads):
        for r in range(rows):
            place = (row + r // group) * out_stride + ((head + h) * group + r % group) * value_dim
            total, share = shift(totals, (h * rows + r) * panels * PANEL), shares[h * rows + r]
            for d in range(value_dim):
                out[place + d] = store(total[d] * share, half)


@cache
def compiled(layout: Layout) -> Any:
    """The function for a head layout, as kernels.compiled."""
    try:
        return _compile(layout, cache=True)
    except RuntimeError:  # numba finds no folder to keep it in
        return _compile(layout, cache=False)


def _compile(layout: Layout, *, cache: bool) -> Any:
    kv_heads, group, page = layout.kv_heads, layout.group, layout.page_size
    dim, value_dim = layout.head_dim, layout.value_dim

    @cfunc(types.void(types.CPointer(types.int64)), cache=cache, **OPTIONS)
    def body(words: Any) -> None:
        me, team, half = np.int64(0), np.int64(1), np.uint16(0)
        if words[13] != 0:
            me, team = np.int64(call(words[13])), np.int64(call(words[14]))
        items, page_list = pointer(words[10], np.int64(0)), pointer(words[11], np.int64(0))
        bounds = pointer(words[12], np.int64(0))
        scratch = words[15] + 4 * me * words[16]
        scale, window, shares = as_float(np.uint32(words[17])), words[18], words[19]
        share = me
        while share < shares:  # more than once only if OpenMP gave fewer threads than asked for
            last = bounds[share + 1] - 1
            for index in range(bounds[share], last + 1):
                _attend(
                    shift(items, index * ITEM), shift(items, min(index + 1, last) * ITEM),
                    page_list, pointer(words[0], half), words[1], pointer(words[2], half),
                    words[3], pointer(words[4], half), words[5], pointer(words[6], half),
                    pointer(words[7], half), pointer(words[8], half), words[9],
                    scratch, scale, window, kv_heads, group, dim, value_dim, page,
                )  # fmt: skip
            share += team

    return body


def scratch_floats(layout: Layout, rows: int, keys: int) -> int:
    """float32 numbers that one thread needs for chunks of at most `rows` rows over `keys`."""
    rows, keys = rows * layout.group, keys + 2 * BLOCK  # which begin and end within a block
    depth, panels = -(-layout.head_dim // DEPTH), -(-layout.value_dim // PANEL)
    panel, slots = PANEL * max(depth * LANES, BLOCK // 2), 2 * (keys + BLOCK)
    each = depth * LANES + panels * PANEL + 2  # of a row and head: query, sums and share
    scores = max(rows * keys, MOST_SCORES + rows * layout.kv_heads * 2 * BLOCK)
    return panel + rows * PANEL + slots + layout.kv_heads * rows * each + scores * 3 // 2 + 64
