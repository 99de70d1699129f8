"""Tiny random model drafters over a tiny random target, in float32."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.attention import Attention, TorchAttention
from engine.device import Device
from engine.draft_models.draft_model import DraftModelDrafter
from engine.draft_models.model import DraftModel
from engine.draft_models.mtp import MtpDrafter
from engine.drafters.base import Drafter
from engine.kv import KvPool, empty_pool
from engine.mtp.head import Store
from engine.shape import Attend, Model, Shape
from engine.vocabulary import VocabularyMap, identity

HEADS, KV_HEADS, DIM = 4, 2, 8
CPU = Device(torch.device("cpu"), torch.float32)


def rms(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)


@dataclass(frozen=True)
class TinyHead:
    """A head of one layer with random weights, written down plainly: with e the embedding of the
    row's token, x = project(e, h); x += o(attention of q, k, v); x += mlp(x); normed."""

    shape: Shape
    taps: tuple[int, ...]
    vocabulary: VocabularyMap
    weights: dict[str, Tensor]
    family: str = "tiny"
    parameters: int = 0
    bytes: int = 0
    repeats: bool = True

    def fuse(self, features: Tensor) -> Tensor:
        return features @ self.weights["fuse"]

    def forward(self, ids: Tensor, hidden: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        x = self._enter(ids, hidden)
        q, k, v = self._projected(x, positions)
        x = x + attend(0, q, k, v) @ self.weights["o"]
        return rms(x + F.silu(rms(x) @ self.weights["up"]) @ self.weights["down"])

    def write(self, ids: Tensor, hidden: Tensor, positions: Tensor, store: Store) -> None:
        _, k, v = self._projected(self._enter(ids, hidden), positions)
        store(0, k, v)

    def logits(self, hidden: Tensor) -> Tensor:
        return (hidden @ self.weights["head"]).float()

    def _enter(self, ids: Tensor, hidden: Tensor) -> Tensor:
        both = torch.cat((rms(self.weights["embedding"][ids]), rms(hidden)), dim=1)
        return both @ self.weights["project"]

    def _projected(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        qkv = (rms(x) @ self.weights["qkv"]).view(len(x), HEADS + 2 * KV_HEADS, DIM)
        speeds = 100.0 ** -(torch.arange(DIM // 2, device=positions.device) / (DIM // 2))
        angles = (positions[:, None, None] * speeds).to(x.dtype)
        low, high = qkv[:, : HEADS + KV_HEADS].chunk(2, dim=-1)
        turned = torch.cat(
            (low * angles.cos() - high * angles.sin(), high * angles.cos() + low * angles.sin()), -1
        )
        return turned[:, :HEADS], turned[:, HEADS:], qkv[:, HEADS + KV_HEADS :]


def tiny_head(
    target: Model,
    seed: int = 0,
    taps: tuple[int, ...] = (1, 2),
    kept: Sequence[int] | None = None,
    device: Device = CPU,
) -> TinyHead:
    """kept: the target ids of its logits; None: all."""
    shape, generator = target.shape, torch.Generator().manual_seed(seed)
    d, n = shape.hidden, len(kept) if kept is not None else shape.vocabulary
    vocabulary = identity(shape.vocabulary)
    if kept is not None:
        ids = torch.tensor(kept)
        vocabulary = VocabularyMap(vocabulary.to_draft, None, ids, n / shape.vocabulary)
    sizes = {
        "embedding": (shape.vocabulary, d),
        "fuse": (len(taps) * d, d),
        "project": (2 * d, d),
        "qkv": (d, (HEADS + 2 * KV_HEADS) * DIM),
        "o": (HEADS * DIM, d),
        "up": (d, 2 * d),
        "down": (2 * d, d),
        "head": (d, n),
    }
    weights = {
        name: torch.randn(size, generator=generator)
        * (1.5 if name == "qkv" else 1)
        * size[0] ** -0.5
        for name, size in sizes.items()
    }
    weights["head"] *= 3
    placed = {name: one.to(device.torch_device, device.dtype) for name, one in weights.items()}
    own = Shape(1, HEADS, KV_HEADS, DIM, d, n, shape.context_length)
    return TinyHead(own, taps, vocabulary.to(device.torch_device), placed)


MakeDrafter = Callable[[KvPool, Device, int], Drafter]
"""(the target's pool, device, longest draft) -> a drafter over pages of the same number and
size."""


def own_pool(shape: Shape, device: Device, like: KvPool) -> KvPool:
    """Pages of NaN: what was never written must never be read."""
    pool = empty_pool(shape, device, like.pages, like.page_size)
    for storage in (*pool.keys, *pool.values):
        storage.fill_(float("nan"))
    return pool


def mtp(
    head: TinyHead, attention: Callable[[KvPool, Shape], Attention] = TorchAttention
) -> MakeDrafter:
    def make(like: KvPool, device: Device, most: int) -> Drafter:
        pool = own_pool(head.shape, device, like)
        return MtpDrafter(head, attention(pool, head.shape), pool, device, most)

    return make


def draft_model(
    model: Model,
    vocabulary: VocabularyMap | None = None,
    attention: Callable[[KvPool, Shape], Attention] = TorchAttention,
    chunk_rows: int = 16,
) -> MakeDrafter:
    def make(like: KvPool, device: Device, most: int) -> Drafter:
        pool = own_pool(model.shape, device, like)
        known = (vocabulary or identity(model.shape.vocabulary)).to(device.torch_device)
        loaded = DraftModel(model, known, source="tiny", note="", weight_bytes=0)
        return DraftModelDrafter(
            loaded, attention(pool, model.shape), pool, device, most, chunk_rows
        )

    return make
