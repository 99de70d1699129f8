"""What a model looks like to the pages and the attention."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""(layer, q [T, Hq, D], k [T, Hkv, D], v [T, Hkv, D]) -> [T, Hq * D]; writes k and v to pages."""


@dataclass(frozen=True)
class Shape:
    """Sizes that the pages and the attention need."""

    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    hidden: int
    vocabulary: int
    context_length: int
