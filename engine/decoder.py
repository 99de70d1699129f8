"""Lean fused decoder for dense Llama-like families: fused qkv and gate_up, rows packed flat."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.shape import Attend, Shape


@dataclass(frozen=True)
class Layer:
    """Weights of one decoder layer. qkv [(Hq + 2 Hkv) D, d], gate_up [2 f, d]."""

    input_norm: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    q_norm: Tensor | None
    k_norm: Tensor | None
    output: Tensor
    output_bias: Tensor | None
    mlp_norm: Tensor
    gate_up: Tensor
    gate_up_bias: Tensor | None
    down: Tensor
    down_bias: Tensor | None
    rope: bool


@dataclass(frozen=True)
class Scales:
    """Constants of Granite-like models; 1.0 elsewhere. attention is the softmax scale."""

    attention: float
    embedding: float = 1.0
    residual: float = 1.0
    logits: float = 1.0


@dataclass(frozen=True)
class Decoder:
    """embedding [V, d]; head [V, d]; cos and sin [context, D], sin with the sign of
    rotate-half folded in, so that rope is `x * cos + roll(x, D / 2) * sin`."""

    shape: Shape
    scales: Scales
    epsilon: float
    embedding: Tensor
    layers: tuple[Layer, ...]
    norm: Tensor
    head: Tensor
    cos: Tensor
    sin: Tensor

    def forward(self, ids: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """ids and positions int64 [T] -> hidden states after the final norm, [T, d]."""
        shape, epsilon = self.shape, self.epsilon
        width = (shape.hidden,)
        rotated = shape.heads + shape.kv_heads
        cos = self.cos.index_select(0, positions).unsqueeze(1)
        sin = self.sin.index_select(0, positions).unsqueeze(1)
        x = F.embedding(ids, self.embedding)
        if self.scales.embedding != 1.0:
            x = x * self.scales.embedding
        for index, layer in enumerate(self.layers):
            normed = F.rms_norm(x, width, layer.input_norm, epsilon)
            qkv = F.linear(normed, layer.qkv, layer.qkv_bias).view(
                -1, rotated + shape.kv_heads, shape.head_dim
            )
            qk, v = qkv[:, :rotated], qkv[:, rotated:]
            if layer.q_norm is not None and layer.k_norm is not None:
                head = (shape.head_dim,)
                qk = torch.cat(
                    (
                        F.rms_norm(qk[:, : shape.heads], head, layer.q_norm, epsilon),
                        F.rms_norm(qk[:, shape.heads :], head, layer.k_norm, epsilon),
                    ),
                    dim=1,
                )
            if layer.rope:
                qk = torch.addcmul(qk * cos, qk.roll(shape.head_dim // 2, -1), sin)
            attended = attend(index, qk[:, : shape.heads], qk[:, shape.heads :], v)
            x = self._add(x, F.linear(attended, layer.output, layer.output_bias))
            normed = F.rms_norm(x, width, layer.mlp_norm, epsilon)
            gate, up = F.linear(normed, layer.gate_up, layer.gate_up_bias).chunk(2, dim=-1)
            x = self._add(x, F.linear(F.silu(gate) * up, layer.down, layer.down_bias))
        return F.rms_norm(x, width, self.norm, epsilon)

    def logits(self, hidden: Tensor) -> Tensor:
        """Hidden states [R, d] -> float32 logits [R, V]."""
        logits = F.linear(hidden, self.head).float()
        return logits / self.scales.logits if self.scales.logits != 1.0 else logits

    def _add(self, x: Tensor, branch: Tensor) -> Tensor:
        scale = self.scales.residual
        return x + branch if scale == 1.0 else torch.add(x, branch, alpha=scale)
