"""Loads a model and its tokenizer through transformers into the lean decoder.

Every transformers call of the serving engine lives in this file."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from engine.decoder import Decoder, Layer, Scales
from engine.device import Device
from engine.embedded import ModelError, ensure_embedded
from engine.errors import StartError
from engine.shape import Shape

FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "smollm3", "granite")
"""Model types that fit the lean decoder. Tests hold each equal to its transformers module."""

EMBEDDED = "embedded"

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json")


@dataclass(frozen=True)
class Loaded:
    """A target model ready to run. stop_ids: end-of-sequence token ids. path: its folder."""

    decoder: Decoder
    tokenizer: Any
    stop_ids: frozenset[int]
    architecture: str
    path: Path


def find_model(model: str, cache_dir: Path, progress: Any = None) -> Path:
    """Folder of a model given as "embedded", a local folder or a Hugging Face id.

    Raises StartError when it cannot be had."""
    if model == EMBEDDED:
        try:
            return ensure_embedded(cache_dir, progress)
        except ModelError as error:
            raise StartError(error.code, error.message) from error
    path = Path(model).expanduser()
    if path.is_dir():
        return path
    if path.exists():
        raise StartError(
            "model_not_a_folder",
            f"--model {model} is a file; give the folder that holds config.json and the weights.",
        )
    if model.startswith((".", "/", "~")) or model.count("/") != 1:
        raise StartError(
            "model_not_found",
            f"--model {model}: no such folder. Give a folder with config.json and safetensors, "
            'a Hugging Face id such as "HuggingFaceTB/SmolLM2-135M-Instruct", or "embedded".',
        )
    return _download(model)


def _download(hub_id: str) -> Path:
    from huggingface_hub import snapshot_download

    try:
        return Path(
            snapshot_download(
                hub_id,
                allow_patterns=["*.json", "*.safetensors", "*.jinja", "*.model", "*.txt"],
            )
        )
    except Exception as error:  # the hub client raises a dozen unrelated types
        raise StartError(
            "model_download_failed",
            f"--model {hub_id} is neither a local folder nor reachable on the hub "
            f"({type(error).__name__}: {str(error).splitlines()[0][:200]}). "
            "Check the name and the network, or download it and give the folder.",
        ) from error


def load(path: Path, device: Device, context_length: int) -> Loaded:
    """Load a dense Llama-like Hugging Face folder. Raises StartError with what is wrong."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    config_file = path / "config.json"
    if not config_file.is_file():
        raise StartError(
            "model_incomplete",
            f"{path} holds no config.json; give a complete Hugging Face model folder.",
        )
    try:
        declared = json.loads(config_file.read_text())
    except ValueError as error:
        raise StartError("model_broken", f"{config_file} is not valid JSON: {error}.") from error
    family = declared.get("model_type") if isinstance(declared, dict) else None
    if family not in FAMILIES:
        raise StartError(
            "model_unsupported",
            f"{path} is a {family!r} model; supported families are {', '.join(FAMILIES)}.",
        )
    try:
        config = AutoConfig.from_pretrained(path, trust_remote_code=False)
        tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=False)
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            path,
            dtype=device.dtype,
            trust_remote_code=False,
            use_safetensors=True,
            output_loading_info=True,
        )
    except Exception as error:  # transformers and safetensors raise many types for a bad folder
        reason = str(error).splitlines()[0][:300] if str(error) else type(error).__name__
        raise StartError(
            "model_broken",
            f"{path} cannot be loaded ({type(error).__name__}: {reason}). "
            "Check that every file of the folder is complete.",
        ) from error
    model, report = loaded
    missing = sorted(report["missing_keys"])  # transformers fills these in at random
    if missing or report["mismatched_keys"]:
        named = ", ".join(missing[:3]) or str(report["mismatched_keys"])[:200]
        raise StartError(
            "model_broken",
            f"{path}: weights are missing or do not fit config.json ({named}). "
            "Check that every file of the folder is complete and of the same model.",
        )
    if not any((path / name).is_file() for name in TOKENIZER_FILES):
        raise StartError(
            "model_incomplete",
            f"{path} holds no tokenizer ({' or '.join(TOKENIZER_FILES)}).",
        )
    decoder = fuse(model, config, device, context_length)
    return Loaded(decoder, tokenizer, _stop_ids(model, config, tokenizer), family, path)


