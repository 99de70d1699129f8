"""Lean fused decoder for dense Llama-like families: fused qkv and gate_up, rows packed flat."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.linear import Linear
from engine.norm import Norm
from engine.shape import Attend, Shape


@dataclass(frozen=True)
class Layer:
    """What one decoder layer computes with. qkv: [T, d] -> [T, (Hq + 2 Hkv) D]; gate_up:
    [T, d] -> [T, 2 f]; q_norm and k_norm: over D."""

    input_norm: Norm
    qkv: Linear
    q_norm: Norm | None
    k_norm: Norm | None
    output: Linear
    mlp_norm: Norm
    gate_up: Linear
    down: Linear
    rope: bool


@dataclass(frozen=True)
class Scales:
    """Constants of Granite-like models; 1.0 elsewhere. attention is the softmax scale."""

    attention: float
    embedding: float = 1.0
    residual: float = 1.0
    logits: float = 1.0


class Taps:
    """Collects the residual stream [T, d] as it enters each of the layers; the index behind the
    last layer means the states after the final norm."""

    def __init__(self, layers: Sequence[int]) -> None:
        self._layers = tuple(layers)
        self._taken: dict[int, Tensor] = {}

    def wants(self, layer: int) -> bool:
        return layer in self._layers

    def take(self, layer: int, x: Tensor) -> None:
        self._taken[layer] = x

    def features(self) -> Tensor:
        """[T, k * d] in the order of the layers asked for."""
        taken = [self._taken[layer] for layer in self._layers]
        return taken[0] if len(taken) == 1 else torch.cat(taken, dim=-1)


class Compiled(Protocol):
    """Compiled code for a decoder's layers and products, see engine.layers_cpu."""

    def forward(
        self, x: Tensor, positions: Tensor, attend: Attend, taps: Taps | None = None, /
    ) -> Tensor: ...

    def multiply(self, linear: Linear, x: Tensor, /) -> Tensor: ...


@dataclass(frozen=True)
class Decoder:
    """embedding [V, d]; head: [R, d] -> [R, V]; cos and sin [context, D], sin with the sign of
    rotate-half folded in, so that rope is `x * cos + roll(x, D / 2) * sin`. compiled: computes
    the layers in place of torch. tied: the head is the embedding."""

    shape: Shape
    scales: Scales
    embedding: Tensor
    layers: tuple[Layer, ...]
    norm: Norm
    head: Linear
    cos: Tensor
    sin: Tensor
    compiled: Compiled | None = None
    tied: bool = False

    @property
    def linears(self) -> list[Linear]:
        """Everything that multiplies by a matrix."""
        of_layers = [
            each
            for layer in self.layers
            for each in (layer.qkv, layer.output, layer.gate_up, layer.down)
        ]
        return [*of_layers, self.head]

    def forward(self, ids: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """ids and positions int64 [T] -> hidden states after the final norm, [T, d]."""
        return self._run(ids, positions, attend, None)

    def features(
        self, ids: Tensor, positions: Tensor, attend: Attend, layers: Sequence[int]
    ) -> tuple[Tensor, Tensor]:
        """As forward, and [T, len(layers) * d]: the residual stream entering each of the layers, 0
        to the number of layers, which means the hidden states after the final norm."""
        taps = Taps(layers)
        hidden = self._run(ids, positions, attend, taps)
        if taps.wants(self.shape.layers):
            taps.take(self.shape.layers, hidden)
        return hidden, taps.features()

    def _run(self, ids: Tensor, positions: Tensor, attend: Attend, taps: Taps | None) -> Tensor:
        x = F.embedding(ids, self.embedding)
        if self.scales.embedding != 1.0:
            x = x * self.scales.embedding
        return self.run(x, positions, attend, taps)

    def run(self, x: Tensor, positions: Tensor, attend: Attend, taps: Taps | None = None) -> Tensor:
        """What enters the first layer [T, d] -> hidden states after the final norm, [T, d]."""
        if self.compiled is not None:
            return self.compiled.forward(x, positions, attend, taps)
        shape = self.shape
        heads, rotated = shape.heads, shape.heads + shape.kv_heads
        half = shape.head_dim // 2
        cos = self.cos.index_select(0, positions).unsqueeze(1)
        sin = self.sin.index_select(0, positions).unsqueeze(1)
        for index, layer in enumerate(self.layers):
            if taps is not None and taps.wants(index):
                taps.take(index, x)
            qkv = layer.qkv(layer.input_norm(x)).view(-1, rotated + shape.kv_heads, shape.head_dim)
            qk, v = qkv.narrow(1, 0, rotated), qkv.narrow(1, rotated, shape.kv_heads)
            if layer.q_norm is not None and layer.k_norm is not None:
                q, k = layer.q_norm(qk[:, :heads]), layer.k_norm(qk[:, heads:])
                qk = torch.cat((q, k), dim=1)
            if layer.rope:
                qk = torch.addcmul(qk * cos, qk.roll(half, -1), sin)
            q, k = qk.narrow(1, 0, heads), qk.narrow(1, heads, shape.kv_heads)
            x = self._add(x, layer.output(attend(index, q, k, v)))
            gate, up = layer.gate_up(layer.mlp_norm(x)).chunk(2, dim=-1)
            x = self._add(x, layer.down(F.silu(gate).mul_(up)))
        return self.norm(x)

    def logits(self, hidden: Tensor) -> Tensor:
        """Hidden states [R, d] -> float32 logits [R, V]."""
        head, compiled = self.head, self.compiled
        logits = (head(hidden) if compiled is None else compiled.multiply(head, hidden)).float()
        return logits / self.scales.logits if self.scales.logits != 1.0 else logits

    def _add(self, x: Tensor, branch: Tensor) -> Tensor:
        scale = self.scales.residual
        return x + branch if scale == 1.0 else torch.add(x, branch, alpha=scale)
