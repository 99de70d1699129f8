"""The optimiser of matrices: updates are nearly orthogonal, and those of torch where both agree."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from engine.training.muon import Muon, orthogonal


@pytest.mark.parametrize("shape", [(24, 40), (40, 24), (32, 32)])
def test_singular_values_come_close_to_one(shape: tuple[int, int]) -> None:
    torch.manual_seed(0)
    matrix = torch.randn(shape) * 7.0
    found = orthogonal(matrix)
    assert found.shape == shape
    values = torch.linalg.svdvals(found)
    assert values.min() > 0.3
    assert values.max() < 1.3
    u, _, v = torch.linalg.svd(matrix, full_matrices=False)
    assert torch.nn.functional.cosine_similarity(found.flatten(), (u @ v).flatten(), 0) > 0.95


def test_steps_are_those_of_torch() -> None:
    """In bfloat16, in which torch computes; three steps, so that momentum counts."""
    torch.manual_seed(1)
    begin, grads = torch.randn(24, 40), [torch.randn(24, 40) for _ in range(3)]
    mine, other = nn.Parameter(begin.clone()), nn.Parameter(begin.clone())
    own = Muon([mine], 1e-2, torch.bfloat16)
    torchs = torch.optim.Muon([other], 1e-2, weight_decay=0.0, adjust_lr_fn="match_rms_adamw")
    for grad in grads:
        mine.grad, other.grad = grad.clone(), grad.clone()
        own.step()
        torchs.step()
    moved = (other.detach() - begin).norm()
    assert (mine.detach() - other.detach()).norm() < 0.02 * moved
    exact = nn.Parameter(begin.clone())
    full = Muon([exact], 1e-2, torch.float32)
    for grad in grads:
        exact.grad = grad.clone()
        full.step()
    assert (exact.detach() - other.detach()).norm() < 0.1 * moved
