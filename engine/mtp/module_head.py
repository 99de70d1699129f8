"""A head whose blocks are transformers' modules: latent attention, experts, gated attention."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.device import Device
from engine.linear import Linear, linear
from engine.mtp.checkpoint import Checkpoint, broken
from engine.mtp.entry import PlainEntry
from engine.mtp.head import Store
from engine.mtp.modules import Blocks
from engine.mtp.target import config_of, embedding_of, head_rows, head_weight
from engine.norm import Norm
from engine.probe import kind_of
from engine.shape import Attend, AttentionKind, Model, Shape
from engine.vocabulary import Restrict, VocabularyMap, identity


class _Written(Exception):
    """The keys and values are stored; what follows serves predictions only."""


@dataclass(frozen=True)
class ModuleHead:
    """Answers engine.mtp.head.Head. score: hidden states [R, d] -> logits [R, n]."""

    family: str
    shape: Shape
    taps: tuple[int, ...]
    vocabulary: VocabularyMap
    parameters: int
    bytes: int
    embedding: Tensor
    entry: PlainEntry
    blocks: Blocks
    norm: Norm
    score: Callable[[Tensor], Tensor]

    @property
    def repeats(self) -> bool:
        """Experts are chosen on the host in some of transformers' modules."""
        return False

    def fuse(self, features: Tensor) -> Tensor:
        return features

    def forward(self, ids: Tensor, hidden: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        def on_layer(module: Any, q: Tensor, k: Tensor, v: Tensor, keywords: Any) -> Tensor:
            return attend(0, q, k, v)

        x = self.entry(F.embedding(ids, self.embedding), hidden)
        return self.norm(self.blocks(x, positions, on_layer))

    def write(self, ids: Tensor, hidden: Tensor, positions: Tensor, store: Store) -> None:
        def on_layer(module: Any, q: Tensor, k: Tensor, v: Tensor, keywords: Any) -> Tensor:
            store(0, k, v)
            raise _Written

        x = self.entry(F.embedding(ids, self.embedding), hidden)
        try:
            self.blocks(x, positions, on_layer)
        except _Written:
            return

    def logits(self, hidden: Tensor) -> Tensor:
        return self.score(hidden).float()


@torch.no_grad()
def open_module_head(
    checkpoint: Checkpoint, model: Model, device: Device, restrict: Restrict = lambda whole: whole
) -> ModuleHead:
    """The head of a checkpoint over its loaded target. restrict: takes ids out of its
    vocabulary. Raises StartError for a broken checkpoint."""
    layout, shape = checkpoint.layout, model.shape
    assert layout is not None
    d = shape.hidden
    vocabulary = restrict(identity(shape.vocabulary))
    vocabulary = replace(vocabulary, kept=None).to(device.torch_device)
    ids = vocabulary.to_target
    blocks = Blocks(checkpoint, config_of(model), device)
    names = [
        checkpoint.name(pattern, last=blocks.count - 1)
        for pattern in (layout.embedding_norm, layout.hidden_norm, layout.norm, layout.project)
    ]
    checkpoint.require([*names, *blocks.names])
    blocks.load()

    def place(tensor: Tensor) -> Tensor:
        return tensor.to(device.torch_device, device.dtype).contiguous()

    def own(pattern: str | None, shared: Tensor) -> Tensor | None:
        """The head's own copy [V, d], None where it has none or the same as the target."""
        name = None if pattern is None else checkpoint.name(pattern)
        if name is None or name not in checkpoint.stored:
            return None
        stored = place(checkpoint.tensor(name, shared.shape))
        return None if torch.equal(stored, shared) else stored.clone()

    norms = [blocks.norm(checkpoint.tensor(name, [d])) for name in names[:3]]
    halves = checkpoint.tensor(names[3], [d, 2 * d]).split(d, dim=1)
    of_embedding, of_hidden = reversed(halves) if layout.hidden_first else halves
    entry = PlainEntry(norms[0], norms[1], linear(place(of_embedding)), linear(place(of_hidden)))
    linears: list[Linear] = [entry.of_embedding, entry.of_hidden]
    parameters = sum(tensor.numel() for tensor in blocks.tensors) + 2 * d * d + 3 * d
    size = sum(tensor.nbytes for tensor in blocks.tensors)

    embedding = embedding_of(model)
    if (stored := own(layout.embedding, embedding)) is not None:
        embedding = stored
        parameters, size = parameters + stored.numel(), size + stored.nbytes
    score: Callable[[Tensor], Tensor] = model.logits
    stored = None if layout.head is None else own(layout.head, head_weight(model))
    if stored is not None:
        head = linear(stored.index_select(0, ids))
        parameters += stored.numel()
    else:
        head = None if vocabulary.whole else head_rows(model, ids)
    if head is not None:
        score = head
        linears.append(head)
    kind = _kind(checkpoint, blocks, d, device)
    return ModuleHead(
        family=checkpoint.family,
        shape=Shape(
            layers=1,
            heads=kind.heads,
            kv_heads=kind.kv_heads,
            head_dim=kind.head_dim,
            hidden=d,
            vocabulary=vocabulary.size,
            context_length=shape.context_length,
            kinds=(kind,),
        ),
        taps=(shape.layers,),
        vocabulary=vocabulary,
        parameters=parameters,
        bytes=size + sum(each.extent[1] for each in linears),
        embedding=embedding,
        entry=entry,
        blocks=blocks,
        norm=norms[2],
        score=score,
    )


def _kind(checkpoint: Checkpoint, blocks: Blocks, hidden: int, device: Device) -> AttentionKind:
    """How the head attends, read off a call with two rows."""
    kinds: list[AttentionKind] = []

    def record(module: Any, q: Tensor, k: Tensor, v: Tensor, keywords: Any) -> Tensor:
        kinds.append(kind_of(module, q, k, v, keywords))
        return q.new_zeros(len(q), kinds[-1].heads * kinds[-1].value_dim)

    x = torch.zeros(2, hidden, dtype=device.dtype, device=device.torch_device)
    blocks(x, torch.arange(2, device=device.torch_device), record)
    if len(kinds) != 1 or kinds[0].sinks:
        raise broken(
            checkpoint.path,
            f"has a multi-token prediction head with {len(kinds)} attentions; heads with one "
            "plain attention are served",
            "Take another release",
        )
    return kinds[0]
