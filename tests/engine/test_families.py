"""Every claimed family equals eager transformers over pages, packed and ragged, in float32."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from engine.attention import TorchAttention
from engine.batch import Chunk, pack
from engine.build import Target
from engine.decoder import Decoder
from engine.device import Device
from engine.draw import Draw
from engine.errors import StartError
from engine.fallback import Fallback
from engine.families import LEAN, PAGED, context_limit, refusal
from engine.kv import empty_pool
from engine.loading import causal_lm, open_model
from engine.probe import open_fallback
from engine.shape import Model

CPU = Device(torch.device("cpu"), torch.float32)
VOCABULARY = 97
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
WINDOW = 6
SLIDING = {"sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention"]}
MOE = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2}
SMALL_MOE = {**MOE, "moe_intermediate_size": 24, "n_routed_experts": 4, "n_group": 1}
LATENT = {
    "q_lora_rank": 16,
    "kv_lora_rank": 12,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 6,
    "head_dim": 4,
    "num_key_value_heads": 4,
}
SPECIAL: dict[str, dict[str, Any]] = {
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
    "mistral": {"sliding_window": WINDOW},
    "qwen2": {**SLIDING, "use_sliding_window": True},
    "qwen3": {**SLIDING, "use_sliding_window": True, "head_dim": 24},
    "smollm3": {"no_rope_layers": [1, 0]},
    "granite": {
        "embedding_multiplier": 3.0,
        "attention_multiplier": 0.3,
        "residual_multiplier": 0.7,
        "logits_scaling": 2.0,
    },
    "ministral": SLIDING,
    "cwm": SLIDING,
    "afmoe": {**SLIDING, **SMALL_MOE},
    "cohere2": SLIDING,
    "cohere2_moe": {**SLIDING, **SMALL_MOE},
    "deepseek_v3": {**LATENT, **SMALL_MOE, "topk_group": 1, "first_k_dense_replace": 1},
    "deepseek_v2": {**LATENT, **SMALL_MOE, "topk_group": 1, "topk_method": "greedy"},
    "ernie4_5_moe": {**SMALL_MOE, "moe_num_experts": 4, "moe_k": 2},
    "exaone4": SLIDING,
    "exaone_moe": {**SLIDING, **SMALL_MOE},
    "flex_olmo": MOE,
    "gemma2": {**SLIDING, "attn_logit_softcapping": 3.0, "query_pre_attn_scalar": 20},
    "gemma3_text": {**SLIDING, "query_pre_attn_scalar": 20},
    "glm4_moe": {**SMALL_MOE, "first_k_dense_replace": 1},
    "glm4_moe_lite": {**LATENT, **SMALL_MOE},
    "gpt_oss": {**SLIDING, **MOE},
    "granite_swa": SLIDING,
    "granitemoe": MOE,
    "granitemoeshared": MOE,
    "hunyuan_v1_moe": {**MOE, "moe_topk": 2},
    "hy_v3": SMALL_MOE,
    "jetmoe": {**MOE, "kv_channels": 8, "num_key_value_heads": 2},
    "laguna": {**SLIDING, **SMALL_MOE},
    "longcat_flash": {**LATENT, **SMALL_MOE},
    "mellum": {**SLIDING, **SMALL_MOE},
    "mimo_v2_flash": {**SLIDING, **SMALL_MOE, "topk_group": 1},
    "minicpm3": LATENT,
    "minimax_m2": MOE,
    "mixtral": {**MOE, "sliding_window": WINDOW},
    "modernbert-decoder": SLIDING,
    "olmo3": SLIDING,
    "olmoe": MOE,
    "phi3": {"sliding_window": WINDOW},
    "phimoe": {**MOE, "sliding_window": WINDOW},
    "qwen2_moe": {**SMALL_MOE, **SLIDING, "use_sliding_window": True},
    "qwen3_moe": {**SMALL_MOE, "sliding_window": WINDOW, "use_sliding_window": True},
    "solar_open": {**SMALL_MOE, "topk_group": 1},
    "starcoder2": {"sliding_window": WINDOW},
    "vaultgemma": {**SLIDING, "attn_logit_softcapping": 3.0},
    "youtu": LATENT,
}
PAGE = 4
TEXTS = [
    torch.randint(
        3, VOCABULARY, (length,), generator=torch.Generator().manual_seed(length)
    ).tolist()
    for length in (23, 9, 14)
]
PLANS = [[0, 8, 15, 16, 20, 23], [0, 5, 6, 9], [0, 10, 14]]
"""Prefill chunks, a decode row, verify-like chunks of 4 and 3 rows."""
PAGES = [[9, 2, 30, 4, 17, 6], [20, 21, 22], [1, 3, 5, 7]]


def tiny(family: str, **more: Any) -> Any:
    torch.manual_seed(5)
    config = AutoConfig.for_model(family, **{**SIZES, **SPECIAL.get(family, {}), **more})
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name or "bias" in name:  # ones and zeros would hide a mix-up
                parameter.add_(0.3 * torch.randn_like(parameter))
            elif "sink" in name:
                parameter.normal_()
            else:
                parameter.mul_(4.0)  # attention that is not flat shows a missing window
    return model


def eager(model: Any, texts: list[list[int]]) -> list[Tensor]:
    model.set_attn_implementation("eager")
    return [model(torch.tensor([text]), use_cache=False).logits[0] for text in texts]


def paged(model: Model, device: Device = CPU) -> list[Tensor]:
    """Logits of every row of TEXTS, computed in packed ragged steps."""
    attention = TorchAttention(empty_pool(model.shape, device, 40, PAGE), model.shape)
    rows: list[list[Tensor]] = [[] for _ in TEXTS]
    for step in range(max(len(plan) for plan in PLANS) - 1):
        chunks = [
            Chunk(request, TEXTS[request][plan[step] : plan[step + 1]], plan[step], pages, Draw())
            for request, (plan, pages) in enumerate(zip(PLANS, PAGES, strict=True))
            if step + 1 < len(plan)
        ]
        batch = pack(chunks, device, PAGE)
        logits = model.logits(model.forward(batch.ids, batch.positions, attention.plan(batch)))
        for chunk, first in zip(chunks, batch.offsets, strict=True):
            rows[chunk.request].append(logits[first : first + len(chunk.ids)])
    return [torch.cat(parts) for parts in rows]


def assert_equal(got: list[Tensor], wanted: list[Tensor]) -> None:
    for mine, theirs in zip(got, wanted, strict=True):
        scale = float(theirs.abs().max())
        torch.testing.assert_close(mine, theirs, atol=1e-4 * scale, rtol=1e-4)


CLAIMED = [family for family in (*LEAN, *PAGED) if family in CONFIG_MAPPING]
"""Those of them that the installed transformers has."""


def test_most_claimed_families_are_checked_whatever_the_version() -> None:
    assert len(CLAIMED) >= len((*LEAN, *PAGED)) - 5
    assert {"mixtral", "qwen3_moe", "gpt_oss", "gemma2", "gemma3_text", "deepseek_v3"} <= {*CLAIMED}


@pytest.mark.parametrize("family", CLAIMED)
def test_packed_ragged_steps_equal_eager(family: str) -> None:
    with torch.no_grad():
        model = tiny(family)
        wanted = eager(model, TEXTS)
        served = open_model(model, model.config, CPU, 128)
        assert isinstance(served, Decoder if family in LEAN else Fallback)
        assert_equal(paged(served), wanted)


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt_oss", "phi3", "gpt_neox"])
def test_bfloat16_models_stay_close_to_eager_ones(family: str, tmp_path: Path) -> None:
    tiny(family).save_pretrained(tmp_path)
    model: Any = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    with torch.no_grad():
        wanted = torch.cat(eager(model, TEXTS)).float()
        device = Device(torch.device("cpu"), torch.bfloat16)
        got = torch.cat(paged(open_model(model, model.config, device, 128), device))
    assert got.dtype == torch.float32
    assert float((got - wanted).norm() / wanted.norm()) < 0.02


@pytest.mark.parametrize(
    ("family", "settings", "reason"),
    [
        ("stablelm", {}, "does not pass keywords on"),
        ("nemotron", {}, "does not pass keywords on"),
        ("diffllama", {}, "called attention 4 times"),
        ("doge", SMALL_MOE, "a mask of its own"),
        ("bert", {}, "attends to later tokens"),
    ],
)
def test_a_module_that_cannot_attend_over_pages_is_refused_by_name(
    family: str, settings: dict[str, Any], reason: str
) -> None:
    model = tiny(family, **settings)
    with torch.no_grad(), pytest.raises(StartError, match=reason) as caught:
        open_model(model, model.config, CPU, 128)
    assert caught.value.code == "model_unsupported"
    assert caught.value.message.startswith(f"{family!r} models are not served: ")


@pytest.mark.parametrize(
    ("family", "settings", "reason"),
    [
        ("mamba", {}, "attention be replaced|layers of type"),
        ("bloom", {}, "attention be replaced"),
        ("t5", {}, "encoder-decoder"),
        ("gemma3", {}, "multimodal"),
        ("llava", {}, "multimodal"),
        (
            "lfm2",
            {"layer_types": ["conv", "full_attention"], "num_hidden_layers": 2},
            "layers of type conv",
        ),
        ("minimax", {}, "layers of type linear_attention"),
        ("qwen3_next", {}, "layers of type linear_attention"),
        ("llama4_text", {}, "chunked_attention"),
        ("falcon_h1", {}, "does not live in pages|layers of type"),
        ("jamba", {}, "layers of type|does not live in pages"),
        ("deepseek_v32", {}, "sparse.attention|indexed_attention"),
        ("deepseek_v3", {"index_topk": 64}, "sparse attention"),
        ("vit", {}, "no causal language model"),
        ("llama", {"quantization_config": {"quant_method": "awq"}}, "quantised .awq."),
    ],
)
def test_a_family_that_cannot_be_served_is_refused_before_its_weights_are_read(
    family: str, settings: dict[str, Any], reason: str
) -> None:
    config = AutoConfig.for_model(family, **settings)
    found = refusal(config, causal_lm(config))
    assert found is not None
    assert re.search(reason, found)


def test_a_family_nobody_proved_is_compared_with_eager_when_it_is_loaded() -> None:
    with torch.no_grad():
        model = tiny("gpt_neox")
        served = open_fallback(model, model.config, CPU, 128, proven=False)
        assert_equal(paged(served), eager(tiny("gpt_neox"), TEXTS))
        shifting = tiny("gpt_neox")  # as token-shift layers do: each row mixes in the one before
        shifting.gpt_neox.embed_in.register_forward_hook(lambda _, __, rows: rows + rows.roll(1, 1))
        with pytest.raises(StartError, match=r"does not live in pages"):
            open_fallback(shifting, shifting.config, CPU, 128, proven=False)


def test_a_window_that_is_left_out_is_seen_by_the_proof() -> None:
    with torch.no_grad():
        model = tiny("mixtral")
        wanted = eager(model, TEXTS)
        served = open_model(model, model.config, CPU, 128)
        full = tuple(replace(kind, window=None) for kind in served.shape.kinds)
        object.__setattr__(served, "shape", replace(served.shape, kinds=full))
        with pytest.raises(AssertionError):
            assert_equal(paged(served), wanted)


def test_llamas_that_the_lean_decoder_cannot_compute_run_as_transformers_modules() -> None:
    with torch.no_grad():
        model = tiny("llama", hidden_act="gelu")
        wanted = eager(model, TEXTS)
        served = open_model(model, model.config, CPU, 128)
        assert isinstance(served, Fallback)
        assert_equal(paged(served), wanted)


def test_lean_and_fallback_agree_on_the_embedded_model(target: Target) -> None:
    text = target.text.encode("The three primary colours are red, yellow and")
    model = AutoModelForCausalLM.from_pretrained(target.loaded.path, dtype=torch.float32)
    with torch.no_grad():
        fallback = open_fallback(model, model.config, CPU, 8192, proven=True)
        logits = []
        for served in (fallback, target.loaded.decoder):
            attention = TorchAttention(empty_pool(served.shape, CPU, 4, PAGE), served.shape)
            batch = pack([Chunk(0, text, 0, [3, 1, 2, 0], Draw())], CPU, PAGE)
            hidden = served.forward(batch.ids, batch.positions, attention.plan(batch))
            logits.append(served.logits(hidden))
    torch.testing.assert_close(logits[0], logits[1], atol=1e-4, rtol=1e-4)


def test_rotary_embeddings_that_shift_bound_the_context() -> None:
    scaling = {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "long_factor": [1.0, 2.0, 3.0, 4.0],
        "short_factor": [1.0, 1.0, 1.0, 1.0],
        "original_max_position_embeddings": 64,
    }
    model = tiny("phi3", rope_parameters=scaling, original_max_position_embeddings=64)
    assert context_limit(model.config) == 64
    assert context_limit(tiny("phi3").config) == 128
