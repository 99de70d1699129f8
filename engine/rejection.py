"""The p/q rule for drafts that were drawn from a law q: accept, or draw from what q left over.

Leviathan et al. 2023, Chen et al. 2023: accept d with probability min(1, p(d) / q(d)), else draw
from the normalised (p - q)+. Exact only if d is a fresh draw from q, its length was settled before
it was drawn, and the noise here is independent of the drafter's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.batch import Chunk
from engine.device import Device


@dataclass(frozen=True, slots=True)
class Proposals:
    """Drafted tokens with their laws. rows: the logits row each must pass. tokens int64 [N];
    q float32 [N, V], the law that each token was drawn from."""

    rows: list[int]
    tokens: Tensor
    q: Tensor


def proposals(
    chunks: Sequence[Chunk], groups: Sequence[range], next_drafts: Tensor, device: Device
) -> Proposals | None:
    """The drafts of unseeded sampled requests that have a row of q; None when there are none.
    Greedy and seeded requests match their own token instead and need no q, as do the one-hot
    tokens that continue a draft with q.

    chunks: the wanted ones, groups: their logits rows; next_drafts as in Batch."""
    rows: list[int] = []
    laws: list[Tensor] = []
    for chunk, group in zip(chunks, groups, strict=True):
        if chunk.q is None or chunk.draw.greedy or chunk.draw.seed is not None:
            continue
        rows.extend(group[: len(chunk.q)])
        laws.append(chunk.q)
    if not rows:
        return None
    tokens = next_drafts.index_select(0, device.tensor(rows, torch.int64))
    return Proposals(rows, tokens, laws[0] if len(laws) == 1 else torch.cat(laws))


def judge(
    scores: Tensor, tokens: Tensor, q: Tensor, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Whether each draft is accepted, bool [N], and the log weights of the draw that replaces a
    rejected one, float32 [N, V].

    scores: filtered logits float32 [N, V]; p is their softmax. Where q gives its own draft no mass
    or is no law at all, the draft is judged as one-hot: the weights are p and nothing is accepted
    here, but the draw may equal it. All-zero residuals, which rounding can make, are p too."""
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
    return accepted, torch.where(usable.unsqueeze(1), residual, p).log_()
