"""What a fit is told."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch

from engine.device import has_fast_bfloat16


@dataclass(frozen=True)
class Options:
    """kind: what is trained. tokens: answer tokens to train on in all, repeated where the shards
    hold fewer. rows: answer tokens of one step. context: prompt tokens before them. depth: tokens
    drafted in a row. decay: weight of each next one. hidden_loss: weight of the smooth L1 distance
    between the head's output and the target's own (EAGLE, Li et al. 2024). norms: False leaves out
    all norms but the last. layers: of a draft model. muon: whether matrices are trained with Muon
    (Jordan et al. 2024) instead of AdamW. seconds: stop after so long, 0 never. start: a checkpoint
    folder to go on from instead of the target's own layers, "" for none. precision: of products;
    auto is bfloat16 where the device is fast at it."""

    kind: Literal["mtp", "draft"] = "mtp"
    tokens: int = 4_000_000
    rows: int = 2048
    context: int = 192
    depth: int = 3
    decay: float = 0.8
    rate: float = 2e-3
    warm_up: float = 0.04
    clip: float = 1.0
    hidden_loss: float = 0.0
    norms: bool = True
    layers: int = 2
    muon: bool = True
    precision: Literal["auto", "bfloat16", "float32"] = "auto"
    seed: int = 0
    seconds: float = 0.0
    start: str = ""

    def on(self, device: torch.device) -> Options:
        """These options with the precision that auto means on the device."""
        if self.precision != "auto":
            return self
        return replace(self, precision="bfloat16" if has_fast_bfloat16(device) else "float32")


def products(options: Options) -> torch.dtype:
    """What products are computed in."""
    return torch.bfloat16 if options.precision == "bfloat16" else torch.float32
