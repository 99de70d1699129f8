"""A few bfloat16 rows times a packed matrix (numba): what oneDNN computes, bit by bit.

A call of oneDNN takes 11 us, even for one row. It packs a weight [N, K] for AVX-512 as panels
[ceil(N / 64)][K padded to 32, / 2][64][2], and multiplies with VDPBF16PS in the order of K. So does
this code, on the same memory."""

from __future__ import annotations

from typing import Any

import llvmlite.binding as llvm
import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils

from engine.intrinsics import intrinsic, load, shift, store

PANEL = 64
"""Columns of a panel."""
LANES = 16
"""float32 numbers of an AVX-512 register."""
K_PADDING, K_BLOCK = 32, 512
"""Inputs that a panel's depth is a multiple of, and that are summed before the next are begun."""
MOST_AT_ONCE = 6
"""Rows that share one pass over a panel: 6 x 4 sums, 4 weights and a row's pair are registers."""
AHEAD = 32
"""How many pairs ahead weights are fetched, for three rows and more: the multiplications of
fewer leave the processor's own look-ahead enough room."""


class BFloat16(ir.types.Type):
    """llvmlite has no name for LLVM's bfloat."""

    intrinsic_name = "bf16"

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BFloat16)

    def __hash__(self) -> int:
        return hash(BFloat16)


def multiplies() -> bool:
    """Whether this machine has VDPBF16PS."""
    return bool(llvm.get_host_cpu_features().get("avx512bf16", False))


