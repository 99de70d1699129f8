"""The module that a fit begins with: the target's own last layer or layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from engine.dense import StoredWeights
from engine.errors import StartError
from engine.folder import read_folder
from engine.training.fit_draft import DraftModel
from engine.training.fit_module import Sizes
from engine.training.fit_mtp import MtpHead
from engine.training.fit_options import Options
from engine.training.model_digest import weights_digest
from engine.training.shards import About


def build(target: Path, about: About, draft_ids: Sequence[int], options: Options) -> nn.Module:
    """The module to train, which begins as the target's own last layer or layers. Raises
    StartError when the shards are not of this target, or lack what the options need."""
    folder = read_folder(target)
    config, weights = folder.config, StoredWeights(folder.files)

    def get(name: str) -> Tensor:
        found = weights.get(name)
        if found is None:
            raise StartError("model_unsupported", f"{target} has no tensor {name!r}.")
        return found.float()

    d, heads = config["hidden_size"], config["num_attention_heads"]
    if about.hidden != d:
        raise StartError(
            "training_data_differs",
            f"the shards hold hidden states of {about.hidden} numbers, and {target} has {d}. "
            "Extract them from this target.",
        )
    if about.weights != weights_digest(target):
        raise StartError(
            "training_data_differs",
            f"the shards were extracted from a model with other weights than {target}. Train for "
            "that model, or extract them from this one.",
        )
    if options.hidden_loss and about.taps[-1] != config["num_hidden_layers"]:
        raise StartError(
            "training_data_differs",
            "--hidden-loss compares with the target's last hidden state, and the shards end with "
            f"layer {about.taps[-1]}. Extract with --taps that end with "
            f"{config['num_hidden_layers']}, or leave it out.",
        )
    sizes = Sizes(
        hidden=d,
        heads=heads,
        kv_heads=config.get("num_key_value_heads") or heads,
        head_dim=config.get("head_dim") or d // heads,
        intermediate=config["intermediate_size"],
        epsilon=config["rms_norm_eps"],
        theta=_theta(config),
        taps=len(about.taps),
    )
    embedding = get("model.embed_tokens.weight")
    tied = weights.get("lm_head.weight")
    columns = torch.full((len(embedding),), -1)
    ids = torch.tensor(draft_ids)
    columns[ids] = torch.arange(len(ids))
    head = (embedding if tied is None else tied.float())[ids]
    last = config["num_hidden_layers"]

    def layer(index: int, prefix: str) -> dict[str, Tensor]:
        block = f"model.layers.{index}"
        found = {
            f"{prefix}.input_norm": get(f"{block}.input_layernorm.weight"),
            f"{prefix}.mlp_norm": get(f"{block}.post_attention_layernorm.weight"),
        }
        for part in ("q_proj", "k_proj", "v_proj", "o_proj"):
            found[f"{prefix}.{part}"] = get(f"{block}.self_attn.{part}.weight")
        for part in ("gate_proj", "up_proj", "down_proj"):
            found[f"{prefix}.{part}"] = get(f"{block}.mlp.{part}.weight")
        return found

    dtype = torch.bfloat16 if options.precision == "bfloat16" else torch.float32
    norm = get("model.norm.weight")
    if options.kind == "draft":
        start = {"norm": norm}
        for place in range(options.layers):
            own = place if place < options.layers - 1 else last - 1
            start |= layer(own, f"layers.{place}")
        return DraftModel(
            sizes, options.layers, embedding.to(dtype), head.to(dtype), columns, start
        )
    start = {"norm": norm, **layer(last - 1, "layer")}
    through = torch.randn(d, 2 * d) * 0.02
    through[:, d:] += torch.eye(d)
    start["project"] = through
    if sizes.taps > 1:
        fuse = torch.randn(d, sizes.taps * d) * 0.02
        fuse[:, -d:] += torch.eye(d)
        start["fuse"] = fuse
    return MtpHead(sizes, embedding.to(dtype), head.to(dtype), columns, start, options.norms)


def _theta(config: Mapping[str, Any]) -> float:
    rope = config.get("rope_parameters") or {}
    return float(rope.get("rope_theta") or config.get("rope_theta") or 10000.0)
