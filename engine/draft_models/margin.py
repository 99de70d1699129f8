"""How far a drafter's best token is ahead of its second best."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from engine.greedy import BLOCK


def margins(logits: Tensor) -> Tensor:
    """Largest minus second largest of logits float32 [R, V], float32 [R]; infinite where there is
    no second one.

    A margin is known before its row's token is drawn, so it may decide whether that is verified.
    On the CPU the two are looked up in the best block of the row, as in engine/greedy.py."""
    rows, width = logits.shape
    if width < 2:
        return logits.new_full((rows,), math.inf)
    block = math.gcd(width, BLOCK)
    if logits.device.type != "cpu" or block < 64 or block == width:
        two = logits.topk(2, dim=-1).values
        return two[:, 0] - two[:, 1]
    blocks = logits.reshape(rows, width // block, block)
    peaks, best = blocks.amax(dim=-1).topk(2, dim=-1)
    inside = blocks[torch.arange(rows), best[:, 0]].topk(2, dim=-1).values
    return inside[:, 0] - torch.maximum(inside[:, 1], peaks[:, 1])
