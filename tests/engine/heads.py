"""What tests of multi-token prediction heads share: pages in plain torch, tiny targets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from engine.decoder import Decoder, Scales
from engine.dense import Dense
from engine.device import Device
from engine.fusing import build
from engine.loading import Loaded
from engine.mtp.head import Head
from engine.shape import Attend, Model, Shape

FLOAT = Device(torch.device("cpu"), torch.float32)
HALF = Device(torch.device("cpu"), torch.bfloat16)


class Slots:
    """Keys and values of a head by slot; keys before `first` are not seen."""

    def __init__(self, shape: Shape, first: int = 1) -> None:
        self.first = first
        self._kinds = shape.kinds
        self.keys = [
            torch.full((64, kind.kv_heads, kind.head_dim), torch.nan) for kind in shape.kinds
        ]
        self.values = [
            torch.full((64, kind.kv_heads, kind.value_dim), torch.nan) for kind in shape.kinds
        ]
        self.writes = 0

    def at(self, positions: Tensor) -> Attend:
        """The attention of rows at these slots."""

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None = None, /):
            self.store(layer, k, v, positions)
            kind = self._kinds[layer]
            group = kind.heads // kind.kv_heads
            rows: list[Tensor] = []
            for row, position in enumerate(positions.tolist()):
                keys = self.keys[layer][self.first : position + 1].repeat_interleave(group, 1)
                values = self.values[layer][self.first : position + 1].repeat_interleave(group, 1)
                scores = torch.einsum("hd,shd->hs", q[row].float(), keys) * kind.scale
                rows.append(torch.einsum("hs,shd->hd", scores.softmax(-1), values).flatten())
            return torch.stack(rows).to(q.dtype)

        return attend

    def store(self, layer: int, k: Tensor, v: Tensor, positions: Tensor) -> None:
        self.keys[layer][positions] = k.float()
        self.values[layer][positions] = v.float()
        self.writes += len(positions)


def run(head: Head, slots: Slots, ids: Tensor, hidden: Tensor, first: int = 1) -> Tensor:
    """The head's rows of tokens ids [T] at slots first.. with the states hidden [T, d] before."""
    positions = torch.arange(first, first + len(ids))
    return head.forward(ids, hidden, positions, slots.at(positions))


def write(head: Head, slots: Slots, ids: Tensor, hidden: Tensor, first: int = 1) -> None:
    positions = torch.arange(first, first + len(ids))
    head.write(ids, hidden, positions, lambda layer, k, v: slots.store(layer, k, v, positions))


def causal(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """q [T, Hq, D], k [T, Hkv, D], v [T, Hkv, Dv] -> [T, Hq * Dv]: row i sees rows 0..i."""
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = torch.einsum("qhd,khd->hqk", q, k) * scale
    scores = scores.masked_fill(torch.ones(len(q), len(q)).triu(1).bool(), -torch.inf)
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1), v).flatten(1)


def turned(x: Tensor, positions: Tensor, theta: float, dim: int | None = None) -> Tensor:
    """x [T, H, D] with its first `dim` numbers rotated, number i with i + dim / 2."""
    dim = dim or x.shape[-1]
    angles = positions[:, None, None] * theta ** -(torch.arange(0, dim, 2) / dim)
    a, b, rest = x[..., : dim // 2], x[..., dim // 2 : dim], x[..., dim:]
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((a * cos - b * sin, b * cos + a * sin, rest), dim=-1)


def rms(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + epsilon) * weight


class DictWeights:
    """engine.dense.Weights of a dict."""

    mapped = False

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        self._tensors = tensors

    def get(self, name: str) -> Tensor | None:
        return self._tensors.get(name)

    def release(self, prefix: str) -> None:
        pass


def tiny_decoder(
    device: Device = FLOAT, *, hidden: int = 32, layers: int = 2, vocabulary: int = 61,
    context: int = 64, tied: bool = True,
) -> Decoder:  # fmt: skip
    """A lean decoder of random weights."""
    torch.manual_seed(1)
    heads, kv_heads, dim, inner = 4, 2, 8, 48
    tensors = {
        "model.embed_tokens.weight": torch.randn(vocabulary, hidden),
        "model.norm.weight": torch.rand(hidden) + 0.5,
    }
    if not tied:
        tensors["lm_head.weight"] = torch.randn(vocabulary, hidden)
    for index in range(layers):
        block = f"model.layers.{index}"
        tensors |= {
            f"{block}.input_layernorm.weight": torch.rand(hidden) + 0.5,
            f"{block}.post_attention_layernorm.weight": torch.rand(hidden) + 0.5,
            f"{block}.self_attn.q_proj.weight": torch.randn(heads * dim, hidden),
            f"{block}.self_attn.k_proj.weight": torch.randn(kv_heads * dim, hidden),
            f"{block}.self_attn.v_proj.weight": torch.randn(kv_heads * dim, hidden),
            f"{block}.self_attn.o_proj.weight": torch.randn(hidden, heads * dim),
            f"{block}.mlp.gate_proj.weight": torch.randn(inner, hidden),
            f"{block}.mlp.up_proj.weight": torch.randn(inner, hidden),
            f"{block}.mlp.down_proj.weight": torch.randn(hidden, inner),
        }
    frequencies = tuple(10000.0 ** -(i / 4) for i in range(dim // 2))
    dense = Dense(
        layers, heads, kv_heads, dim, hidden, vocabulary, Scales(dim**-0.5), 1e-5,
        (None,) * layers, (True,) * layers, tied, frequencies, 1.0,
    )  # fmt: skip
    return build(dense, DictWeights(tensors), dense.angles(context), device)


def loaded(model: Model, path: Path, family: str = "llama") -> Loaded:
    return Loaded(model, None, frozenset(), family, path)


def save_sharded(folder: Path, config: dict[str, Any], tensors: dict[str, Tensor]) -> Path:
    """A checkpoint in two files."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    names = sorted(tensors)
    shards = {"model-1.safetensors": names[::2], "model-2.safetensors": names[1::2]}
    for file, held in shards.items():
        save_file({name: tensors[name] for name in held}, folder / file)
    index = {name: file for file, held in shards.items() for name in held}
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": index})
    )
    return folder
