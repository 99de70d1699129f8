"""What a head shares with its target: the embedding, and rows of the language model head."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from engine.decoder import Decoder
from engine.linear import Linear, PackedLinear, linear
from engine.shape import Model
from engine.vocabulary import VocabularyMap

if TYPE_CHECKING:
    from engine.fallback import Fallback

AT_ONCE = 64
"""Inputs that a packed weight is asked for at a time: each answer is as wide as the vocabulary."""


def embedding_of(model: Model) -> Tensor:
    """The stored embedding [V, d], without what some families scale it by."""
    if isinstance(model, Decoder):
        return model.embedding
    return _module(model).get_input_embeddings().weight


def head_weight(model: Model) -> Tensor:
    """The weight [V, d] of the target's head. Raises AttributeError for a packed one."""
    if isinstance(model, Decoder):
        head: Any = model.head
        return head.weight
    return _module(model).get_output_embeddings().weight


def head_weights(model: Model, ids: Tensor) -> tuple[Tensor, Tensor | None]:
    """Weight [n, d] and bias [n], if it has one, of the target's head for the columns ids [n]."""
    head: Any = model.head if isinstance(model, Decoder) else _module(model).get_output_embeddings()
    bias = None if head.bias is None else head.bias.index_select(0, ids)
    if isinstance(model, Decoder) and model.tied:
        return model.embedding.index_select(0, ids), bias  # far faster than to unpack it
    if isinstance(head, PackedLinear):
        return _unpacked(head, ids), bias
    return head.weight.index_select(0, ids), bias


def head_rows(model: Model, ids: Tensor) -> Linear:
    """The target's head for the columns ids int64 [n] only: [R, d] -> [R, n]."""
    return linear(*head_weights(model, ids))


def head_for(model: Model, vocabulary: VocabularyMap) -> Linear:
    """The head of a drafter of these ids: the lean decoder's own where it drafts all of them."""
    if vocabulary.whole and isinstance(model, Decoder):
        return model.head
    return head_rows(model, vocabulary.to_target)


def config_of(model: Model) -> Any:
    """The transformers config of a target that transformers runs, None for the lean decoder."""
    return None if isinstance(model, Decoder) else _module(model).config


def logit_scale(model: Model) -> float:
    """What the target's logits are divided by."""
    return model.scales.logits if isinstance(model, Decoder) else 1.0


def _unpacked(head: PackedLinear, ids: Tensor) -> Tensor:
    """Rows of a packed weight: what it makes of unit vectors, which rounds nothing."""
    weight = torch.empty(len(ids), head.inputs, dtype=head.dtype)
    for first in range(0, head.inputs, AT_ONCE):
        count = min(AT_ONCE, head.inputs - first)
        units = torch.zeros(count, head.inputs, dtype=head.dtype)
        units[:, first : first + count].fill_diagonal_(1)
        columns = head.without_bias(units).index_select(1, ids)
        weight[:, first : first + count] = columns.t()
    return weight


def _module(model: Model) -> Any:
    fallback: Fallback = model  # type: ignore[assignment]
    return fallback.model
