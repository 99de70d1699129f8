"""Draws target tokens from processed logits: filters, greedy choice, Gumbel noise, p/q rule.

A seeded request's noise is a counter hash of (seed, absolute position, token id), so a seed gives
the same text whatever the drafter, D or batch. Others draw from the engine's generator.

For drafters: `law` is the q to draw from and to hand over with the draft; `coupled` is what to
draft for a seeded request, whose target draws with the same noise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from engine.device import Device
from engine.draw import Draw
from engine.greedy import greedy
from engine.noise import seeded_noise
from engine.rejection import Proposals, judge, likelihood

_LEAST = torch.finfo(torch.float32).tiny
"""Exponential noise is never zero: its logarithm must be finite."""


class Chosen(NamedTuple):
    """Of R rows: tokens int64 [R], and whether each row was sound, bool [R]. chances: float32 [N],
    of each proposed draft to be accepted; None without any."""

    tokens: Tensor
    sound: Tensor
    chances: Tensor | None = None


def choose(
    logits: Tensor,
    draws: Sequence[Draw],
    positions: Sequence[int],
    device: Device,
    generator: torch.Generator,
    proposed: Proposals | None = None,
) -> Chosen:
    """Target tokens for logits float32 [R, V].

    positions: absolute position of the token that each row draws. proposed: drafts of these rows;
    those with a law are judged by the p/q rule, and an accepted one is its row's token. A row whose
    largest logit is not finite (NaN anywhere, or nothing left) is unsound; its token means
    nothing."""
    top, tokens = greedy(logits)
    sound = torch.isfinite(top)
    sampled = [row for row, draw in enumerate(draws) if not draw.greedy]
    if not sampled:
        return Chosen(tokens, sound)
    rows = device.tensor(sampled, torch.int64)
    kept = [draws[row] for row in sampled]
    scores = filtered(logits.index_select(0, rows), kept, device)
    noise = _noise(scores, kept, [positions[row] for row in sampled], device, generator)
    if proposed is None:
        drawn = scores.add_(noise).argmax(dim=-1)
        return Chosen(tokens.index_copy_(0, rows, drawn), sound)
    place = {row: index for index, row in enumerate(sampled)}
    where = device.tensor([place[row] for row in proposed.rows], torch.int64)
    theirs, drafts, q = scores.index_select(0, where), proposed.tokens, proposed.q
    if q is None:
        chances = likelihood(theirs, drafts)
        drawn = scores.add_(noise).argmax(dim=-1)
    else:
        n = len(q)
        judged = judge(theirs[:n], drafts[:n], q, generator)
        chances = judged.chances
        if n < len(drafts):
            chances = torch.cat((chances, likelihood(theirs[n:], drafts[n:])))
        drawn = scores.index_copy_(0, where[:n], judged.weights).add_(noise).argmax(dim=-1)
        verdict = torch.where(judged.accepted, drafts[:n], drawn.index_select(0, where[:n]))
        drawn = drawn.index_copy_(0, where[:n], verdict)
    return Chosen(tokens.index_copy_(0, rows, drawn), sound, chances)


def filtered(logits: Tensor, draws: Sequence[Draw], device: Device) -> Tensor:
    """Temperature, min_p, top_k and top_p, in this order; logits float32 [S, V] of rows that are
    not greedy. What is dropped is -inf."""
    scores = logits / device.tensor([d.temperature for d in draws], torch.float32).unsqueeze(1)
    if any(draw.min_p > 0.0 for draw in draws):
        gaps = [math.log(d.min_p) if d.min_p > 0.0 else float("-inf") for d in draws]
        floor = scores.amax(dim=-1) + device.tensor(gaps, torch.float32)
        scores = scores.masked_fill(scores < floor.unsqueeze(1), float("-inf"))
    return keep_top(scores, draws, device)


def law(logits: Tensor, draws: Sequence[Draw], device: Device) -> Tensor:
    """The probabilities float32 [S, V] that unseeded tokens are drawn from, filters applied."""
    return filtered(logits, draws, device).softmax(dim=-1)


def coupled(
    logits: Tensor,
    draws: Sequence[Draw],
    positions: Sequence[int],
    device: Device,
    ids: Tensor | None = None,
) -> Tensor:
    """What a drafter with these logits float32 [S, n] drafts for seeded requests: columns int64
    [S]. ids: int64 [n], the token of each column; None: column and token are the same.

    The target draws the token at each position with the very same noise (Gumbel coupling, Daliri
    et al. 2024), so the two agree with probability at least (1 - TV) / (1 + TV)."""
    scores = filtered(logits, draws, device)
    keys = [(draw.seed or 0, place) for draw, place in zip(draws, positions, strict=True)]
    return (scores + seeded_noise(keys, scores.shape[-1], device, ids)).argmax(dim=-1)


def keep_top(scores: Tensor, draws: Sequence[Draw], device: Device) -> Tensor:
    """Set to -inf what top_k and then top_p drop. scores float32 [S, V], temperature applied.

    top_p keeps the smallest set of most likely tokens whose mass reaches top_p (nucleus
    sampling, Holtzman et al. 2020), at least one. Of tokens that score the same, as many do in
    16 bits, all are kept or none: top_k and top_p may keep more than so many, never a choice
    between equals. What is kept of a row depends on that row alone: the mass is relative to the
    whole row, and summed in float64, whose sums of float32 terms do not depend on their order."""
    vocabulary = scores.shape[-1]
    limits = [d.top_k if 0 < d.top_k < vocabulary else vocabulary for d in draws]
    if min(limits) < vocabulary:
        largest = max(limit for limit in limits if limit < vocabulary)
        values = scores.topk(largest, dim=-1).values
        at = device.tensor([min(limit, largest) - 1 for limit in limits], torch.int64)
        floor = values.gather(1, at.unsqueeze(1))
        unlimited = device.tensor([float(limit == vocabulary) for limit in limits], torch.float32)
        floor = torch.where(unlimited.unsqueeze(1) > 0, float("-inf"), floor)
        scores = scores.masked_fill(scores < floor, float("-inf"))
    nucleus = [row for row, draw in enumerate(draws) if draw.top_p < 1.0]
    if nucleus:
        rows = device.tensor(nucleus, torch.int64)
        widest = max(limits[row] for row in nucleus)
        chosen = scores.index_select(0, rows)
        ordered = chosen.topk(widest, dim=-1).values  # what it lacks equals the last survivor
        mass = (ordered - chosen.logsumexp(dim=-1, keepdim=True)).exp_().double()
        before = mass.cumsum(dim=-1) - mass
        limit = device.tensor([draws[row].top_p for row in nucleus], torch.float64).unsqueeze(1)
        dropped = before >= limit
        dropped[:, 0] = False
        floor = ordered.masked_fill(dropped, float("inf")).amin(dim=-1, keepdim=True)
        kept = chosen.masked_fill(chosen < floor, float("-inf"))
        scores = scores.index_copy(0, rows, kept)
    return scores


def _noise(
    scores: Tensor,
    draws: Sequence[Draw],
    positions: Sequence[int],
    device: Device,
    generator: torch.Generator,
) -> Tensor:
    """Standard Gumbel noise [S, V]: argmax(scores + noise) draws from softmax(scores)."""
    seeded = [row for row, draw in enumerate(draws) if draw.seed is not None]
    keys = [(int(draws[row].seed or 0), positions[row]) for row in seeded]
    if len(seeded) == len(draws):
        return seeded_noise(keys, scores.shape[-1], device)
    noise = torch.empty_like(scores).exponential_(generator=generator)
    noise = noise.clamp_min_(_LEAST).log_().neg_()
    if seeded:
        fixed = seeded_noise(keys, scores.shape[-1], device)
        noise.index_copy_(0, device.tensor(seeded, torch.int64), fixed)
    return noise
