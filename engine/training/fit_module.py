"""What a trained drafter is made of: parameters between the target's own embedding and head."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.training.fit_batches import Rows
from engine.training.fit_loss import Taught, soft_cross_entropy


@dataclass(frozen=True)
class Sizes:
    """Of its layers: those of the target. taps: how many hidden states a head reads."""

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    epsilon: float
    theta: float
    taps: int

    def layer(self, name: str) -> dict[str, tuple[int, int]]:
        """The matrices of one decoder layer."""
        d, inner = self.hidden, self.intermediate
        wide, narrow = self.heads * self.head_dim, self.kv_heads * self.head_dim
        return {
            f"{name}.q_proj": (wide, d),
            f"{name}.k_proj": (narrow, d),
            f"{name}.v_proj": (narrow, d),
            f"{name}.o_proj": (d, wide),
            f"{name}.gate_proj": (inner, d),
            f"{name}.up_proj": (inner, d),
            f"{name}.down_proj": (d, inner),
        }


class Trained(nn.Module):
    """The target's embedding and the rows of its head stay as they are; only `shapes` is trained.

    embedding [V, d]; head [n, d]; columns: int64 [V], see soft_cross_entropy. start: values of
    parameters by name; the others begin at random, norms at one."""

    def __init__(
        self,
        sizes: Sizes,
        shapes: Mapping[str, tuple[int, ...]],
        embedding: Tensor,
        head: Tensor,
        columns: Tensor,
        start: Mapping[str, Tensor],
    ) -> None:
        super().__init__()
        self.sizes = sizes
        self.embedding: Tensor
        self.head: Tensor
        self.columns: Tensor
        self.register_buffer("embedding", embedding)
        self.register_buffer("head", head)
        self.register_buffer("columns", columns)
        self.weights = nn.ParameterDict()
        for name, shape in shapes.items():
            if name in start:
                value = start[name].float().clone()
            else:
                value = torch.ones(shape) if len(shape) == 1 else torch.randn(shape) * 0.02
            self.weights[_key(name)] = nn.Parameter(value)

    def tensors(self) -> dict[str, Tensor]:
        """The parameters under their names in a checkpoint."""
        return {
            f"{name.replace('/', '.')}.weight": value.detach()
            for name, value in self.weights.items()
        }

    def take(self, tensors: Mapping[str, Tensor]) -> None:
        """Set the parameters to tensors that have their names in a checkpoint."""
        for name, value in tensors.items():
            self.weights[_key(name.removesuffix(".weight"))].copy_(value)

    def linear(self, name: str, x: Tensor) -> Tensor:
        return F.linear(x, self.weights[_key(name)])

    def norm(self, name: str, x: Tensor) -> Tensor:
        """x itself where there is no such norm."""
        key = _key(name)
        if key not in self.weights:
            return x
        return F.rms_norm(x.float(), (x.shape[-1],), self.weights[key], self.sizes.epsilon)

    def split(self, name: str, x: Tensor, heads: int) -> Tensor:
        """[B, T, d] -> [B, heads, T, D]."""
        out = self.linear(name, x)
        return out.unflatten(-1, (heads, self.sizes.head_dim)).transpose(1, 2)

    def gated(self, layer: str, x: Tensor) -> Tensor:
        """The layer's MLP of its normed input."""
        inner = F.silu(self.linear(f"{layer}.gate_proj", x)) * self.linear(f"{layer}.up_proj", x)
        return self.linear(f"{layer}.down_proj", inner)

    def taught(self, out: Tensor, rows: Rows, step: int) -> tuple[Taught, Tensor, Tensor]:
        """For drafted position `step` of outputs [B, Q, d]: the loss of the rows whose text is not
        over, their outputs [N, d], and where in rows.features, flattened, lies what the target saw
        at the predicted token."""
        width = out.shape[1]
        places = rows.teacher[:, step : step + width].reshape(-1)
        kept = (places >= 0).nonzero().squeeze(1)
        told = places.index_select(0, kept)
        outputs = out.reshape(-1, self.sizes.hidden).index_select(0, kept)
        taught = soft_cross_entropy(
            F.linear(outputs, self.head),
            rows.top_ids.index_select(0, told),
            rows.top_logprobs.index_select(0, told),
            self.columns,
        )
        text, place = kept // width, kept % width
        return taught, outputs, text * rows.features.shape[1] + rows.context + place + step + 1


def turned(x: Tensor, first: int, theta: float) -> Tensor:
    """Rotary embedding (by halves, as Llama) of x [B, H, T, D], rows first, first + 1, .."""
    half = x.shape[-1] // 2
    powers = torch.arange(half, device=x.device) / half
    angles = torch.arange(first, first + x.shape[2], device=x.device)[:, None] * theta**-powers
    cos, sin = angles.cos(), angles.sin()
    left, right = x[..., :half], x[..., half:]
    return torch.cat((left * cos - right * sin, right * cos + left * sin), -1).to(x.dtype)


def _key(name: str) -> str:
    """A module's parameter may have no dot in its name."""
    return name.replace(".", "/")
