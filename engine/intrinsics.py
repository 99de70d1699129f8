"""What compiled code (numba) needs below Python: pointers, bits of floats, stored bfloat16, exp."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic as _intrinsic

intrinsic: Any = _intrinsic  # its first parameter, the typing context, is not the caller's
OPTIONS: dict[str, Any] = {
    "fastmath": {"contract", "reassoc", "nsz", "arcp"},
    "error_model": "numpy",
}
"""How the kernels are compiled: NaN and infinities keep their meaning."""
_LOG2_E = np.float32(1.4426950408889634)


@intrinsic
def pointer(typing: Any, address: Any, like: Any) -> Any:
    """The address as a pointer to elements of the type of `like`."""
    signature = types.CPointer(like)(types.int64, like)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

    return signature, generate


@intrinsic
def shift(typing: Any, pointer: Any, count: Any) -> Any:
    """The pointer moved by count elements."""
    signature = pointer(pointer, types.int64)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.gep(arguments[0], [arguments[1]])

    return signature, generate


@intrinsic
def as_float(typing: Any, value: Any) -> Any:
    """uint32 as the float32 that it holds the bits of."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.FloatType())

    return types.float32(types.uint32), generate


@intrinsic
def call(typing: Any, address: Any) -> Any:
    """The int that a C function without arguments returns; no value if it is void."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = ir.FunctionType(ir.IntType(32), []).as_pointer()
        return builder.call(builder.inttoptr(arguments[0], kind), [])

    return types.int32(types.int64), generate


@intrinsic
def load(typing: Any, stored: Any) -> Any:
    """A stored number as float32: float32 itself, or uint16 that holds the bits of a bfloat16."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if stored == types.float32:
            return arguments[0]
        wide = ir.IntType(32)
        bits = builder.shl(builder.zext(arguments[0], wide), ir.Constant(wide, 16))
        return builder.bitcast(bits, ir.FloatType())

    return types.float32(stored), generate


@intrinsic
def store(typing: Any, value: Any, like: Any) -> Any:
    """float32 as it is stored: the inverse of load, rounded to the nearest, ties to even."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if like == types.float32:
            return arguments[0]
        wide, half = ir.IntType(32), ir.Constant(ir.IntType(32), 16)
        bits = builder.bitcast(arguments[0], wide)
        odd = builder.and_(builder.lshr(bits, half), ir.Constant(wide, 1))
        rounded = builder.add(bits, builder.add(odd, ir.Constant(wide, 0x7FFF)))
        return builder.trunc(builder.lshr(rounded, half), ir.IntType(16))

    return like(types.float32, like), generate


@njit(inline="always")
def exp(x: float) -> float:
    """exp(x) for x <= 0, relative error below 3e-7: 2^n from the exponent's bits times a
    polynomial for 2^f, f in [0, 1) (Taylor at 1/2, degree 7)."""
    y = max(x * _LOG2_E, np.float32(-126.0))
    n = np.floor(y)
    f = (y - n) - np.float32(0.5)
    p = np.float32(2.1570623e-05)
    p = p * f + np.float32(0.00021783882)
    p = p * f + np.float32(0.0018856499)
    p = p * f + np.float32(0.013602089)
    p = p * f + np.float32(0.07849466)
    p = p * f + np.float32(0.33973158)
    p = p * f + np.float32(0.98025814)
    p = p * f + np.float32(1.4142135)
    return as_float(np.uint32((np.int32(n) + np.int32(127)) << np.int32(23))) * p
