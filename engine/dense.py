"""What the lean decoder must know of a dense model, and where its weights come from."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import msgspec
import torch
from safetensors import safe_open
from torch import Tensor, nn

from engine.decoder import Scales
from engine.shape import AttentionKind, Shape

INNER = "model."
HEAD = "lm_head"


class Dense(msgspec.Struct, frozen=True):
    """Sizes and constants of a model that the lean decoder computes, as plain values.

    windows and ropes: of each layer. tied: the head is the embedding. frequencies: float32 inverse
    frequencies of the rotary embedding [head_dim / 2]; rope_scale: factor of its cos and sin."""

    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    hidden: int
    vocabulary: int
    scales: Scales
    epsilon: float
    windows: tuple[int | None, ...]
    ropes: tuple[bool, ...]
    tied: bool
    frequencies: tuple[float, ...]
    rope_scale: float

    def shape(self, context_length: int) -> Shape:
        heads, kv_heads, dim = self.heads, self.kv_heads, self.head_dim
        return Shape(
            layers=self.layers,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=dim,
            hidden=self.hidden,
            vocabulary=self.vocabulary,
            context_length=context_length,
            kinds=tuple(
                AttentionKind(heads, kv_heads, dim, dim, self.scales.attention, window)
                for window in self.windows
            ),
        )

    def angles(self, context_length: int) -> tuple[Tensor, Tensor]:
        """float32 cos and sin [context, head_dim], as transformers computes them."""
        frequencies = torch.tensor(self.frequencies, dtype=torch.float32)
        angles = torch.arange(context_length)[:, None].float() * frequencies
        twice = torch.cat((angles, angles), dim=-1)
        return twice.cos() * self.rope_scale, twice.sin() * self.rope_scale


class Weights(Protocol):
    """A model's tensors by their transformers names. mapped: they lie in files, not in memory."""

    mapped: bool

    def get(self, name: str) -> Tensor | None:
        """None when the model has no such tensor."""
        ...

    def release(self, prefix: str) -> None:
        """The projections below this module are not needed again."""
        ...


class ModuleWeights:
    """The weights of a loaded transformers module."""

    mapped = False

    def __init__(self, model: nn.Module) -> None:
        self._model = model

    def get(self, name: str) -> Tensor | None:
        owner, _, attribute = name.rpartition(".")
        try:
            found: Any = getattr(self._model.get_submodule(owner), attribute)
        except AttributeError:
            return None
        return found

    def release(self, prefix: str) -> None:
        module = self._model.get_submodule(prefix)
        for name, _ in list(module.named_children()):
            if name.endswith("_proj"):
                delattr(module, name)


class StoredWeights:
    """The weights of safetensors files, mapped. files: the file of each tensor."""

    mapped = True

    def __init__(self, files: Mapping[str, Path]) -> None:
        self._files = files
        self._open: dict[Path, Any] = {}

    def get(self, name: str) -> Tensor | None:
        file = self._files.get(name)
        if file is None:
            return None
        if file not in self._open:
            self._open[file] = safe_open(file, "pt")
        return self._open[file].get_tensor(name)

    def release(self, prefix: str) -> None:
        """Nothing of it is in memory."""
