"""The lean decoder on real weights, and the shapes it tells the pages.

Its equality with every family it claims is in test_families.py."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM

from engine.batch import Chunk
from engine.build import Target
from engine.device import Device
from engine.draw import Draw
from engine.fusing import fuse
from engine.shape import AttentionKind
from tests.engine.test_families import WINDOW, tiny

CPU = Device(torch.device("cpu"), torch.float32)


def test_the_embedded_model_equals_transformers(target: Target) -> None:
    text = target.text.encode("The three primary colours are red, yellow and")
    model = AutoModelForCausalLM.from_pretrained(target.loaded.path, dtype=torch.float32)
    with torch.no_grad():
        wanted = model(torch.tensor([text])).logits[0].argmax(-1).tolist()
    chunk = Chunk(0, text, 0, [3, 1], Draw(), drafted=len(text) - 1)
    assert target.executor.verify([chunk]).result()[0].tokens == wanted


@pytest.mark.parametrize("family", ["mistral", "qwen2"])
def test_a_sliding_window_model_is_served_at_its_full_context(family: str) -> None:
    model = tiny(family)
    shape = fuse(model, model.config, CPU, 128).shape
    assert shape.context_length == 128
    windowed = AttentionKind(4, 2, 8, 8, 8**-0.5, WINDOW)
    full = AttentionKind(4, 2, 8, 8, 8**-0.5)
    assert shape.kinds == (windowed, full if family == "qwen2" else windowed)


def test_the_softmax_scale_of_granite_is_its_own() -> None:
    model = tiny("granite")
    assert {kind.scale for kind in fuse(model, model.config, CPU, 128).shape.kinds} == {0.3}
