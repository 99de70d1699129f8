"""A draft model that lives on its target's embedding and head; only its layers are stored.

With e the target's embedding of a token: x = e, then for every layer
  x = x + o(attention(q, k, v of input_norm(x)))       rope by halves, as Llama
  x = x + down(silu(gate) * up of mlp_norm(x))
and logits = the target's head of norm(x), for the columns draft_ids. The factor that some families
put on the embedding is not part of it; a bias and a factor of the logits are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import msgspec
import torch
from torch import Tensor

from engine.decoder import Scales
from engine.dense import HEAD, INNER, Dense
from engine.device import Device
from engine.draft_models.model import DraftModel
from engine.folder import CONFIG, read_json
from engine.fusing import build
from engine.loading import Loaded
from engine.mtp.target import embedding_of, head_weights, logit_scale
from engine.shape import Model
from engine.trained import (
    DRAFT_IDS,
    Positive,
    Size,
    TargetFacts,
    check_target,
    load_config,
    load_tensors,
)
from engine.vocabulary import Restrict, fingerprint, reduced

FORMAT = "paceline-draft"
MOST_LAYERS = 256
PARTS = {
    "input_norm": "input_layernorm",
    "q_proj": "self_attn.q_proj",
    "k_proj": "self_attn.k_proj",
    "v_proj": "self_attn.v_proj",
    "o_proj": "self_attn.o_proj",
    "mlp_norm": "post_attention_layernorm",
    "gate_proj": "mlp.gate_proj",
    "up_proj": "mlp.up_proj",
    "down_proj": "mlp.down_proj",
}
"""Modules of a layer, and what transformers calls them."""


class DraftConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """config.json. hidden_size is the target's; the other sizes are free."""

    FORMAT: ClassVar[str] = FORMAT
    COMMAND: ClassVar[str] = "paceline train draft"

    format: Literal["paceline-draft"] = FORMAT
    version: Literal[1] = 1
    hidden_size: Size
    heads: Size
    kv_heads: Size
    head_dim: Size
    intermediate_size: Size
    layers: Annotated[int, msgspec.Meta(ge=1, le=MOST_LAYERS)]
    rms_norm_eps: Positive = 1e-5
    rope_theta: Positive = 10000.0
    target: TargetFacts

    def __post_init__(self) -> None:
        if self.hidden_size != self.target.hidden_size:
            raise ValueError("hidden_size is not target.hidden_size")
        if self.heads % self.kv_heads:
            raise ValueError("heads is no multiple of kv_heads")
        if self.head_dim % 2:
            raise ValueError("head_dim is odd")

    def shapes(self, columns: int) -> dict[str, tuple[int, ...]]:
        """Name and shape of every tensor; columns: of the logits, the length of draft_ids."""
        d, f = self.hidden_size, self.intermediate_size
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        of_layer: dict[str, tuple[int, ...]] = {
            "input_norm": (d,),
            "q_proj": (q, d),
            "k_proj": (kv, d),
            "v_proj": (kv, d),
            "o_proj": (d, q),
            "mlp_norm": (d,),
            "gate_proj": (f, d),
            "up_proj": (f, d),
            "down_proj": (d, f),
        }
        shapes: dict[str, tuple[int, ...]] = {
            f"layers.{index}.{part}.weight": shape
            for index in range(self.layers)
            for part, shape in of_layer.items()
        }
        return shapes | {"norm.weight": (d,), DRAFT_IDS: (columns,)}

    def dense(self, logit_scale: float) -> Dense:
        """What the lean decoder must know of it. logit_scale: the target's."""
        places = torch.arange(0, self.head_dim, 2, dtype=torch.int64).float()
        frequencies = 1.0 / self.rope_theta ** (places / self.head_dim)
        return Dense(
            layers=self.layers,
            heads=self.heads,
            kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            hidden=self.hidden_size,
            vocabulary=self.target.vocabulary,
            scales=Scales(attention=self.head_dim**-0.5, logits=logit_scale),
            epsilon=self.rms_norm_eps,
            windows=(None,) * self.layers,
            ropes=(True,) * self.layers,
            tied=False,
            frequencies=tuple(frequencies.tolist()),
            rope_scale=1.0,
        )


class TiedWeights:
    """The stored layers between the target's embedding and the rows of its head."""

    mapped = False

    def __init__(
        self, tensors: Mapping[str, Tensor], embedding: Tensor, head: Tensor, bias: Tensor | None
    ) -> None:
        self._named: dict[str, Tensor] = {
            f"{INNER}embed_tokens.weight": embedding,
            f"{HEAD}.weight": head,
        }
        if bias is not None:
            self._named[f"{HEAD}.bias"] = bias
        for name, tensor in tensors.items():
            block, _, rest = name.removesuffix(".weight").rpartition(".")
            if name == "norm.weight":
                self._named[f"{INNER}{name}"] = tensor
            elif block:
                self._named[f"{INNER}{block}.{PARTS[rest]}.weight"] = tensor

    def get(self, name: str) -> Tensor | None:
        return self._named.get(name)

    def release(self, prefix: str) -> None:
        """They are small."""


def is_tied(folder: Path) -> bool:
    """Whether the folder is such a checkpoint, sound or not."""
    return (folder / CONFIG).exists() and read_json(folder / CONFIG).get("format") == FORMAT


def load_tied(folder: Path, target: Loaded) -> DraftConfig:
    """The checkpoint's config. Raises StartError for a broken one, and for one of another target
    than this."""
    config = load_config(folder, DraftConfig)
    shape = target.decoder.shape
    tokenizer = fingerprint(target.tokenizer.backend_tokenizer)
    check_target(folder, config, shape.hidden, shape.vocabulary, tokenizer)
    return config


def open_tied(
    folder: Path, target: Loaded, device: Device, restrict: Restrict = lambda whole: whole
) -> DraftModel:
    """Load the checkpoint over the target that it was trained for.

    Raises StartError with what is wrong with it, or when it was trained for another model."""
    config = load_tied(folder, target)
    tensors = load_tensors(folder, config)
    return assemble(config, tensors, target.decoder, device, str(folder), restrict)


def assemble(
    config: DraftConfig,
    tensors: Mapping[str, Tensor],
    target: Model,
    device: Device,
    source: str,
    restrict: Restrict = lambda whole: whole,
) -> DraftModel:
    """The draft model of checked tensors, with the target's context."""
    embedding = embedding_of(target)
    vocabulary = restrict(reduced(len(embedding), tensors[DRAFT_IDS].long()))
    head, bias = head_weights(target, vocabulary.to_target.to(embedding.device))
    dense = config.dense(logit_scale(target))
    angles = dense.angles(target.shape.context_length)
    decoder = build(dense, TiedWeights(tensors, embedding, head, bias), angles, device)
    parameters = sum(each.numel() for name, each in tensors.items() if name != DRAFT_IDS)
    return DraftModel(
        decoder=decoder,
        vocabulary=replace(vocabulary, kept=None).to(device.torch_device),
        source=source,
        note=f"trained for the target, {vocabulary.size:,} of its {len(embedding):,} tokens",
        weight_bytes=(parameters + head.numel()) * device.dtype.itemsize
        + decoder.cos.nbytes
        + decoder.sin.nbytes,
    )
