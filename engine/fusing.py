"""Builds the lean decoder from a loaded transformers model of a family that fits it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from engine.decoder import Decoder, Layer, Scales
from engine.device import Device
from engine.families import LEAN, SHIFTING_ROPE, windows
from engine.huge_pages import collapse
from engine.linear import Linear, linear
from engine.norm import Norm, rms_norm
from engine.shape import AttentionKind, Shape


def fits(model: Any, config: Any) -> bool:
    """Whether the lean decoder computes what this model computes."""
    if config.model_type not in LEAN or config.hidden_act != "silu":
        return False
    rotary = model.model.rotary_emb
    fixed = getattr(rotary, "rope_type", "default") not in SHIFTING_ROPE
    return fixed and 2 * rotary.inv_freq.numel() == _head_dim(config)


def fuse(model: nn.Module, config: Any, device: Device, context_length: int) -> Decoder:
    """The lean decoder with the model's weights; takes them out of the model layer by layer."""
    inner: Any = model.model
    heads, head_dim = config.num_attention_heads, _head_dim(config)
    scales = Scales(
        attention=getattr(config, "attention_multiplier", None) or head_dim**-0.5,
        embedding=getattr(config, "embedding_multiplier", 1.0),
        residual=getattr(config, "residual_multiplier", 1.0),
        logits=getattr(config, "logits_scaling", 1.0),
    )
    shape = Shape(
        layers=config.num_hidden_layers,
        heads=heads,
        kv_heads=config.num_key_value_heads,
        head_dim=head_dim,
        hidden=config.hidden_size,
        vocabulary=config.vocab_size,
        context_length=context_length,
        kinds=tuple(
            AttentionKind(
                heads, config.num_key_value_heads, head_dim, head_dim, scales.attention, window
            )
            for window in windows(config)
        ),
    )
    cos, sin = _rope_tables(inner, context_length, head_dim, device.dtype)

    def place(tensor: Tensor) -> Tensor:
        return tensor.detach().to(device.torch_device, device.dtype).contiguous()

    def joined(module: Any, *names: str) -> Linear:
        bias = _joined_bias(module, names)
        weight = place(_joined(module, names, "weight"))
        return linear(weight, None if bias is None else place(bias))

    def norm(module: Any) -> Norm:
        return rms_norm(place(module.weight), config.rms_norm_eps)

    def optional_norm(attention: Any, name: str) -> Norm | None:
        module = getattr(attention, name, None)
        return None if module is None else norm(module)

    layers: list[Layer] = []
    for index, block in enumerate(inner.layers):
        attention, mlp = block.self_attn, block.mlp
        layers.append(
            Layer(
                input_norm=norm(block.input_layernorm),
                qkv=joined(attention, "q_proj", "k_proj", "v_proj"),
                q_norm=optional_norm(attention, "q_norm"),
                k_norm=optional_norm(attention, "k_norm"),
                output=joined(attention, "o_proj"),
                mlp_norm=norm(block.post_attention_layernorm),
                gate_up=joined(mlp, "gate_proj", "up_proj"),
                down=joined(mlp, "down_proj"),
                rope=_uses_rope(config, index),
            )
        )
        for module in (attention, mlp):  # frees the unfused copy layer by layer
            for name, _ in list(module.named_children()):
                if name.endswith("_proj"):
                    delattr(module, name)
    embedding = place(inner.embed_tokens.weight)
    head_weight: Tensor = model.lm_head.weight  # type: ignore[union-attr,assignment]  # any causal LM
    tied = head_weight.data_ptr() == inner.embed_tokens.weight.data_ptr()
    decoder = Decoder(
        shape=shape,
        scales=scales,
        embedding=embedding,
        layers=tuple(layers),
        norm=norm(inner.norm),
        head=linear(embedding if tied else place(head_weight)),
        cos=cos.to(device.torch_device),
        sin=sin.to(device.torch_device),
    )
    if device.is_cuda:
        return decoder
    collapse(each.extent for each in decoder.linears)
    return _compiled(decoder)


def _compiled(decoder: Decoder) -> Decoder:
    """The decoder with compiled layers, where numba is installed and they compute what it does."""
    try:
        from engine.layers_cpu import CpuLayers, serves
    except ImportError:
        return decoder
    return replace(decoder, compiled=CpuLayers(decoder)) if serves(decoder) else decoder


def _head_dim(config: Any) -> int:
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def _joined(module: Any, names: tuple[str, ...], attribute: str) -> Tensor:
    return torch.cat([getattr(getattr(module, name), attribute) for name in names], dim=0)


def _joined_bias(module: Any, names: tuple[str, ...]) -> Tensor | None:
    return None if getattr(module, names[0]).bias is None else _joined(module, names, "bias")


def _uses_rope(config: Any, index: int) -> bool:
    marks = getattr(config, "no_rope_layers", None)  # 1 marks a layer WITH rope
    return bool(marks[index]) if marks else True


def _rope_tables(
    inner: Any, context: int, head_dim: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """cos and signed sin [context, head_dim] from the model's own rotary module, so that every
    fixed scaling (linear, llama3, yarn) is what transformers computes."""
    rotary = inner.rotary_emb
    positions = torch.arange(context, device=rotary.inv_freq.device).unsqueeze(0)
    cos, sin = rotary(torch.zeros(1, dtype=torch.float32, device=positions.device), positions)
    sign = torch.ones(head_dim, device=sin.device)
    sign[: head_dim // 2] = -1.0
    return cos[0].to(dtype), (sin[0] * sign).to(dtype)
