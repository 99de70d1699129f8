"""The loss of a drafter: cross-entropy against the target's own distribution."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Taught:
    """loss: sum over the rows of weight * cross-entropy. weight: sum of the weights. agreed: rows
    whose most likely token is the target's; rows: all of them."""

    loss: Tensor
    weight: Tensor
    agreed: Tensor
    rows: int


def soft_cross_entropy(
    logits: Tensor, top_ids: Tensor, top_logprobs: Tensor, columns: Tensor
) -> Taught:
    """logits [N, n] over the draft vocabulary against the target's K most likely tokens, top_ids
    int64 and top_logprobs float32 [N, K]. columns: int64 [V], the logit column of each target id,
    -1 for ids that are not drafted.

    The target's law is taken on the draft vocabulary, and a row weighs what it has there, so that
    what can never be drafted teaches nothing (Li et al., EAGLE-3, 2025; Zhao et al., FR-Spec,
    2025). Minimising it is minimising the KL divergence from the target to the drafter."""
    places = columns[top_ids]
    inside = places >= 0
    mass = top_logprobs.exp() * inside
    weight = mass.sum(-1)
    share = mass / weight.clamp_min(1e-9).unsqueeze(-1)
    logits = logits.float()
    told = logits.gather(1, places.clamp_min(0))
    loss = logits.logsumexp(-1) - (share * told).sum(-1)
    with torch.no_grad():
        agreed = (logits.argmax(-1) == places[:, 0]).sum()
    return Taught((weight * loss).sum(), weight.sum(), agreed, len(logits))
