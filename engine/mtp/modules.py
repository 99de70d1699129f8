"""The decoder blocks of other models' heads: transformers' own modules, over our pages.

All of this package's transformers calls live here."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig

from engine.device import Device
from engine.fallback import CALL, NAME, OnLayer
from engine.loading import causal_lm
from engine.mtp.checkpoint import Checkpoint, broken

EXPERTS = {
    "gate_up_proj": ("gate_proj", "up_proj"),
    "up_proj": ("up_proj",),
    "down_proj": ("down_proj",),
}
"""A module's stacked experts -> the tensors of each expert in the checkpoint."""


class Blocks:
    """A head's decoder blocks with their weights, and norms of the family's kind."""

    def __init__(self, checkpoint: Checkpoint, served: Any, device: Device) -> None:
        """served: the target's transformers config, None where transformers does not run it.
        Raises StartError for a config that the family's modules refuse."""
        self._checkpoint = checkpoint
        self._device = device
        try:
            self.config = _config(checkpoint.path, served)
            self._model_class: Any = causal_lm(self.config)
            self._prefix: str = self._model_class.__name__.removesuffix("ForCausalLM")
            rotary = self._find("RotaryEmbedding", "TextRotaryEmbedding")
            self._rotary = None if rotary is None else rotary(self.config).to(device.torch_device)
            self._blocks = self._open()
        except Exception as error:  # each family checks its fields in its own way
            raise broken(
                checkpoint.path,
                f"describes no {checkpoint.family!r} head ({type(error).__name__}: "
                f"{str(error)[:200]})",
                "Check config.json against the model's own",
            ) from error
        self.count = len(self._blocks)

    @property
    def names(self) -> list[str]:
        """The stored tensors that the blocks are made of."""
        return [
            name
            for index, block in enumerate(self._blocks)
            for own, tensor in block.state_dict().items()
            for name in self._sources(index, own, len(tensor))
        ]

    @property
    def tensors(self) -> list[Tensor]:
        return [tensor for block in self._blocks for tensor in block.state_dict().values()]

    def load(self) -> None:
        """Read the weights. Raises StartError for those that do not fit."""
        kept = getattr(self._model_class, "_keep_in_fp32_modules_strict", None) or ()
        for index, block in enumerate(self._blocks):
            state = block.state_dict()
            for name, tensor in state.items():
                whole = any(part in name for part in kept)  # a router's choice, for instance
                dtype = torch.float32 if whole else self._device.dtype
                state[name] = self._read(self._sources(index, name, len(tensor)), tensor, dtype)
            block.load_state_dict(state, assign=True)
            block.requires_grad_(False).eval()

    def norm(self, weight: Tensor) -> Callable[[Tensor], Tensor]:
        """The family's RMS norm, which may count its weight from 1."""
        epsilon = getattr(self.config, "rms_norm_eps", None) or self.config.layer_norm_epsilon
        module = self._find("RMSNorm")(len(weight), eps=epsilon)
        own = weight.to(self._device.dtype, copy=True)  # its file may be replaced while served
        module.load_state_dict({"weight": own}, assign=True)
        return module.to(self._device.torch_device).requires_grad_(False)

    def __call__(self, x: Tensor, positions: Tensor, on_layer: OnLayer) -> Tensor:
        """x [T, d] and positions int64 [T] -> [T, d]. on_layer: called by every attention."""
        x, places = x.unsqueeze(0), positions.unsqueeze(0)
        keywords: dict[str, Any] = {CALL: on_layer}
        if self._rotary is not None:
            images = hasattr(self._rotary, "mrope_section")  # three axes, which agree in text
            axes = places.expand(3, 1, -1) if images else places
            keywords["position_embeddings"] = self._rotary(x, axes)
        for block in self._blocks:
            x = block(x, attention_mask=None, position_ids=places, **keywords)
        return x.squeeze(0)

    def _open(self) -> list[nn.Module]:
        config, kinds = self.config, getattr(self.config, "layer_types", None)
        of_head = getattr(config, "mtp_layers_block_type", None)
        if of_head is not None:  # Nemotron-H: a block for each part of a layer
            config.layer_types = list(of_head)
            return [self._block(index) for index in range(len(of_head))]
        last = config.num_hidden_layers - 1
        if kinds is not None:
            last = max(index for index, kind in enumerate(kinds) if kind == "full_attention")
        return [self._block(last)]

    def _block(self, like: int) -> nn.Module:
        """A block without weights, built as the target's layer `like` is."""
        with torch.device("meta"):
            return self._find("DecoderLayer", "Block")(self.config, like)

    def _sources(self, block: int, name: str, rows: int) -> list[str]:
        """The stored tensors that a block's tensor is made of; those of experts, which are its
        rows, by expert."""
        layout = self._checkpoint.layout
        assert layout is not None
        stored = self._checkpoint.name(layout.blocks, block=block) + name
        owner, _, part = stored.rpartition(".")
        if stored in self._checkpoint.stored or not owner.endswith(".experts"):
            return [stored]
        return [f"{owner}.{i}.{each}.weight" for i in range(rows) for each in EXPERTS[part]]

    def _read(self, names: list[str], like: Tensor, dtype: torch.dtype) -> Tensor:
        made = torch.empty(like.shape, dtype=dtype, device=self._device.torch_device)
        if len(names) == 1:
            return made.copy_(self._checkpoint.tensor(names[0], like.shape))
        parts = len(names) // len(made)
        rows = made.flatten(0, 1).split(made.shape[1] // parts)
        for place, name in zip(rows, names, strict=True):
            place.copy_(self._checkpoint.tensor(name, place.shape))
        return made

    def _find(self, *suffixes: str) -> Any:
        """The family's class of the first of these names, None if it has none of them."""
        module = sys.modules[self._model_class.__module__]
        found = (getattr(module, self._prefix + suffix, None) for suffix in suffixes)
        return next((each for each in found if each is not None), None)


def _config(path: Path, served: Any) -> Any:
    """The config that a head's blocks are built from, which are of experts where any layer is."""
    config = served
    if config is None:
        config = AutoConfig.from_pretrained(path, trust_remote_code=False)
    config = copy.deepcopy(config.get_text_config())
    config._attn_implementation = NAME
    if getattr(config, "_experts_implementation", None) is None:
        config._experts_implementation = "eager"
    if hasattr(config, "first_k_dense_replace"):
        config.first_k_dense_replace = 0
    return config
