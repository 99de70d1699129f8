"""Scores and mixtures of float32 attention in vector registers (numba).

A number is summed in one order, whatever the rows and keys beside it, so that a row's result does
not depend on how many share a step."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils

from engine.intrinsics import intrinsic, load, shift
from engine.kernels_float import LANES, MOST_AT_ONCE, PART, add_rows

PAIRS = (([0, 8, 2, 10, 4, 12, 6, 14], [1, 9, 3, 11, 5, 13, 7, 15]),
         ([0, 1, 8, 9, 4, 5, 12, 13], [2, 3, 10, 11, 6, 7, 14, 15]),
         ([0, 1, 2, 3, 8, 9, 10, 11], [4, 5, 6, 7, 12, 13, 14, 15]))  # fmt: skip
"""Lanes of two vectors that are added in each of three rounds: eight vectors become their sums."""


def fits(dim: int, value_dim: int, page_size: int) -> bool:
    """Whether heads of these sizes fill vectors, and a row's scratch has room for one vector of
    scores behind the last key."""
    return dim % LANES == 0 and value_dim % PART == 0 and page_size >= LANES


@intrinsic
def _dots(typing: Any, out: Any, query: Any, keys: Any, stride: Any, dim: Any) -> Any:
    """out [LANES] = query [dim] @ each of LANES keys, which lie `stride` apart."""
    number = types.int64
    signature = types.void(out, query, keys, number, number)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        target, source, first, step, size = arguments
        wide = ir.IntType(64)
        floats = ir.VectorType(ir.FloatType(), LANES)
        multiply_add = cgutils.get_or_insert_function(
            builder.module,
            ir.FunctionType(floats, [floats, floats, floats]),
            f"llvm.fmuladd.v{LANES}f32",
        )

        def vector(pointer: Any, at: Any) -> Any:
            place = builder.bitcast(builder.gep(pointer, [at]), floats.as_pointer())
            return builder.load(place, align=4)

        totals = [cgutils.alloca_once(builder, floats) for _ in range(LANES)]
        for total in totals:
            builder.store(ir.Constant(floats, [0.0] * LANES), total)
        lines = [
            builder.gep(first, [builder.mul(step, ir.Constant(wide, key))]) for key in range(LANES)
        ]
        rounds = builder.udiv(size, ir.Constant(wide, LANES))
        with cgutils.for_range(builder, rounds, intp=wide) as loop:
            at = builder.mul(loop.index, ir.Constant(wide, LANES))
            factor = vector(source, at)
            for line, total in zip(lines, totals, strict=True):
                terms = [factor, vector(line, at), builder.load(total)]
                builder.store(builder.call(multiply_add, terms), total)
        sums = [builder.load(total) for total in totals]
        for pair in PAIRS:
            evens, odds = (ir.Constant(ir.VectorType(ir.IntType(32), LANES), one) for one in pair)
            sums = [
                builder.fadd(
                    builder.shuffle_vector(one, other, evens),
                    builder.shuffle_vector(one, other, odds),
                )
                for one, other in zip(sums[::2], sums[1::2], strict=True)
            ]
        place = builder.bitcast(target, floats.as_pointer())
        builder.store(sums[0], place, align=4)
        return context.get_dummy_value()

    return signature, generate


@njit
def score(
    queries: Any, keys: Any, pages: Any, begin: int, end: int, rows: int,
    tile: Any, scores: Any, width: int, page: int, stride: int, dim: int,
) -> None:  # fmt: skip
    """As engine.kernels.score. What is written behind the last key is within a row's width."""
    token = begin
    while token < end:
        slot, count = token % page, min(page - token % page, end - token)
        base = shift(keys, (pages[token // page] * page + slot) * stride)
        for first in range(0, count, LANES):
            some, step = shift(base, first * stride), stride
            if count - first < LANES:  # what lies behind may be no memory of ours
                for j in range(LANES):
                    for d in range(dim):
                        there = first + j < count
                        tile[j * dim + d] = load(some[j * stride + d]) if there else np.float32(0)
                some, step = tile, dim
            line = shift(scores, token - begin + first)
            for r in range(rows):
                _dots(shift(line, r * width), shift(queries, r * dim), some, step, dim)
        token += count


@njit
def mix(
    weights: Any, values: Any, pages: Any, begin: int, end: int, rows: int,
    tile: Any, sums: Any, width: int, page: int, stride: int, dim: int, size: int,
) -> None:  # fmt: skip
    """As engine.kernels.mix."""
    for at in range(rows * dim):
        sums[at] = np.float32(0)
    token = begin
    while token < end:
        slot, count = token % page, min(page - token % page, end - token)
        base = shift(values, (pages[token // page] * page + slot) * stride)
        for row in range(0, rows, MOST_AT_ONCE):
            few, done = min(MOST_AT_ONCE, rows - row), 0
            shares = shift(weights, row * width + token - begin)
            while done < dim:
                done += add_rows(
                    shift(sums, row * dim + done), dim, shares, width, shift(base, done), stride,
                    count, few, dim - done,
                )  # fmt: skip
        token += count
