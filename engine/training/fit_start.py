"""The module that a fit begins with: the target's own last layer or layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from engine.dense import StoredWeights
from engine.errors import StartError
from engine.folder import read_folder
from engine.trained import TargetFacts
from engine.training.fit_checkpoint import start_from
from engine.training.fit_draft import DraftModel
from engine.training.fit_module import Sizes, Trained
from engine.training.fit_mtp import MtpHead
from engine.training.fit_options import Options, products
from engine.training.fit_squares import start_linear
from engine.training.model_digest import weights_digest
from engine.training.shards import About


def build(target: Path, about: About, draft_ids: Sequence[int], options: Options) -> Trained:
    """The module to train, whose layers are the target's own as yet. Raises
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

    dtype = products(options)
    norm = get("model.norm.weight")
    if options.kind == "draft":
        start = {"norm": norm}
        for place in range(options.layers):
            own = place if place < options.layers - 1 else last - 1
            start |= layer(own, f"layers.{place}")
        return DraftModel(
            sizes, options.layers, embedding.to(dtype), head.to(dtype), columns, start
        )
    taken = min(about.taps[input_tap(about.taps, last)], last - 1)
    start = {"norm": norm, **layer(taken, "layer")}
    return MtpHead(sizes, embedding.to(dtype), head.to(dtype), columns, start, options.norms)


def begin_with(
    module: Trained, files: Sequence[Path], about: About, facts: TargetFacts, options: Options
) -> None:
    """What a module that `build` made gets before its first step: the weights of options.start, or
    a head's linear start. Raises StartError."""
    if options.start:
        start_from(Path(options.start), module, about, facts)
    elif isinstance(module, MtpHead):
        start_linear(module, files, input_tap(about.taps, facts.layers))


def input_tap(taps: Sequence[int], layers: int) -> int:
    """Which tap holds the input of the layer that a head begins as: the last one before the last
    norm, where there is one."""
    return max((place for place, tap in enumerate(taps) if tap < layers), default=len(taps) - 1)


def _theta(config: Mapping[str, Any]) -> float:
    rope = config.get("rope_parameters") or {}
    return float(rope.get("rope_theta") or config.get("rope_theta") or 10000.0)
