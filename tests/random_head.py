"""A multi-token prediction head that fits the embedded model and drafts nonsense."""

from __future__ import annotations

from pathlib import Path

import torch

from engine.mtp.paceline import PacelineConfig
from engine.shipped import marks
from engine.trained import TargetFacts, save


def random_head(folder: Path) -> Path:
    """Its checkpoint."""
    mark = next(iter(marks().values()))
    target = TargetFacts(mark.layers, mark.hidden_size, mark.vocabulary, mark.tokenizer)
    config = PacelineConfig(
        hidden_size=mark.hidden_size, heads=9, kv_heads=3, head_dim=64, intermediate_size=64,
        taps=(mark.layers,), target=target,
    )  # fmt: skip
    tensors = {name: torch.randn(shape) / 30 for name, shape in config.shapes(100).items()}
    save(folder, config, {**tensors, "draft_ids": torch.arange(100).int()})
    return folder