def packed_bytes(outputs: int, inputs: int) -> int:
    """Bytes of a weight [outputs, inputs] that oneDNN packed as `product` reads it."""
    columns = -(-outputs // PANEL) * PANEL
    return 2 * columns * (-(-inputs // K_PADDING) * K_PADDING)


@intrinsic
def multiply_panel(
    typing: Any, sums: Any, x: Any, stride: Any, weight: Any, pairs: Any, rows: Any, later: Any,
    level: Any,
) -> Any:  # fmt: skip
    """sums [rows, 64] = x [rows, 2 pairs] @ panel. x, weight: pointers to bfloat16; stride: from
    row to row of x. later: a panel that is fetched meanwhile. Literals: rows, and the level of
    cache that `later` goes to, 0 for not at all."""
    if not all(isinstance(each, types.IntegerLiteral) for each in (rows, level)):
        return None
    count, where = rows.literal_value, level.literal_value
    number = types.int64
    signature = types.void(sums, x, number, weight, number, rows, later, level)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        out, source, step, panel, end, _, soon, _ = arguments
        if not multiplies():
            return context.get_dummy_value()
        wide, word, byte = ir.IntType(64), ir.IntType(32), ir.IntType(8)
        floats, pair = ir.VectorType(ir.FloatType(), LANES), ir.VectorType(word, LANES)
        halves = ir.VectorType(BFloat16(), 2 * LANES)
        dot = cgutils.get_or_insert_function(
            builder.module,
            ir.FunctionType(floats, [floats, halves, halves]),
            "llvm.x86.avx512bf16.dpbf16ps.512",
        )
        blocks = PANEL // LANES
        zero = ir.Constant(floats, [0.0] * LANES)
        totals = [cgutils.alloca_once(builder, floats) for _ in range(count * blocks)]
        for total in totals:
            builder.store(zero, total)
        weights, soon = (builder.bitcast(each, pair.as_pointer()) for each in (panel, soon))
        lines = [
            builder.bitcast(
                builder.gep(source, [builder.mul(step, ir.Constant(wide, row))]),
                word.as_pointer(),
            )
            for row in range(count)
        ]
        fetch = cgutils.get_or_insert_function(
            builder.module,
            ir.FunctionType(ir.VoidType(), [byte.as_pointer(), word, word, word]),
            "llvm.prefetch.p0",
        )
        everywhere = ir.Constant(ir.VectorType(word, LANES), [0] * LANES)
        with cgutils.for_range(builder, end, intp=wide) as loop:
            first = builder.mul(loop.index, ir.Constant(wide, blocks))
            loaded = []
            for block in range(blocks):
                place = builder.gep(weights, [builder.add(first, ir.Constant(wide, block))])
                loaded.append(builder.bitcast(builder.load(place, align=4), halves))
                if where:
                    later = builder.gep(soon, [builder.add(first, ir.Constant(wide, block))])
                    how = [ir.Constant(word, each) for each in (0, 4 - where, 1)]  # read, data
                    builder.call(fetch, [builder.bitcast(later, byte.as_pointer()), *how])
            for row, line in enumerate(lines):
                both = builder.load(builder.gep(line, [loop.index]), align=2)
                one = builder.insert_element(
                    ir.Constant(pair, ir.Undefined), both, ir.Constant(word, 0)
                )
                copies = builder.shuffle_vector(one, ir.Constant(pair, ir.Undefined), everywhere)
                factor = builder.bitcast(copies, halves)
                for block in range(blocks):
                    total = totals[row * blocks + block]
                    result = builder.call(dot, [builder.load(total), factor, loaded[block]])
                    builder.store(result, total)
        target = builder.bitcast(out, floats.as_pointer())
        for index, total in enumerate(totals):
            place = builder.gep(target, [ir.Constant(wide, index)])
            builder.store(builder.load(total), place, align=4)
        return context.get_dummy_value()

    return signature, generate


@njit
def _first_rows(
    sums: Any, x: Any, stride: int, weight: Any, pairs: int, count: int
) -> None:  # fmt: skip
    """multiply_panel of the 1 to MOST_AT_ONCE rows that read a panel from memory."""
    later = shift(weight, AHEAD * 2 * PANEL)
    if count == 6:
        multiply_panel(sums, x, stride, weight, pairs, 6, later, 1)
    elif count == 5:
        multiply_panel(sums, x, stride, weight, pairs, 5, later, 1)
    elif count == 4:
        multiply_panel(sums, x, stride, weight, pairs, 4, later, 1)
    elif count == 3:
        multiply_panel(sums, x, stride, weight, pairs, 3, later, 1)
    elif count == 2:
        multiply_panel(sums, x, stride, weight, pairs, 2, later, 0)
    else:
        multiply_panel(sums, x, stride, weight, pairs, 1, later, 0)


@njit
def _more_rows(
    sums: Any, x: Any, stride: int, weight: Any, pairs: int, count: int, later: Any
) -> None:  # fmt: skip
    """multiply_panel of rows that find the panel in the cache, while `later` is fetched."""
    if count == 6:
        multiply_panel(sums, x, stride, weight, pairs, 6, later, 2)
    elif count == 5:
        multiply_panel(sums, x, stride, weight, pairs, 5, later, 2)
    elif count == 4:
        multiply_panel(sums, x, stride, weight, pairs, 4, later, 2)
    elif count == 3:
        multiply_panel(sums, x, stride, weight, pairs, 3, later, 2)
    elif count == 2:
        multiply_panel(sums, x, stride, weight, pairs, 2, later, 2)
    else:
        multiply_panel(sums, x, stride, weight, pairs, 1, later, 2)


@njit(inline="always")
def product(
    x: Any, rows: int, inputs: int, weight: Any, bias: Any, has_bias: bool, out: Any,
    outputs: int, width: int, sums: Any, me: int, team: int,
) -> None:  # fmt: skip
    """out [rows, outputs] = x [rows, inputs] @ weight^T + bias; this thread's panels of it. width
    is PANEL. sums: float32 [2, MOST_AT_ONCE, PANEL] of the thread's own."""
    panels = (outputs + PANEL - 1) // PANEL
    size = (inputs + K_PADDING - 1) // K_PADDING * K_PADDING * PANEL
    more = shift(sums, MOST_AT_ONCE * PANEL)
    for panel in range(panels * me // team, panels * (me + 1) // team):
        part, first = shift(weight, panel * size), panel * PANEL
        width = min(PANEL, outputs - first)
        for row in range(0, rows, MOST_AT_ONCE):
            source, count = shift(x, row * inputs), min(MOST_AT_ONCE, rows - row)
            for begin in range(0, inputs, K_BLOCK):
                pairs = min(inputs - begin, K_BLOCK) // 2
                target = sums if begin == 0 else more
                here, block = shift(source, begin), shift(part, begin * PANEL)
                if row == 0:
                    _first_rows(target, here, inputs, block, pairs, count)
                else:
                    _more_rows(target, here, inputs, block, pairs, count, shift(block, size))
                if begin > 0:
                    for n in range(count * PANEL):
                        sums[n] += more[n]
            for r in range(count):
                line, results = shift(sums, r * PANEL), shift(out, (row + r) * outputs + first)
                if has_bias:
                    for n in range(width):
                        line[n] += load(bias[first + n])
                for n in range(width):
                    results[n] = store(line[n], np.uint16(0))
