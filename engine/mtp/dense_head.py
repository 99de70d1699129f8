"""A head whose layer is a dense Llama-like one: it runs in the lean decoder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.decoder import Decoder
from engine.huge_pages import collapse
from engine.mtp.entry import Fuse, PlainEntry, PlainFusion
from engine.mtp.head import Store
from engine.shape import Attend, Model, Shape
from engine.vocabulary import VocabularyMap

Enter = Callable[[Tensor, Tensor, Tensor, Attend], Tensor]
"""(embeddings [T, d], hidden [T, d], positions, attend) -> the head's output [T, d]."""


@dataclass(frozen=True)
class DenseHead:
    """Answers engine.mtp.head.Head. decoder: one layer, over the embedding that the head is fed
    from and the head that its logits come from. join: what `fuse` does."""

    family: str
    decoder: Decoder
    entry: PlainEntry
    enter: Enter
    join: Fuse
    taps: tuple[int, ...]
    vocabulary: VocabularyMap
    parameters: int
    bytes: int

    @property
    def shape(self) -> Shape:
        return self.decoder.shape

    def fuse(self, features: Tensor) -> Tensor:
        return self.join(features)

    def forward(self, ids: Tensor, hidden: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        return self.enter(F.embedding(ids, self.decoder.embedding), hidden, positions, attend)

    def write(self, ids: Tensor, hidden: Tensor, positions: Tensor, store: Store) -> None:
        decoder, layer, shape = self.decoder, self.decoder.layers[0], self.shape
        x = self.entry(F.embedding(ids, decoder.embedding), hidden)
        heads = layer.qkv(layer.input_norm(x)).view(len(ids), -1, shape.head_dim)
        _, k, v = heads.split([shape.heads, shape.kv_heads, shape.kv_heads], dim=1)
        if layer.k_norm is not None:
            k = layer.k_norm(k)
        if layer.rope:
            cos = decoder.cos.index_select(0, positions).unsqueeze(1)
            sin = decoder.sin.index_select(0, positions).unsqueeze(1)
            k = torch.addcmul(k * cos, k.roll(shape.head_dim // 2, -1), sin)
        store(0, k, v)

    def logits(self, hidden: Tensor) -> Tensor:
        return self.decoder.logits(hidden)


def open_dense_head(
    family: str,
    target: Model,
    decoder: Decoder,
    entry: PlainEntry,
    fusion: PlainFusion | None,
    taps: tuple[int, ...],
    vocabulary: VocabularyMap,
    parameters: int,
) -> DenseHead:
    """The head with compiled layers where they serve it. decoder: without any. fusion: None with
    a single tap. What the decoder took from the target as it is counts as no memory of the head.
    parameters: its own weights."""
    weights = [*decoder.linears[:-1], entry.of_embedding, entry.of_hidden]
    if fusion is not None:
        weights.append(fusion.project)
    if decoder.head is not getattr(target, "head", None):
        weights.append(decoder.head)
    extents = [each.extent for each in weights]
    size = sum(length for _, length in extents)
    if decoder.cos is not getattr(target, "cos", None):
        size += decoder.cos.nbytes + decoder.sin.nbytes
    if decoder.embedding.device.type == "cpu":
        collapse(extents)
        decoder = _compiled(decoder, entry)
    enter, join = _calls(decoder, entry, fusion)
    return DenseHead(family, decoder, entry, enter, join, taps, vocabulary, parameters, size)


def _compiled(decoder: Decoder, entry: PlainEntry) -> Decoder:
    """With compiled layers, where numba is installed and they compute what the decoder does."""
    try:
        from engine.layers_cpu import CpuLayers, serves
        from engine.mtp.entry_cpu import EntryLayers, serves_entry
    except ImportError:
        return decoder
    if not serves(decoder):
        return decoder
    layers = EntryLayers(decoder, entry) if serves_entry(entry) else CpuLayers(decoder)
    return replace(decoder, compiled=layers)


def _calls(decoder: Decoder, entry: PlainEntry, fusion: PlainFusion | None) -> tuple[Enter, Fuse]:
    """How the head is run: by compiled layers that begin with its entry, or one by one."""

    def apart(embeddings: Tensor, hidden: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        return decoder.run(entry(embeddings, hidden), positions, attend)

    compiled: Any = decoder.compiled
    enter: Enter = getattr(compiled, "enter", apart)
    if fusion is None:
        return enter, _unchanged
    fuse = getattr(compiled, "fusion", None)
    return enter, fusion if fuse is None else fuse(fusion)


def _unchanged(features: Tensor) -> Tensor:
    return features
