"""Seeded Gumbel noise: a counter hash of (seed, absolute position, token id)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from engine.device import Device

_MASK32 = 0xFFFFFFFF
_MASK64 = 0xFFFFFFFFFFFFFFFF


def seeded_noise(
    keys: Sequence[tuple[int, int]], vocabulary: int, device: Device, ids: Tensor | None = None
) -> Tensor:
    """Gumbel noise float32 [S, V] that depends only on (seed, position, token id). ids: int64 [n],
    the tokens that noise is wanted of, [S, n]; None: all of the vocabulary.

    Two rounds of the 32-bit murmur3 finaliser over the token id, keyed by a 64-bit mix
    (splitmix64) of seed and position; 23 random bits, so that the uniform is never 0 or 1."""
    mixed = [_mix64(seed, position) for seed, position in keys]
    low = device.tensor([value & _MASK32 for value in mixed], torch.int64).unsqueeze(1)
    high = device.tensor([value >> 32 for value in mixed], torch.int64).unsqueeze(1)
    tokens = torch.arange(vocabulary, device=device.torch_device) if ids is None else ids
    state = tokens.unsqueeze(0) * 0x9E3779B1
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
