"""What a model looks like to the pages and the attention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor


class Attend(Protocol):
    """One step's attention: writes k and v to the pages, then attends over them."""

    def __call__(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None = None, /
    ) -> Tensor:
        """q [T, Hq, Dk], k [T, Hkv, Dk], v [T, Hkv, Dv], sinks [Hq] -> [T, Hq * Dv]."""
        ...


@dataclass(frozen=True)
class AttentionKind:
    """How one layer attends; layers of equal kind share a plan.

    head_dim: size of a query or key head. value_dim: size of a value head. scale: factor of
    q @ k. window: how many last keys a row sees, its own included; None sees all. softcap: c of
    c * tanh(score / c), before the mask. sinks: one learned logit per query head joins the
    softmax and takes no value."""

    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int
    scale: float
    window: int | None = None
    softcap: float | None = None
    sinks: bool = False


@dataclass(frozen=True)
class Shape:
    """Sizes that the pages and the attention need. heads, kv_heads and head_dim are the first
    layer's; kinds holds every layer's, by default plain ones of scale head_dim ** -0.5."""

    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    hidden: int
    vocabulary: int
    context_length: int
    kinds: tuple[AttentionKind, ...] = ()

    def __post_init__(self) -> None:
        if not self.kinds:
            dim = self.head_dim
            plain = AttentionKind(self.heads, self.kv_heads, dim, dim, dim**-0.5)
            object.__setattr__(self, "kinds", (plain,) * self.layers)
        assert len(self.kinds) == self.layers


class Model(Protocol):
    """A loaded target or draft model: the lean decoder or a transformers module."""

    @property
    def shape(self) -> Shape: ...

    def forward(self, ids: Tensor, positions: Tensor, attend: Attend, /) -> Tensor:
        """ids and positions int64 [T] -> hidden states after the final norm, [T, d]."""
        ...

    def logits(self, hidden: Tensor, /) -> Tensor:
        """Hidden states [R, d] -> float32 logits [R, V]."""
        ...


def weight_bytes(model: Model) -> int:
    """Weights that a pass over one row reads, about: all that it multiplies by; of a transformers
    module all that it has. 0 when the model does not tell."""
    module = getattr(model, "model", None)
    if module is not None:
        return sum(weight.nbytes for weight in module.parameters())
    return sum(linear.extent[1] for linear in getattr(model, "linears", ()))


@runtime_checkable
class Tapped(Model, Protocol):
    """A model whose hidden states can be read on the way."""

    def features(
        self, ids: Tensor, positions: Tensor, attend: Attend, layers: Sequence[int], /
    ) -> tuple[Tensor, Tensor]:
        """As forward, and [T, len(layers) * d]: the residual stream entering each of the layers; 0
        to the number of layers, which means the hidden states after the final norm."""
        ...