def fuse(model: nn.Module, config: Any, device: Device, context_length: int = 0) -> Decoder:
    """Build the lean decoder from a loaded transformers causal LM of a supported family."""
    inner: Any = model.model
    context = _context_length(config, context_length)
    heads = config.num_attention_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    shape = Shape(
        layers=config.num_hidden_layers,
        heads=heads,
        kv_heads=config.num_key_value_heads,
        head_dim=head_dim,
        hidden=config.hidden_size,
        vocabulary=config.vocab_size,
        context_length=context,
    )
    if config.hidden_act != "silu":
        raise StartError("model_unsupported", f"activation {config.hidden_act!r} is not supported.")
    scales = Scales(
        attention=getattr(config, "attention_multiplier", None) or head_dim**-0.5,
        embedding=getattr(config, "embedding_multiplier", 1.0),
        residual=getattr(config, "residual_multiplier", 1.0),
        logits=getattr(config, "logits_scaling", 1.0),
    )
    cos, sin = _rope_tables(inner, context, head_dim, device.dtype)

    def place(tensor: Tensor) -> Tensor:
        return tensor.detach().to(device.torch_device, device.dtype).contiguous()

    def optional(tensor: Tensor | None) -> Tensor | None:
        return None if tensor is None else place(tensor)

    layers: list[Layer] = []
    for index, block in enumerate(inner.layers):
        attention, mlp = block.self_attn, block.mlp
        layers.append(
            Layer(
                input_norm=place(block.input_layernorm.weight),
                qkv=place(_joined(attention, ("q_proj", "k_proj", "v_proj"), "weight")),
                qkv_bias=optional(_joined_bias(attention, ("q_proj", "k_proj", "v_proj"))),
                q_norm=optional(_norm_weight(attention, "q_norm")),
                k_norm=optional(_norm_weight(attention, "k_norm")),
                output=place(attention.o_proj.weight),
                output_bias=optional(attention.o_proj.bias),
                mlp_norm=place(block.post_attention_layernorm.weight),
                gate_up=place(_joined(mlp, ("gate_proj", "up_proj"), "weight")),
                gate_up_bias=optional(_joined_bias(mlp, ("gate_proj", "up_proj"))),
                down=place(mlp.down_proj.weight),
                down_bias=optional(mlp.down_proj.bias),
                rope=_uses_rope(config, index),
            )
        )
        for projection in ("q_proj", "k_proj", "v_proj"):
            delattr(attention, projection)  # frees the unfused copy layer by layer
        for projection in ("gate_proj", "up_proj"):
            delattr(mlp, projection)
    embedding = place(inner.embed_tokens.weight)
    head_weight: Tensor = model.lm_head.weight  # type: ignore[union-attr,assignment]  # any causal LM
    tied = head_weight.data_ptr() == inner.embed_tokens.weight.data_ptr()
    return Decoder(
        shape=shape,
        scales=scales,
        epsilon=config.rms_norm_eps,
        embedding=embedding,
        layers=tuple(layers),
        norm=place(inner.norm.weight),
        head=embedding if tied else place(head_weight),
        cos=cos.to(device.torch_device),
        sin=sin.to(device.torch_device),
    )


def _joined(module: Any, names: tuple[str, ...], attribute: str) -> Tensor:
    return torch.cat([getattr(getattr(module, name), attribute) for name in names], dim=0)


def _joined_bias(module: Any, names: tuple[str, ...]) -> Tensor | None:
    return None if getattr(module, names[0]).bias is None else _joined(module, names, "bias")


def _norm_weight(attention: Any, name: str) -> Tensor | None:
    norm = getattr(attention, name, None)
    return None if norm is None else norm.weight


def _uses_rope(config: Any, index: int) -> bool:
    marks = getattr(config, "no_rope_layers", None)  # 1 marks a layer WITH rope
    return bool(marks[index]) if marks else True


def _context_length(config: Any, asked: int) -> int:
    limit = config.max_position_embeddings
    window = getattr(config, "sliding_window", None)
    if window and getattr(config, "use_sliding_window", True):
        limit = min(limit, window)  # inside the window, sliding attention is full attention
    if asked > limit:
        raise StartError(
            "context_too_long",
            f"--context-length {asked} is more than the model's {limit} tokens.",
        )
    return asked or limit


def _rope_tables(
    inner: Any, context: int, head_dim: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """cos and signed sin [context, head_dim] from the model's own rotary module, so that every
    fixed scaling (linear, llama3, yarn) is what transformers computes."""
    rotary = inner.rotary_emb
    kind = getattr(rotary, "rope_type", "default")
    if kind in ("dynamic", "longrope"):
        raise StartError("model_unsupported", f"rope type {kind!r} is not supported.")
    positions = torch.arange(context, device=rotary.inv_freq.device).unsqueeze(0)
    cos, sin = rotary(torch.zeros(1, dtype=torch.float32, device=positions.device), positions)
    if cos.shape[-1] != head_dim:
        raise StartError("model_unsupported", "partial rotary embeddings are not supported.")
    sign = torch.ones(head_dim, device=sin.device)
    sign[: head_dim // 2] = -1.0
    return cos[0].to(dtype), (sin[0] * sign).to(dtype)


def _stop_ids(model: Any, config: Any, tokenizer: Any) -> frozenset[int]:
    ids: set[int] = set()
    generation = getattr(model, "generation_config", None)
    for source in (getattr(generation, "eos_token_id", None), config.eos_token_id):
        if isinstance(source, int):
            ids.add(source)
        elif source:
            ids.update(int(value) for value in source)
    if tokenizer.eos_token_id is not None:
        ids.add(int(tokenizer.eos_token_id))
    return frozenset(ids)
