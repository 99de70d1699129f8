"""Exact verification: keep drafted tokens while the target draws the same ones.

For one-hot drafts (n-gram, suffix) "draw from the target, accept while equal" is rejection
sampling with a one-hot q (Leviathan et al. 2023; Chen et al. 2023): the output law is the
target's, and the first token that differs is the correction, drawn from the residual."""

from __future__ import annotations

import torch
from torch import Tensor


def accept(tokens: Tensor, next_drafts: Tensor, leading: Tensor) -> Tensor:
    """Accepted drafts per chunk, int64 [C].

    tokens: target tokens int64 [R]. next_drafts: int64 [R], the draft that follows each row, -1
    after the last. leading: int64 [C, 1 + max D], rows of each chunk in order, padded with R."""
    equal = tokens == next_drafts
    padded = torch.cat((equal, equal.new_zeros(1)))
    return padded[leading].to(torch.int64).cumprod(dim=1).sum(dim=1)
