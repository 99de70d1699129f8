"""Draws target tokens from logits: filters, greedy choice and Gumbel noise.

A seeded request's noise is a counter hash of (seed, absolute position, token id), so a seed gives
the same text whatever the drafter, D or batch. Others draw from the engine's generator."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from engine.device import Device
from engine.draw import Draw

_MASK32 = 0xFFFFFFFF
_MASK64 = 0xFFFFFFFFFFFFFFFF


def choose(
    logits: Tensor,
    draws: Sequence[Draw],
    positions: Sequence[int],
    device: Device,
    generator: torch.Generator,
) -> tuple[Tensor, Tensor]:
    """Target tokens int64 [R] for logits float32 [R, V], and whether each row was sound [R].

    positions: absolute position of the token that each row draws. A row whose largest logit is
    not finite (NaN anywhere, or nothing left) is unsound; its token means nothing."""
    top, tokens = logits.max(dim=-1)
    sound = torch.isfinite(top)
    sampled = [row for row, draw in enumerate(draws) if not draw.greedy]
    if not sampled:
        return tokens, sound
    rows = device.tensor(sampled, torch.int64)
    kept = [draws[row] for row in sampled]
    scores = logits.index_select(0, rows)
    scores = scores / device.tensor([d.temperature for d in kept], torch.float32).unsqueeze(1)
    scores = keep_top(scores, kept, device)
    noisy = scores + _noise(scores, kept, [positions[row] for row in sampled], device, generator)
    return tokens.index_copy_(0, rows, noisy.argmax(dim=-1)), sound


def keep_top(scores: Tensor, draws: Sequence[Draw], device: Device) -> Tensor:
    """Set to -inf what top_k and then top_p drop. scores float32 [S, V], temperature applied.

    top_p keeps the smallest set of most likely tokens whose mass reaches top_p (nucleus
    sampling, Holtzman et al. 2020), at least one."""
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
        ordered, order = scores.index_select(0, rows).topk(widest, dim=-1)  # all survivors, sorted
        mass = ordered.softmax(dim=-1)
        before = mass.cumsum(dim=-1) - mass
        limit = device.tensor([draws[row].top_p for row in nucleus], torch.float32).unsqueeze(1)
        dropped = before >= limit
        dropped[:, 0] = False
        kept = torch.full((len(nucleus), vocabulary), float("-inf"), device=scores.device)
        kept.scatter_(1, order, ordered.masked_fill(dropped, float("-inf")))
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
    if len(seeded) == len(draws):
        return seeded_noise(
            [(int(d.seed or 0), p) for d, p in zip(draws, positions, strict=True)],
            scores.shape[-1],
            device,
        )
    noise = torch.empty_like(scores).exponential_(generator=generator).log_().neg_()
    if seeded:
        keys = [(int(draws[row].seed or 0), positions[row]) for row in seeded]
        fixed = seeded_noise(keys, scores.shape[-1], device)
        noise.index_copy_(0, device.tensor(seeded, torch.int64), fixed)
    return noise


def seeded_noise(keys: Sequence[tuple[int, int]], vocabulary: int, device: Device) -> Tensor:
    """Gumbel noise float32 [S, V] that depends only on (seed, position, token id).

    Two rounds of the 32-bit murmur3 finaliser over the token id, keyed by a 64-bit mix
    (splitmix64) of seed and position; 23 random bits, so that the uniform is never 0 or 1."""
    mixed = [_mix64(seed, position) for seed, position in keys]
    low = device.tensor([value & _MASK32 for value in mixed], torch.int64).unsqueeze(1)
    high = device.tensor([value >> 32 for value in mixed], torch.int64).unsqueeze(1)
    state = torch.arange(vocabulary, device=device.torch_device).unsqueeze(0) * 0x9E3779B1
    state = _finalise((state + low) & _MASK32)
    state = _finalise(state ^ high)
    uniform = (state >> 9).to(torch.float32).add_(0.5).mul_(2.0**-23)
    return uniform.log_().neg_().log_().neg_()


def _finalise(state: Tensor) -> Tensor:
    state = state ^ (state >> 16)
    state = (state * 0x85EBCA6B) & _MASK32
    state = state ^ (state >> 13)
    state = (state * 0xC2B2AE35) & _MASK32
    return state ^ (state >> 16)


def _mix64(seed: int, position: int) -> int:
    value = (
        seed * 0x9E3779B97F4A7C15 + position * 0xD1B54A32D192ED03 + 0x632BE59BD9B4E019
    ) & _MASK64
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK64
    return value ^ (value >> 31)
