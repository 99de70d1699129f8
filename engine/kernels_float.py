"""A few float32 rows times a packed matrix (numba): on AVX2 what oneDNN computes, bit by bit.

oneDNN packs a weight [N, K] as panels [ceil(N / W)][K padded to 16][W], see engine.linear. This
code reads the same memory, as one operation of a list: a call of oneDNN for each would take longer.
A number is summed in the order of K, whatever the rows and columns beside it."""

from __future__ import annotations

from typing import Any

import llvmlite.binding as llvm
import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils

from engine.intrinsics import intrinsic, shift
from engine.linear import K_PADDING

LANES = 8
"""float32 numbers of a vector: an AVX2 register."""
PART = 2 * LANES
"""Columns that are shared out among threads."""
K_BLOCK, K_SUM = 128, 1024
"""Inputs after which the next rows and columns take their turn, so that 64 columns of these stay in
the first cache; and inputs that are summed before the next are begun."""
MOST_AT_ONCE = 6
"""Rows that share one pass: 6 x 2 sums, 2 weights and a row's number are registers."""
MOST_SUMS = 66
"""Rows whose sums are kept meanwhile."""
LINE = 64
"""Sums of a row."""


def multiplies() -> bool:
    """Whether this machine multiplies and adds vectors in one instruction."""
    features = llvm.get_host_cpu_features()
    return bool(features.get("fma", False) or features.get("neon", False))


@intrinsic
def _add_product(
    typing: Any, sums: Any, line: Any, x: Any, stride: Any, weight: Any, width: Any, depth: Any,
    rows: Any, vectors: Any,
) -> Any:  # fmt: skip
    """sums [rows, vectors * LANES] += x [rows, depth] @ weight, which lies [depth, width]. line and
    stride: from row to row of the sums and of x. Literals: rows and vectors."""
    if not all(isinstance(each, types.IntegerLiteral) for each in (rows, vectors)):
        return None
    count, blocks = rows.literal_value, vectors.literal_value
    number = types.int64
    signature = types.void(sums, number, x, number, weight, number, number, rows, vectors)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        out, apart, source, step, panel, wide_by, end, _, _ = arguments
        wide = ir.IntType(64)
        floats = ir.VectorType(ir.FloatType(), LANES)
        multiply_add = cgutils.get_or_insert_function(
            builder.module,
            ir.FunctionType(floats, [floats, floats, floats]),
            f"llvm.fmuladd.v{LANES}f32",
        )
        targets = [
            builder.gep(out, [builder.mul(apart, ir.Constant(wide, row))]) for row in range(count)
        ]
        places = [
            builder.bitcast(
                builder.gep(target, [ir.Constant(wide, block * LANES)]), floats.as_pointer()
            )
            for target in targets
            for block in range(blocks)
        ]
        totals = [cgutils.alloca_once(builder, floats) for _ in places]
        for place, total in zip(places, totals, strict=True):
            builder.store(builder.load(place, align=4), total)
        lines = [
            builder.gep(source, [builder.mul(step, ir.Constant(wide, row))]) for row in range(count)
        ]
        nothing = ir.Constant(floats, ir.Undefined)
        everywhere = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
        with cgutils.for_range(builder, end, intp=wide) as loop:
            begin = builder.gep(panel, [builder.mul(loop.index, wide_by)])
            loaded = []
            for block in range(blocks):
                place = builder.gep(begin, [ir.Constant(wide, block * LANES)])
                place = builder.bitcast(place, floats.as_pointer())
                loaded.append(builder.load(place, align=4))
            for row, line in enumerate(lines):
                value = builder.load(builder.gep(line, [loop.index]), align=4)
                one = builder.insert_element(nothing, value, ir.Constant(ir.IntType(32), 0))
                factor = builder.shuffle_vector(one, nothing, everywhere)
                for block in range(blocks):
                    total = totals[row * blocks + block]
                    terms = [factor, loaded[block], builder.load(total)]
                    builder.store(builder.call(multiply_add, terms), total)
        for place, total in zip(places, totals, strict=True):
            builder.store(builder.load(total), place, align=4)
        return context.get_dummy_value()

    return signature, generate


