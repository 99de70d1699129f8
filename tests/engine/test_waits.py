"""Step.result is the only place that waits for the device; of the drafters, see test_passes."""

from __future__ import annotations

import pytest
import torch

from engine.batch import Chunk
from engine.build import Target
from engine.draw import Draw

WAITS = (
    "item",
    "cpu",
    "tolist",
    "numpy",
    "nonzero",
    "__bool__",
    "__int__",
    "__float__",
    "__index__",
)


def test_verify_enqueues_without_a_hidden_wait(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    chunks = [
        Chunk(0, [5, 6, 7], 0, [0], Draw(), drafted=2),
        Chunk(1, [5, 6, 7], 0, [1], Draw(0.9, top_k=20, top_p=0.9, seed=1), drafted=1),
        Chunk(2, [5], 0, [2], Draw(0.9)),
    ]

    def forbidden(*args: object, **kwargs: object) -> None:
        raise AssertionError("a hidden wait for the device")

    with monkeypatch.context() as patch:
        for name in WAITS:
            patch.setattr(torch.Tensor, name, forbidden)
        step = target.executor.verify(chunks)
    assert [len(result.tokens) for result in step.result()] == [3, 2, 1]


def test_the_guard_itself_catches_a_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*args: object, **kwargs: object) -> None:
        raise AssertionError("a hidden wait for the device")

    with monkeypatch.context() as patch:
        patch.setattr(torch.Tensor, "item", forbidden)
        with pytest.raises(AssertionError, match="hidden wait"):
            torch.ones(1).item()
