"""Linear layers: plain ones, and on the CPU ones with prepacked weights.

Packed weights lie in the order in which oneDNN's kernels read them. torch's own `F.linear` reorders
weights at every call where the rows are few: bfloat16 ones always, float32 ones from two rows on.
That takes longer than the product, and makes a verify step of four rows cost two of one row.
The operators are what torch's inductor uses for frozen weights; they are not public, so
everything here falls back to `F.linear` where they are missing or refuse."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from engine.huge_pages import Extent

PANELS, K_PADDING = (64, 16), 16
"""Columns that a panel of a packed float32 weight may have, and of what its depth is a multiple."""
TOLERANCES = {torch.bfloat16: (0.02, 0.05), torch.float32: (1e-4, 1e-4)}
"""By dtype that is packed, relative and absolute: how far a product may be from `F.linear`'s."""


class Linear(Protocol):
    """x [T, in] -> [T, out]."""

    @property
    def extent(self) -> Extent:
        """Where the weight lies."""
        ...

    def __call__(self, x: Tensor, /) -> Tensor: ...


def linear(weight: Tensor, bias: Tensor | None = None) -> Linear:
    """x @ weight^T + bias for weight [out, in] and bias [out]. Keeps no reference to a weight
    that it packed."""
    if packs(weight.device, weight.dtype):
        return PackedLinear(weight, bias)
    return PlainLinear(weight, bias)


def packs(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether `linear` packs weights there, so copies them."""
    return device.type == "cpu" and dtype in TOLERANCES and can_pack(dtype)


class PlainLinear:
    """`F.linear`, on any device and dtype."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.weight = weight
        self.bias = bias

    @property
    def extent(self) -> Extent:
        return self.weight.data_ptr(), self.weight.nbytes

    def __call__(self, x: Tensor, /) -> Tensor:
        return F.linear(x, self.weight, self.bias)


class PackedLinear:
    """oneDNN's linear over a weight packed once. CPU, bfloat16 or float32. panel: columns of a
    panel in which a float32 weight lies, 0 where it lies in another order."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.packed, self.bias = _operators().pack(weight), bias
        self.outputs, self.inputs = weight.shape
        self.dtype = weight.dtype
        self._multiply = _operators().multiply
        self.extent: Extent = _operators().address(self.packed), _operators().size(self.packed)
        self.panel = _panel(weight, *self.extent) if weight.dtype == torch.float32 else 0

    def __call__(self, x: Tensor, /) -> Tensor:
        return self._multiply(x, self.packed, self.bias, "none", [], "")

    def without_bias(self, x: Tensor) -> Tensor:
        """x [T, in] @ weight^T."""
        return self._multiply(x, self.packed, None, "none", [], "")


def _panel(weight: Tensor, address: int, size: int) -> int:
    """The width W of panels [ceil(N / W)][K padded to K_PADDING][W] in which weight [N, K] lies
    packed; 0 for another order. Compared on the first and the last panel."""
    outputs, inputs = weight.shape
    depth = -(-inputs // K_PADDING) * K_PADDING
    for width in PANELS:
        panels = -(-outputs // width)
        if size != 4 * panels * width * depth:
            continue
        numbers = (ctypes.c_float * (size // 4)).from_address(address)
        packed = np.ctypeslib.as_array(numbers).reshape(panels, depth, width)
        alike = True
        for panel in {0, panels - 1}:
            rows = weight[panel * width : (panel + 1) * width].detach().numpy()
            alike = alike and np.array_equal(packed[panel, :inputs, : len(rows)], rows.T)
        if alike:
            return width
    return 0


class _Operators:
    """torch's private oneDNN operators. Raises AttributeError where this torch has none."""

    def __init__(self) -> None:
        operators: Any = torch.ops.mkldnn
        self.pack: Callable[[Tensor], Tensor] = operators._reorder_linear_weight.default
        self.multiply: Callable[..., Tensor] = operators._linear_pointwise.default
        self.address: Callable[[Tensor], int] = operators.data_ptr.default
        self.size: Callable[[Tensor], int] = operators._nbytes.default


@cache
def _operators() -> _Operators:
    return _Operators()


@cache
def can_pack(dtype: torch.dtype) -> bool:
    """Whether this torch packs weights of a dtype and computes with them what `F.linear` does."""
    x = torch.linspace(-1, 1, 2 * 48).view(2, 48).to(dtype)
    weight = torch.linspace(1, -2, 40 * 48).view(40, 48).to(dtype)
    bias = torch.linspace(0, 1, 40).to(dtype)
    rtol, atol = TOLERANCES[dtype]
    try:
        got = PackedLinear(weight, bias)(x)
    except (AttributeError, RuntimeError, TypeError):
        return False
    return torch.allclose(got.float(), F.linear(x, weight, bias).float(), rtol=rtol, atol=atol)