@njit
def add_rows(
    sums: Any, line: int, x: Any, stride: int, weight: Any, width: int, depth: int, count: int,
    columns: int,
) -> int:  # fmt: skip
    """_add_product of 1 to MOST_AT_ONCE rows and as many of the columns as suit these. Returns how
    many."""
    if count == 1 and columns >= 8 * LANES:
        _add_product(sums, line, x, stride, weight, width, depth, 1, 8)
        return 8 * LANES
    if count <= 2 and columns >= 4 * LANES:
        if count == 1:
            _add_product(sums, line, x, stride, weight, width, depth, 1, 4)
        else:
            _add_product(sums, line, x, stride, weight, width, depth, 2, 4)
        return 4 * LANES
    if count == 6:
        _add_product(sums, line, x, stride, weight, width, depth, 6, 2)
    elif count == 5:
        _add_product(sums, line, x, stride, weight, width, depth, 5, 2)
    elif count == 4:
        _add_product(sums, line, x, stride, weight, width, depth, 4, 2)
    elif count == 3:
        _add_product(sums, line, x, stride, weight, width, depth, 3, 2)
    elif count == 2:
        _add_product(sums, line, x, stride, weight, width, depth, 2, 2)
    else:
        _add_product(sums, line, x, stride, weight, width, depth, 1, 2)
    return PART


@njit(inline="always")
def float_product(
    x: Any, rows: int, inputs: int, weight: Any, bias: Any, has_bias: bool, out: Any,
    outputs: int, width: int, sums: Any, me: int, team: int,
) -> None:  # fmt: skip
    """out [rows, outputs] = x [rows, inputs] @ weight^T + bias; this thread's columns of it. width:
    columns of a panel. sums: float32 [2, MOST_SUMS, LINE] of the thread's own."""
    more = shift(sums, MOST_SUMS * LINE)
    depth = (inputs + K_PADDING - 1) // K_PADDING * K_PADDING
    parts = (outputs + PART - 1) // PART
    column, end = parts * me // team * PART, parts * (me + 1) // team * PART
    while column < end:
        panel, inside = column // width, column % width
        columns = min(width - inside, end - column)
        place = shift(weight, panel * depth * width + inside)
        kept = min(columns, outputs - column)
        for top in range(0, rows, MOST_SUMS):
            count = min(MOST_SUMS, rows - top)
            groups = (count + MOST_AT_ONCE - 1) // MOST_AT_ONCE
            each = (count + groups - 1) // groups  # groups of one size: 4 + 4 rather than 6 + 2
            for begin in range(0, inputs, K_BLOCK):
                target = sums if begin < K_SUM else more
                if begin % K_SUM == 0:
                    for n in range(count * LINE):
                        target[n] = np.float32(0)
                deep = min(K_BLOCK, inputs - begin)
                block = shift(place, begin * width)
                for row in range(0, count, each):
                    few = min(each, count - row)
                    source = shift(x, (top + row) * inputs + begin)
                    done = 0
                    while done < columns:
                        done += add_rows(
                            shift(target, row * LINE + done), LINE, source, inputs,
                            shift(block, done), width, deep, few, columns - done,
                        )  # fmt: skip
                if begin >= K_SUM and ((begin + deep) % K_SUM == 0 or begin + deep == inputs):
                    for n in range(count * LINE):
                        sums[n] += more[n]
            for row in range(count):
                line = shift(sums, row * LINE)
                results = shift(out, (top + row) * outputs + column)
                if has_bias:
                    for n in range(kept):
                        results[n] = line[n] + bias[column + n]
                else:
                    for n in range(kept):
                        results[n] = line[n]
        column += columns
