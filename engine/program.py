"""The compiled code of a decoder layer outside its attention: a list of operations (numba).

Every thread of torch's OpenMP team runs the list and takes its share of each operation; after
each they wait for one another. One list in place of ten calls of torch saves more time at few
rows than the operations take."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numba import cfunc, types

from engine.intrinsics import OPTIONS, as_float, call, pointer, shift
from engine.kernels_float import LINE, MOST_SUMS, float_product
from engine.kernels_product import MOST_AT_ONCE, PANEL, product
from engine.kernels_rows import add_norm, gate, turn

HEADER, STEP = 8, 12
"""int64 words: of a list's header (address of the operations, how many, address and size of the
threads' scratch, addresses of omp_get_thread_num, omp_get_num_threads and GOMP_barrier, which are
0 for a single thread), and of an operation (its name, its rows, then what `_run` reads)."""
ADD_NORM, PRODUCT, TURN, GATE = range(4)


def scratch_floats(head_dim: int) -> int:
    """float32 numbers that one thread needs."""
    return max(2 * MOST_AT_ONCE * PANEL, 2 * MOST_SUMS * LINE, head_dim) + 16


@cache
def compiled(bfloat16: bool) -> Any:
    """The function, with `address` and `ctypes`. Its argument is the address of a header.
    bfloat16: of all tensors, which are float32 otherwise."""
    try:
        return _compile(bfloat16, cache=True)
    except RuntimeError:  # numba finds no folder to keep it in
        return _compile(bfloat16, cache=False)


def _compile(bfloat16: bool, *, cache: bool) -> Any:
    zero: Any = np.uint16(0) if bfloat16 else np.float32(0)
    single, whole = np.float32(0), np.int64(0)
    multiply: Any = product if bfloat16 else float_product

    @cfunc(types.void(types.CPointer(types.int64)), cache=cache, **OPTIONS)
    def body(header: Any) -> None:
        me: Any = np.int64(0)
        team: Any = np.int64(1)
        if header[4] != 0:
            me, team = np.int64(call(header[4])), np.int64(call(header[5]))
        scratch = shift(pointer(header[2], single), me * header[3])
        steps = pointer(header[0], whole)
        for index in range(header[1]):
            step = shift(steps, index * STEP)
            name, rows = step[0], step[1]
            if index > 0 and team > 1:
                call(header[6])
            if name == PRODUCT:
                # x, inputs, weight, bias, out, outputs, columns of a panel
                multiply(
                    pointer(step[2], zero), rows, step[3], pointer(step[4], zero),
                    pointer(step[5], zero), step[5] != 0, pointer(step[6], zero), step[7],
                    step[8], scratch, me, team,
                )  # fmt: skip
                continue
            for row in range(rows * me // team, rows * (me + 1) // team):
                if name == ADD_NORM:
                    # x, branch, scale, weight, epsilon, size, total, normed
                    at = row * step[7]
                    add_norm(
                        shift(pointer(step[2], zero), at), shift(pointer(step[3], zero), at),
                        step[3] != 0, as_float(np.uint32(step[4])), pointer(step[5], zero),
                        as_float(np.uint32(step[6])), step[7],
                        shift(pointer(step[8], zero), at), shift(pointer(step[9], zero), at), zero,
                    )  # fmt: skip
                elif name == TURN:
                    # x, from row to row of x, heads, norm, epsilon, positions, cos, sin, dim
                    at = pointer(step[7], whole)[row] * step[10]
                    turn(
                        shift(pointer(step[2], zero), row * step[3]), step[4],
                        pointer(step[5], zero), step[5] != 0, as_float(np.uint32(step[6])),
                        shift(pointer(step[8], zero), at), shift(pointer(step[9], zero), at),
                        step[8] != 0, step[10], scratch, zero,
                    )  # fmt: skip
                elif name == GATE:
                    # pair, size, out
                    gate(
                        shift(pointer(step[2], zero), row * 2 * step[3]), step[3],
                        shift(pointer(step[4], zero), row * step[3]), zero,
                    )  # fmt: skip

    return body
