"""Root-mean-square normalisation: torch's own, and one that is a single kernel on the CPU."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

Norm = Callable[[Tensor], Tensor]
"""x [..., d] -> [..., d]."""


def rms_norm(weight: Tensor, epsilon: float) -> Norm:
    """x / sqrt(mean(x^2) + epsilon) * weight over the last dimension, for weight [d]."""
    if weight.device.type == "cpu":
        return MirroredNorm(weight, epsilon)
    return FusedNorm(weight, epsilon)


class FusedNorm:
    """`F.rms_norm`, one kernel on CUDA; torch 2.11 to 2.13 run it as eight on the CPU."""

    def __init__(self, weight: Tensor, epsilon: float) -> None:
        self._weight = weight
        self._epsilon = epsilon

    def __call__(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self._weight.shape, self._weight, self._epsilon)


class MirroredNorm:
    """Layer normalisation of x followed by -x: its mean is 0 and its variance mean(x^2), so that
    the first half is the RMS norm. Rounds once, where `F.rms_norm` rounds before the weight too."""

    def __init__(self, weight: Tensor, epsilon: float) -> None:
        self._size = weight.shape[0]
        self._twice = torch.cat((weight, weight))
        self.weight = self._twice.narrow(0, 0, self._size)
        self.epsilon = epsilon

    def __call__(self, x: Tensor) -> Tensor:
        both = torch.cat((x, -x), dim=-1)
        normed = torch.layer_norm(both, (2 * self._size,), self._twice, None, self.epsilon)
        return normed.narrow(-1, 0, self._size)
