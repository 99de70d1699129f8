"""The checkpoint of what is trained: its config.json, and a training that starts from one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import torch

from engine.draft_models.tied import DraftConfig
from engine.errors import StartError
from engine.mtp.paceline import PacelineConfig
from engine.trained import DRAFT_IDS, TargetFacts, TrainedConfig, load_config, load_tensors
from engine.training.fit_draft import DraftModel
from engine.training.fit_module import Trained
from engine.training.fit_mtp import MtpHead
from engine.training.shards import About


def describe(module: Trained, about: About, target: TargetFacts) -> TrainedConfig:
    """The config.json of the checkpoint."""
    sizes = module.sizes
    shared: dict[str, Any] = {
        "hidden_size": sizes.hidden,
        "heads": sizes.heads,
        "kv_heads": sizes.kv_heads,
        "head_dim": sizes.head_dim,
        "intermediate_size": sizes.intermediate,
        "rms_norm_eps": sizes.epsilon,
        "rope_theta": sizes.theta,
        "target": target,
    }
    if isinstance(module, MtpHead):
        return PacelineConfig(**shared, taps=about.taps, norms=module.norms)
    assert isinstance(module, DraftModel)
    return DraftConfig(**shared, layers=module.layers)


@torch.no_grad()
def start_from(folder: Path, module: Trained, about: About, target: TargetFacts) -> None:
    """Take over the weights of a checkpoint; what it may draft does not matter.

    Raises StartError when it is not one of such a module for such a target."""
    wanted = describe(module, about, target)
    config = load_config(folder, type(wanted))
    have, need = msgspec.to_builtins(config), msgspec.to_builtins(wanted)
    if unlike := sorted(name for name in need if have[name] != need[name]):
        told = "; ".join(f"{name} is {have[name]} instead of {need[name]}" for name in unlike)
        raise StartError(
            "training_differs",
            f"training cannot start from {folder}: {told}. Train with what that was trained with, "
            "or leave out --start.",
        )
    tensors = load_tensors(folder, config)
    del tensors[DRAFT_IDS]
    module.take(tensors)
