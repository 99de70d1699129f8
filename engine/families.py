"""Which model families are served, through what, and why the others are not."""

from __future__ import annotations

from typing import Any

LEAN = (
    "llama",
    "mistral",
    "qwen2",
    "qwen3",
    "smollm3",
    "granite",
    "ministral",
    "seed_oss",
    "cwm",
)
"""Model types that fit the lean decoder. Tests hold each equal to its transformers module."""

SERVED_AS = {"mimo": "qwen2"}
"""Model types that transformers does not have -> one whose module computes the same."""

PAGED = (
    "afmoe",
    "apertus",
    "arcee",
    "bitnet",
    "cohere",
    "cohere2",
    "cohere2_moe",
    "deepseek_v2",
    "deepseek_v3",
    "ernie4_5",
    "ernie4_5_moe",
    "exaone4",
    "exaone_moe",
    "flex_olmo",
    "gemma",
    "gemma2",
    "gemma3_text",
    "glm",
    "glm4",
    "glm4_moe",
    "glm4_moe_lite",
    "gpt2",
    "gpt_bigcode",
    "gpt_neox",
    "gpt_oss",
    "granite_swa",
    "granitemoe",
    "granitemoeshared",
    "helium",
    "hunyuan_v1_dense",
    "hunyuan_v1_moe",
    "hy_v3",
    "hyperclovax",
    "jais2",
    "jetmoe",
    "laguna",
    "longcat_flash",
    "mellum",
    "mimo_v2_flash",
    "minicpm3",
    "minimax_m2",
    "ministral3",
    "mixtral",
    "modernbert-decoder",
    "nanochat",
    "olmo",
    "olmo2",
    "olmo3",
    "olmoe",
    "opt",
    "persimmon",
    "phi",
    "phi3",
    "phimoe",
    "qwen2_moe",
    "qwen3_moe",
    "solar_open",
    "starcoder2",
    "vaultgemma",
    "youtu",
)
"""Model types that run their transformers module over our pages. Tests hold each equal to eager
transformers; a family outside both lists is compared with eager when it is loaded."""

KNOWN_LAYERS = frozenset({"full_attention", "sliding_attention"})
SHIFTING_ROPE = frozenset({"dynamic", "longrope"})
"""Rotary embeddings that change with the longest sequence of the batch, past a length."""


def refusal(config: Any, model_class: Any) -> str | None:
    """Why a model of this transformers config and class cannot be served, or None."""
    if getattr(config, "is_encoder_decoder", False):
        return "it is an encoder-decoder model; decoder-only models are served"
    parts = sorted(name for name in getattr(config, "sub_configs", {}) if name != "text_config")
    if parts or getattr(config, "text_config", None) is not None:
        return f"it is a multimodal model ({', '.join(parts) or 'text_config'}); text models are"
    if model_class is None:
        return "transformers has no causal language model of it"
    odd = sorted(set(_layer_types(config)) - KNOWN_LAYERS)
    if odd:
        return f"its layers of type {', '.join(odd)} are neither full nor sliding attention"
    if not getattr(model_class, "_supports_attention_backend", False):
        return "its transformers module does not let its attention be replaced"
    if getattr(model_class, "_is_stateful", False):
        return "it keeps state (convolution, linear attention) that does not live in pages"
    if getattr(config, "index_topk", None):
        return "its sparse attention chooses keys with an index that does not live in pages"
    quantised = getattr(config, "quantization_config", None)
    if quantised:
        method = quantised.get("quant_method", "?") if isinstance(quantised, dict) else "?"
        return f"its weights are quantised ({method}); take the bfloat16 or the GGUF release"
    return None


def windows(config: Any) -> tuple[int | None, ...]:
    """How many last keys a row of each layer sees, by transformers' rules; None: all of them."""
    layers: int = config.num_hidden_layers
    size: int | None = getattr(config, "sliding_window", None)
    types = _layer_types(config)
    if types:
        return tuple(size if kind == "sliding_attention" else None for kind in types)
    used = size is not None and getattr(config, "use_sliding_window", True)
    return (size if used else None,) * layers


def context_limit(config: Any) -> int | None:
    """Tokens of the longest context the model can be served with; None: its config tells none."""
    limit: int | None = getattr(config, "max_position_embeddings", None)
    if limit is None:
        return None
    rope = getattr(config, "rope_parameters", None) or {}
    scaled = rope if "rope_type" in rope else next(iter(rope.values()), {})
    if isinstance(scaled, dict) and scaled.get("rope_type") in SHIFTING_ROPE:
        # Past this length one long request would change the neighbours' keys.
        limit = min(limit, scaled.get("original_max_position_embeddings") or limit)
    return limit


def _layer_types(config: Any) -> list[str]:
    types = getattr(config, "layer_types", None) or getattr(config, "layers_block_type", None)
    return [str(kind) for kind in types or ()]
