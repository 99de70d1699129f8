"""What enters a head's layer: the token's embedding and a hidden state, which may be several."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.decoder import Decoder
from engine.linear import Linear
from engine.norm import Norm


@dataclass(frozen=True)
class PlainEntry:
    """project(cat(embedding_norm(e), hidden_norm(h))) with the projection cut in two, so that
    nothing is copied together. of_embedding and of_hidden: [T, d] -> [T, d]. None: no norm."""

    embedding_norm: Norm | None
    hidden_norm: Norm | None
    of_embedding: Linear
    of_hidden: Linear

    def __call__(self, embeddings: Tensor, hidden: Tensor) -> Tensor:
        if self.embedding_norm is not None:
            embeddings = self.embedding_norm(embeddings)
        if self.hidden_norm is not None:
            hidden = self.hidden_norm(hidden)
        return self.of_embedding(embeddings) + self.of_hidden(hidden)


Fuse = Callable[[Tensor], Tensor]
"""Taps [T, k * d] -> hidden [T, d]."""


@dataclass(frozen=True)
class PlainFusion:
    """project(cat(norm(tap) for each tap)). norm: with a weight of ones, since the taps' own
    weights are folded into the projection; None: no norm. project: [T, k * d] -> [T, d]."""

    taps: int
    norm: Norm | None
    project: Linear

    def __call__(self, features: Tensor) -> Tensor:
        if self.norm is not None:
            parts = features.reshape(-1, features.shape[1] // self.taps)
            features = self.norm(parts).reshape(features.shape)
        return self.project(features)


def keys_and_values(decoder: Decoder, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values [T, Hkv, D] of the decoder's first layer for its input x [T, d]."""
    layer, shape = decoder.layers[0], decoder.shape
    heads = layer.qkv(layer.input_norm(x)).view(len(x), -1, shape.head_dim)
    _, k, v = heads.split([shape.heads, shape.kv_heads, shape.kv_heads], dim=1)
    if layer.k_norm is not None:
        k = layer.k_norm(k)
    if layer.rope:
        cos = decoder.cos.index_select(0, positions).unsqueeze(1)
        sin = decoder.sin.index_select(0, positions).unsqueeze(1)
        k = torch.addcmul(k * cos, k.roll(shape.head_dim // 2, -1), sin)
    return k, v
