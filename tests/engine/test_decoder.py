"""The lean decoder equals the transformers module of every family it claims, in float32."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from engine.attention import TorchAttention
from engine.batch import Chunk
from engine.build import Target
from engine.decoder import Decoder
from engine.device import Device
from engine.draw import Draw
from engine.errors import StartError
from engine.executor import Executor
from engine.kv import KvPool, open_pool
from engine.loading import FAMILIES, fuse

CPU = Device(torch.device("cpu"), torch.float32)
SPECIAL: dict[str, dict[str, Any]] = {
    "qwen2": {"use_sliding_window": False},
    "qwen3": {"head_dim": 24, "use_sliding_window": False},
    "smollm3": {"no_rope_layers": [1, 1, 1, 0], "use_sliding_window": False},
    "granite": {
        "embedding_multiplier": 3.0,
        "attention_multiplier": 0.3,
        "residual_multiplier": 0.7,
        "logits_scaling": 2.0,
    },
    "llama": {
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 10000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        }
    },
}


def tiny(family: str, **more: Any) -> Any:
    torch.manual_seed(5)
    settings: dict[str, Any] = {
        "vocab_size": 97,
        "hidden_size": 48,
        "intermediate_size": 80,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    config = AutoConfig.for_model(family, **{**settings, **SPECIAL.get(family, {}), **more})
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name or "bias" in name:  # ones and zeros would hide a mix-up
                parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def executor(decoder: Decoder) -> tuple[Executor, KvPool]:
    pool = open_pool(decoder.shape, CPU, 4, 256, 0.5)
    attention = TorchAttention(pool, decoder.shape, decoder.scales.attention)
    return Executor(decoder, attention, CPU, 4), pool


@pytest.mark.parametrize("family", FAMILIES)
def test_packed_ragged_steps_equal_the_eager_model(family: str) -> None:
    model = tiny(family)
    texts = [torch.randint(3, 97, (length,)).tolist() for length in (23, 9)]
    with torch.no_grad():
        wanted = [model(torch.tensor([text])).logits[0] for text in texts]
    runner, _ = executor(fuse(model, model.config, CPU))
    # Scattered pages for one request, consecutive ones for the other.
    pages = [[9, 2, 30, 4, 17, 6], [40, 41, 42]]
    plans = [[0, 8, 15, 16, 20, 23], [0, 5, 6, 9]]  # prefill chunks, then verify-like chunks
    got: list[list[torch.Tensor]] = [[], []]
    for step in range(5):
        chunks = [
            Chunk(
                request,
                texts[request][plans[request][step] : plans[request][step + 1]],
                plans[request][step],
                pages[request],
                Draw(),
                drafted=plans[request][step + 1] - plans[request][step] - 1,
            )
            for request in (0, 1)
            if step + 1 < len(plans[request])
        ]
        captured: list[torch.Tensor] = []
        original = runner.decoder.logits

        def capture(hidden: torch.Tensor) -> torch.Tensor:
            captured.append(original(hidden))  # noqa: B023  # called in this iteration only
            return captured[-1]  # noqa: B023

        object.__setattr__(runner.decoder, "logits", capture)
        runner.verify(chunks).result()
        object.__setattr__(runner.decoder, "logits", original)
        row = 0
        for chunk in chunks:
            got[chunk.request].append(captured[0][row : row + len(chunk.ids)])
            row += len(chunk.ids)
    for request in (0, 1):
        torch.testing.assert_close(torch.cat(got[request]), wanted[request], atol=2e-5, rtol=1e-5)


def test_the_embedded_model_equals_transformers(target: Target) -> None:
    text = target.text.encode("The three primary colours are red, yellow and")
    model = AutoModelForCausalLM.from_pretrained(target.loaded.path, dtype=torch.float32)
    with torch.no_grad():
        wanted = model(torch.tensor([text])).logits[0].argmax(-1).tolist()
    chunk = Chunk(0, text, 0, [3, 1], Draw(), drafted=len(text) - 1)
    assert target.executor.verify([chunk]).result()[0].tokens == wanted


def test_an_unknown_activation_is_refused_by_name() -> None:
    model = tiny("llama", hidden_act="gelu")
    with pytest.raises(StartError, match="gelu"):
        fuse(model, model.config, CPU)


def test_a_longer_context_than_the_models_is_refused() -> None:
    model = tiny("llama")
    with pytest.raises(StartError, match="128"):
        fuse(model, model.config, CPU, context_length=129)


def test_a_sliding_window_bounds_the_context() -> None:
    model = tiny("mistral", sliding_window=32)
    assert fuse(model, model.config, CPU).shape.context_length == 32
