"""A head whose layer is a dense Llama-like one: it runs in the lean decoder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from engine.decoder import Decoder
from engine.huge_pages import collapse
from engine.mtp.entry import Fuse, PlainEntry, PlainFusion, keys_and_values
from engine.mtp.head import Store
from engine.shape import Attend, Model, Shape
from engine.vocabulary import VocabularyMap

Enter = Callable[[Tensor, Tensor, Tensor, Attend], Tensor]
"""(embeddings [T, d], hidden [T, d], positions, attend) -> the head's output [T, d]."""


Remember = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
"""(embeddings [T, d], hidden [T, d], positions) -> keys and values [T, Hkv, D] of the layer."""


@dataclass(frozen=True)
class DenseHead:
    """Answers engine.mtp.head.Head. decoder: one layer, over the embedding that the head is fed
    from and the head that its logits come from. join: what `fuse` does."""

    family: str
    decoder: Decoder
    entry: PlainEntry
    enter: Enter
    remember: Remember
    join: Fuse
    taps: tuple[int, ...]
    vocabulary: VocabularyMap
    parameters: int
    bytes: int

    @property
    def shape(self) -> Shape:
        return self.decoder.shape

    @property
    def repeats(self) -> bool:
        return True

    def fuse(self, features: Tensor) -> Tensor:
        return self.join(features)

    def forward(self, ids: Tensor, hidden: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        return self.enter(F.embedding(ids, self.decoder.embedding), hidden, positions, attend)

    def write(self, ids: Tensor, hidden: Tensor, positions: Tensor, store: Store) -> None:
        store(0, *self.remember(F.embedding(ids, self.decoder.embedding), hidden, positions))

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
    enter, remember, join = _calls(decoder, entry, fusion)
    return DenseHead(
        family, decoder, entry, enter, remember, join, taps, vocabulary, parameters, size
    )


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


def _calls(
    decoder: Decoder, entry: PlainEntry, fusion: PlainFusion | None
) -> tuple[Enter, Remember, Fuse]:
    """How the head is run: by compiled layers that begin with its entry, or one by one."""

    def apart(embeddings: Tensor, hidden: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        return decoder.run(entry(embeddings, hidden), positions, attend)

    def remembered(embeddings: Tensor, hidden: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        return keys_and_values(decoder, entry(embeddings, hidden), positions)

    compiled: Any = decoder.compiled
    enter: Enter = getattr(compiled, "enter", apart)
    remember: Remember = getattr(compiled, "remember", remembered)
    if fusion is None:
        return enter, remember, _unchanged
    fuse = getattr(compiled, "fusion", None)
    return enter, remember, fusion if fuse is None else fuse(fusion)


def _unchanged(features: Tensor) -> Tensor:
    return features
