"""The p/q rule for drafts that were drawn from a law q: accept, or draw from what q left over.

Leviathan et al. 2023, Chen et al. 2023: accept d with probability min(1, p(d) / q(d)), else draw
from the normalised (p - q)+. Exact only if d is a fresh draw from q, its length was settled before
it was drawn, and the noise here is independent of the drafter's. A one-hot draft x is accepted with
chance p(x). These chances are reported: they say more than what came of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from engine.batch import Chunk
from engine.device import Device


@dataclass(frozen=True, slots=True)
class Proposals:
    """Drafts that are accepted with a chance: those of unseeded sampled requests. rows: the logits
    row each must pass. tokens: int64 [N]. q: float32 [M, V], the laws that the first M <= N were
    drawn from; None for none. The others are one-hot."""

    rows: list[int]
    tokens: Tensor
    q: Tensor | None


class Judged(NamedTuple):
    """accepted: bool [N]. weights: float32 [N, V], logarithms, of the draw that replaces a rejected
    draft. chances: float32 [N], of each draft to be accepted, before this was drawn."""

    accepted: Tensor
    weights: Tensor
    chances: Tensor


def proposals(
    chunks: Sequence[Chunk], groups: Sequence[range], next_drafts: Tensor, device: Device
) -> Proposals | None:
    """The drafts of unseeded sampled requests; None when there are none. Greedy and seeded requests
    match their own token instead.

    chunks: the wanted ones, groups: their logits rows; next_drafts as in Batch."""
    rows: list[int] = []
    certain: list[int] = []
    laws: list[Tensor] = []
    for chunk, group in zip(chunks, groups, strict=True):
        if not chunk.drafted or chunk.draw.greedy or chunk.draw.seed is not None:
            continue
        drawn = 0
        if chunk.q is not None:
            drawn = len(chunk.q)
            laws.append(chunk.q)
        rows.extend(group[:drawn])
        certain.extend(group[drawn : chunk.drafted])
    rows.extend(certain)
    if not rows:
        return None
    tokens = next_drafts.index_select(0, device.tensor(rows, torch.int64))
    q = None
    if laws:
        q = laws[0] if len(laws) == 1 else torch.cat(laws)
    return Proposals(rows, tokens, q)


def likelihood(scores: Tensor, tokens: Tensor) -> Tensor:
    """The chances float32 [N] that tokens int64 [N] are drawn from filtered logits float32
    [N, V]: that a one-hot draft is accepted. 0 for ids beyond the vocabulary."""
    drafted = tokens.clamp(0, scores.shape[-1] - 1).unsqueeze(1)
    p = (scores.gather(1, drafted).squeeze(1) - scores.logsumexp(dim=-1)).exp()
    return p.clamp_max(1.0).where(tokens == drafted.squeeze(1), 0.0)


def judge(scores: Tensor, tokens: Tensor, q: Tensor, generator: torch.Generator) -> Judged:
    """Drafts that were drawn from q.

    scores: filtered logits float32 [N, V]; p is their softmax. Where q gives its own draft no mass
    or is no law at all, the draft is judged as one-hot: the weights are p and nothing is accepted
    here, but the draft may equal it. All-zero residuals, which rounding can make, are p too."""
    p = scores.softmax(dim=-1)
    drafted = tokens.clamp(0, scores.shape[-1] - 1).unsqueeze(1)
    known = tokens == drafted.squeeze(1)
    p_drafted = p.gather(1, drafted).squeeze(1)
    q_drafted = q.gather(1, drafted).squeeze(1)
    uniform = torch.rand(
        q_drafted.shape, dtype=torch.float32, device=scores.device, generator=generator
    )
    residual = (p - q).clamp_min_(0.0)
    left = residual.sum(dim=-1)  # NaN when q has one
    lawful = (q_drafted > 0) & known & torch.isfinite(left)
    accepted = lawful & (uniform * q_drafted < p_drafted)
    usable = lawful & (left > 0)
    chances = torch.where(lawful, (p_drafted / q_drafted).clamp_max(1.0), p_drafted)
    weights = torch.where(usable.unsqueeze(1), residual, p).log_()
    return Judged(accepted, weights, chances.where(known, 0.0))
