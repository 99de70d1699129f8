"""Muon: momentum whose update is a nearly orthogonal matrix (Jordan et al. 2024)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import overload

import torch
from torch import Tensor, nn

MOMENTUM = 0.95
ITERATIONS = 5
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of the quintic Newton-Schulz iteration: steep at zero, singular values end between .5 and 1.5."""
MATCHED = 0.2
"""Root mean square of an update, about that of AdamW's (Liu et al., Moonlight, 2025)."""


class Muon(torch.optim.Optimizer):
    """For matrices only. dtype: of the iteration's products. torch.optim.Muon, which this follows,
    takes bfloat16 everywhere; a CPU without it is 60 times slower at that than in float32."""

    def __init__(self, matrices: Iterable[nn.Parameter], lr: float, dtype: torch.dtype) -> None:
        super().__init__(matrices, {"lr": lr})
        self._dtype = dtype

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """One step on the gradients that there are or that the closure makes; its value."""
        loss: float | None = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for matrix in group["params"]:
                if matrix.grad is None:
                    continue
                state = self.state[matrix]
                if not state:
                    state["momentum"] = torch.zeros_like(matrix)
                momentum = state["momentum"].lerp_(matrix.grad, 1.0 - MOMENTUM)
                update = orthogonal(matrix.grad.lerp(momentum, MOMENTUM).to(self._dtype))
                matrix.sub_(update, alpha=group["lr"] * MATCHED * max(matrix.shape) ** 0.5)
        return loss


def orthogonal(matrix: Tensor) -> Tensor:
    """[n, m] -> [n, m], nearly U V^T of its singular value decomposition U S V^T."""
    a, b, c = COEFFICIENTS
    tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.T if tall else matrix
    x = x / x.norm().clamp_min(1e-7)
    for _ in range(ITERATIONS):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.T if tall else x
