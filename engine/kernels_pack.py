"""Keys and values of the pages as the panels that kernels_product multiplies by (numba)."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from engine.intrinsics import intrinsic
from engine.kernels_product import LANES, PANEL, multiplies

TILE = LANES
"""Keys that are packed at once."""
DEPTH = 2 * LANES
"""bfloat16 numbers of an AVX-512 register."""

_WORD, _WIDE, _HALF = ir.IntType(32), ir.IntType(64), ir.IntType(16)
_PAIRS, _HALVES = ir.VectorType(_WORD, LANES), ir.VectorType(_HALF, DEPTH)
_MASK = ir.VectorType(ir.IntType(1), DEPTH)


def _shuffled(builder: Any, a: Any, b: Any, lanes: list[int]) -> Any:
    """The numbers of a (0 ..) and of b (after a's) at `lanes`."""
    return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(_WORD, len(lanes)), lanes))


def _transposed(builder: Any, rows: list[Any]) -> list[Any]:
    """The columns of 16 vectors of 16 int32, by shuffles within and then between the four quarters
    of a register."""
    quarters = range(0, LANES, 4)
    singles = [[q + n // 2 + half + n % 2 * LANES for q in quarters for n in range(4)]
               for half in (0, 2)]  # fmt: skip
    doubles = [[q + half + n % 2 + n // 2 * LANES for q in quarters for n in range(4)]
               for half in (0, 2)]  # fmt: skip
    mixed: list[Any] = []  # 4 g + c: in each quarter q, column 4 q + c of the rows 4 g .. 4 g + 3
    for g in quarters:
        low, high = ([_shuffled(builder, rows[g + n], rows[g + n + 1], singles[half])
                      for n in (0, 2)] for half in (0, 1))  # fmt: skip
        for pair in (low, high):
            mixed += [_shuffled(builder, pair[0], pair[1], doubles[half]) for half in (0, 1)]
    halves = [[4 * q + n for q in (p, p + 2, p + 4, p + 6) for n in range(4)] for p in (0, 1)]
    columns: list[Any] = [None] * LANES
    for c in range(4):
        a, b, d, e = (mixed[4 * g + c] for g in range(4))
        for p in (0, 1):
            upper, lower = _shuffled(builder, a, b, halves[p]), _shuffled(builder, d, e, halves[p])
            for half in (0, 1):
                columns[4 * (p + 2 * half) + c] = _shuffled(builder, upper, lower, halves[half])
    return columns


def _read(builder: Any, place: Any, mask: Any) -> Any:
    """Up to 32 bfloat16 as 16 int32; 0 where the mask has no bit, without touching memory."""
    read = cgutils.get_or_insert_function(
        builder.module,
        ir.FunctionType(_HALVES, [place.type, _WORD, _MASK, _HALVES]),
        "llvm.masked.load.v32i16.p0",
    )
    align = ir.Constant(_WORD, 2)
    return builder.call(read, [place, align, mask, ir.Constant(_HALVES, [0] * DEPTH)])


def _fetch(builder: Any, place: Any) -> None:
    """Ask for the memory at the pointer, to be in the cache soon."""
    byte = ir.IntType(8).as_pointer()
    fetch = cgutils.get_or_insert_function(
        builder.module,
        ir.FunctionType(ir.VoidType(), [byte, _WORD, _WORD, _WORD]),
        "llvm.prefetch.p0",
    )
    how = [ir.Constant(_WORD, each) for each in (0, 3, 1)]  # read, first level, data
    builder.call(fetch, [builder.bitcast(place, byte), *how])


def _place(builder: Any, base: Any, slots: Any, index: Any, stride: Any) -> Any:
    slot = builder.load(builder.gep(slots, [index]))
    return builder.gep(base, [builder.mul(slot, stride)])


@intrinsic
def pack_keys(
    typing: Any, panel: Any, keys: Any, stride: Any, slots: Any, width: Any, later: Any, then: Any
) -> Any:
    """`width` <= 32 numbers of the keys at 16 slots, keys + slots[i] * stride, to
    panel [16 pairs][64][2]: its columns 0 .. 15, the rest of the 16 pairs 0. Of the lines later +
    then[i] * stride the cache is told."""
    signature = types.void(panel, keys, types.int64, slots, types.int64, later, then)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        out, base, step, places, count, soon, soon_places = arguments
        if not multiplies():
            return context.get_dummy_value()
        mask = _mask(builder, count)
        rows: list[Any] = []
        for index in range(TILE):
            which = ir.Constant(_WIDE, index)
            _fetch(builder, _place(builder, soon, soon_places, which, step))
            found = _read(builder, _place(builder, base, places, which, step), mask)
            rows.append(builder.bitcast(found, _PAIRS))
        target = builder.bitcast(out, _PAIRS.as_pointer())
        for index, column in enumerate(_transposed(builder, rows)):
            place = builder.gep(target, [ir.Constant(_WIDE, index * PANEL // LANES)])
            builder.store(column, place, align=4)
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def pack_values(
    typing: Any, panel: Any, values: Any, stride: Any, slots: Any, count: Any, width: Any,
    later: Any, then: Any,
) -> Any:  # fmt: skip
    """`width` <= 32 numbers of the values at an even count of slots, as keys of pack_keys, to
    panel [count / 2][64][2]: its columns 0 .. 31, those from `width` on 0."""
    number = types.int64
    signature = types.void(panel, values, number, slots, number, number, later, then)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        out, base, step, places, tokens, size, soon, soon_places = arguments
        if not multiplies():
            return context.get_dummy_value()
        mask = _mask(builder, size)
        target = builder.bitcast(out, _HALVES.as_pointer())
        two = ir.Constant(_WIDE, 2)
        with cgutils.for_range(builder, builder.udiv(tokens, two), intp=_WIDE) as loop:
            pair: list[Any] = []
            for index in range(2):
                which = builder.add(builder.mul(loop.index, two), ir.Constant(_WIDE, index))
                _fetch(builder, _place(builder, soon, soon_places, which, step))
                pair.append(_read(builder, _place(builder, base, places, which, step), mask))
            row = builder.mul(loop.index, ir.Constant(_WIDE, 2 * PANEL // DEPTH))
            for index in range(2):
                first = index * LANES
                lanes = [first + n // 2 + n % 2 * DEPTH for n in range(DEPTH)]
                both = _shuffled(builder, pair[0], pair[1], lanes)
                place = builder.gep(target, [builder.add(row, ir.Constant(_WIDE, index))])
                builder.store(both, place, align=4)
        return context.get_dummy_value()

    return signature, generate


def _mask(builder: Any, count: Any) -> Any:
    """The lowest `count` <= 32 lanes."""
    wide = builder.sub(builder.shl(ir.Constant(_WIDE, 1), count), ir.Constant(_WIDE, 1))
    return builder.bitcast(builder.trunc(wide, _WORD), _MASK)
