"""The softmax of a row of scores, rounded to bfloat16, in AVX-512 registers (numba)."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils

from engine.intrinsics import intrinsic
from engine.kernels_product import LANES, PANEL, BFloat16, multiplies

_WORD, _WIDE, _FLOAT = ir.IntType(32), ir.IntType(64), ir.FloatType()
_FLOATS, _WORDS = ir.VectorType(_FLOAT, LANES), ir.VectorType(_WORD, LANES)
_HALVES = ir.VectorType(ir.IntType(16), LANES)
_LOG2_E, _LOWEST = 1.4426950408889634, -1.0e30
"""_LOWEST stands for scores that are not seen. Sums of it are finite: compilers may add up several
before they multiply by 0."""
_POWERS = (0.0018856499, 0.013602089, 0.07849466, 0.33973158, 0.98025814, 1.4142135)
"""Taylor's polynomial of 2^(f + 1/2) at 0, from the fifth power down. For f in [-1/2, 1/2) its
relative error is below 4e-6, a five hundredth of what rounding to bfloat16 adds."""


def _all(number: float) -> Any:
    return ir.Constant(_FLOATS, [float(np.float32(number))] * LANES)


def _copies(builder: Any, number: Any, kind: Any) -> Any:
    one = builder.insert_element(ir.Constant(kind, ir.Undefined), number, ir.Constant(_WORD, 0))
    return builder.shuffle_vector(one, ir.Constant(kind, ir.Undefined), ir.Constant(_WORDS, None))


def _function(builder: Any, name: str, result: Any, *kinds: Any) -> Any:
    return cgutils.get_or_insert_function(builder.module, ir.FunctionType(result, kinds), name)


def _greater(builder: Any, a: Any, b: Any) -> Any:
    return builder.select(builder.fcmp_ordered(">", a, b), a, b)


def _power_of_two(builder: Any, y: Any) -> Any:
    """2^y for y <= 0; 2^-126 below that."""
    y = _greater(builder, y, _all(-126.0))
    floor = _function(builder, "llvm.floor.v16f32", _FLOATS, _FLOATS)
    add = _function(builder, "llvm.fma.v16f32", _FLOATS, _FLOATS, _FLOATS, _FLOATS)
    whole = builder.call(floor, [y])
    rest = builder.fsub(builder.fsub(y, whole), _all(0.5))
    power = _all(_POWERS[0])
    for factor in _POWERS[1:]:
        power = builder.call(add, [power, rest, _all(factor)])
    bias, place = (ir.Constant(_WORDS, [number] * LANES) for number in (127, 23))
    exponent = builder.shl(builder.add(builder.fptosi(whole, _WORDS), bias), place)
    return builder.fmul(builder.bitcast(exponent, _FLOATS), power)


@intrinsic
def soften(
    typing: Any, scores: Any, weights: Any, pitch: Any, blocks: Any, begin: Any, end: Any,
    scale: Any,
) -> Any:  # fmt: skip
    """Of a row that sees the keys begin .. end - 1: weights = exp(scale * (score - the greatest
    one)), 0 for other keys. Returns the factor that makes their sum 1, or NaN if a score is not
    finite. scores: float32, key j at [j // 64 * pitch + j % 64], j < 64 * blocks; weights: the
    same of bfloat16."""
    number = types.int64
    signature = types.float32(scores, weights, number, number, number, number, types.float32)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        line, out, step, count, first, last, factor = arguments
        if not multiplies():
            return context.get_constant(types.float32, 0)
        parts = ir.Constant(_WIDE, PANEL // LANES)
        lanes = ir.Constant(_WIDE, LANES)
        lane = ir.Constant(_WORDS, list(range(LANES)))
        start = builder.udiv(first, lanes)
        stop = builder.udiv(builder.add(last, ir.Constant(_WIDE, LANES - 1)), lanes)
        scales = _copies(builder, factor, _FLOATS)
        width = _copies(builder, builder.trunc(builder.sub(last, first), _WORD), _WORDS)
        top, total, finite = (cgutils.alloca_once(builder, _FLOATS) for _ in range(3))
        builder.store(_all(_LOWEST), top)
        for each in (total, finite):
            builder.store(_all(0.0), each)

        def at(index: Any) -> Any:
            block = builder.mul(builder.udiv(index, parts), step)
            return builder.add(block, builder.mul(builder.urem(index, parts), lanes))

        def read(index: Any) -> tuple[Any, Any]:
            """Which of 16 keys are seen, and their scaled scores."""
            past = builder.trunc(builder.sub(builder.mul(index, lanes), first), _WORD)
            past = builder.add(_copies(builder, past, _WORDS), lane)
            seen = builder.icmp_unsigned("<", past, width)
            place = builder.bitcast(builder.gep(line, [at(index)]), _FLOATS.as_pointer())
            return seen, builder.fmul(builder.load(place, align=4), scales)

        def write(index: Any, halves: Any) -> None:
            place = builder.bitcast(builder.gep(out, [at(index)]), _HALVES.as_pointer())
            builder.store(halves, place, align=2)

        with cgutils.for_range_slice(builder, start, stop, ir.Constant(_WIDE, 1), _WIDE) as loop:
            seen, found = read(loop[0])
            found = builder.select(seen, found, _all(_LOWEST))
            builder.store(_greater(builder, found, builder.load(top)), top)
            lost = builder.fmul(found, _all(0.0))  # the comparison loses a NaN
            builder.store(builder.fadd(builder.load(finite), lost), finite)
        reduce = _function(builder, "llvm.vector.reduce.fmax.v16f32", _FLOAT, _FLOATS)
        greatest = _copies(builder, builder.call(reduce, [builder.load(top)]), _FLOATS)
        half = _function(
            builder, "llvm.x86.avx512bf16.cvtneps2bf16.512", ir.VectorType(BFloat16(), LANES),
            _FLOATS,
        )  # fmt: skip
        with cgutils.for_range_slice(builder, start, stop, ir.Constant(_WIDE, 1), _WIDE) as loop:
            seen, found = read(loop[0])
            below = builder.fmul(builder.fsub(found, greatest), _all(_LOG2_E))
            weight = builder.select(seen, _power_of_two(builder, below), _all(0.0))
            halves = builder.bitcast(builder.call(half, [weight]), _HALVES)
            write(loop[0], halves)
            bits = builder.shl(builder.zext(halves, _WORDS), ir.Constant(_WORDS, [16] * LANES))
            rounded = builder.bitcast(bits, _FLOATS)
            builder.store(builder.fadd(builder.load(total), rounded), total)
        none = ir.Constant(_HALVES, [0] * LANES)
        zero, everything = ir.Constant(_WIDE, 0), builder.mul(count, parts)
        for low, high in ((zero, start), (stop, everything)):
            with cgutils.for_range_slice(builder, low, high, ir.Constant(_WIDE, 1), _WIDE) as loop:
                write(loop[0], none)
        plus = _function(builder, "llvm.vector.reduce.fadd.v16f32", _FLOAT, _FLOAT, _FLOATS)
        nothing = ir.Constant(_FLOAT, 0.0)
        sums = [
            builder.call(plus, [nothing, builder.load(each)], fastmath=("reassoc",))
            for each in (total, finite)
        ]
        share = builder.fdiv(ir.Constant(_FLOAT, 1.0), sums[0])
        return builder.fadd(share, sums[1])

    return signature, generate
