"""Builds the lean decoder from the weights of a model that fits it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from engine.decoder import Decoder, Layer, Scales
from engine.dense import HEAD, INNER, Dense, ModuleWeights, Weights
from engine.device import Device
from engine.families import LEAN, SHIFTING_ROPE, windows
from engine.huge_pages import collapse
from engine.linear import Linear, linear, packs
from engine.norm import Norm, rms_norm


def fits(model: Any, config: Any) -> bool:
    """Whether the lean decoder computes what this model computes."""
    if config.model_type not in LEAN or config.hidden_act != "silu":
        return False
    rotary = model.model.rotary_emb
    fixed = getattr(rotary, "rope_type", "default") not in SHIFTING_ROPE
    return fixed and 2 * rotary.inv_freq.numel() == _head_dim(config)


def describe(model: Any, config: Any) -> Dense:
    """What the lean decoder must know of a loaded transformers model that fits it."""
    head_dim, rotary = _head_dim(config), model.model.rotary_emb
    return Dense(
        layers=config.num_hidden_layers,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_dim=head_dim,
        hidden=config.hidden_size,
        vocabulary=config.vocab_size,
        scales=Scales(
            attention=getattr(config, "attention_multiplier", None) or head_dim**-0.5,
            embedding=getattr(config, "embedding_multiplier", 1.0),
            residual=getattr(config, "residual_multiplier", 1.0),
            logits=getattr(config, "logits_scaling", 1.0),
        ),
        epsilon=config.rms_norm_eps,
        windows=windows(config),
        ropes=tuple(_uses_rope(config, index) for index in range(config.num_hidden_layers)),
        tied=model.lm_head.weight.data_ptr() == model.model.embed_tokens.weight.data_ptr(),
        frequencies=tuple(rotary.inv_freq.float().tolist()),
        rope_scale=float(rotary.attention_scaling),
    )


def fuse(model: nn.Module, config: Any, device: Device, context_length: int) -> Decoder:
    """The lean decoder with the model's weights; takes them out of the model layer by layer."""
    angles = module_angles(model, context_length)
    return build(describe(model, config), ModuleWeights(model), angles, device)


def module_angles(model: Any, context_length: int) -> tuple[Tensor, Tensor]:
    """float32 cos and sin [context, head_dim] from the model's own rotary module, so that every
    fixed scaling (linear, llama3, yarn) is what transformers computes."""
    rotary = model.model.rotary_emb
    positions = torch.arange(context_length, device=rotary.inv_freq.device).unsqueeze(0)
    cos, sin = rotary(torch.zeros(1, dtype=torch.float32, device=positions.device), positions)
    return cos[0], sin[0]


@torch.no_grad()
def build(dense: Dense, weights: Weights, angles: tuple[Tensor, Tensor], device: Device) -> Decoder:
    """The lean decoder. angles: cos and sin [context, head_dim] of the rotary embedding."""
    target, dtype = device.torch_device, device.dtype
    packed = packs(target, dtype)
    scratch = torch.empty(0, dtype=dtype, device=target)

    def get(name: str) -> Tensor:
        found = weights.get(name)
        assert found is not None, name
        return found

    def place(tensor: Tensor) -> Tensor:
        return tensor.detach().to(target, dtype).contiguous()

    def room(rows: int, columns: int) -> Tensor:
        """What is packed is copied, so that one place serves every matrix: memory that a process
        touches for the first time is far slower than memory it has."""
        nonlocal scratch
        if not packed:
            return torch.empty(rows, columns, dtype=dtype, device=target)
        if scratch.numel() < rows * columns:
            scratch = torch.empty(rows * columns, dtype=dtype, device=target)
        return scratch[: rows * columns].view(rows, columns)

    def joined(*modules: str) -> Linear:
        parts = [get(f"{module}.weight") for module in modules]
        heights = [len(part) for part in parts]
        weight = room(sum(heights), parts[0].shape[1])
        for rows, part in zip(weight.split(heights), parts, strict=True):
            rows.copy_(part)
        if weights.get(f"{modules[0]}.bias") is None:
            return linear(weight)
        return linear(weight, place(torch.cat([get(f"{module}.bias") for module in modules])))

    def norm(name: str) -> Norm:
        return rms_norm(place(get(f"{name}.weight")), dense.epsilon)

    def optional_norm(name: str) -> Norm | None:
        return None if weights.get(f"{name}.weight") is None else norm(name)

    layers: list[Layer] = []
    for index in range(dense.layers):
        block = f"{INNER}layers.{index}"
        attention, mlp = f"{block}.self_attn", f"{block}.mlp"
        layers.append(
            Layer(
                input_norm=norm(f"{block}.input_layernorm"),
                qkv=joined(*(f"{attention}.{part}_proj" for part in "qkv")),
                q_norm=optional_norm(f"{attention}.q_norm"),
                k_norm=optional_norm(f"{attention}.k_norm"),
                output=joined(f"{attention}.o_proj"),
                mlp_norm=norm(f"{block}.post_attention_layernorm"),
                gate_up=joined(f"{mlp}.gate_proj", f"{mlp}.up_proj"),
                down=joined(f"{mlp}.down_proj"),
                rope=dense.ropes[index],
            )
        )
        weights.release(attention)  # frees the unfused copy layer by layer
        weights.release(mlp)
    embedding = place(get(f"{INNER}embed_tokens.weight"))
    if weights.mapped and embedding.device.type == "cpu":
        embedding = embedding.clone()  # a file may be replaced while it is served
    cos, sin = angles
    sign = torch.ones(dense.head_dim, dtype=torch.float32, device=sin.device)
    sign[: dense.head_dim // 2] = -1.0
    decoder = Decoder(
        shape=dense.shape(len(cos)),
        scales=dense.scales,
        embedding=embedding,
        layers=tuple(layers),
        norm=norm(f"{INNER}norm"),
        head=linear(embedding) if dense.tied else joined(HEAD),
        cos=cos.to(dtype).to(target),
        sin=(sin * sign).to(dtype).to(target),
        tied=dense.tied,
    )
    if device.is_cuda:
        return decoder
    collapse(each.extent for each in decoder.linears)
    return _compiled(decoder)


def with_head(decoder: Decoder, rows: Tensor, bias: Tensor | None) -> Decoder:
    """The decoder with other columns of logits: rows [n, d] and bias [n] of its head."""
    head = linear(rows, bias)
    changed = replace(decoder, head=head, tied=False, compiled=None)
    if rows.is_cuda:
        return changed
    collapse([head.extent])
    return _compiled(changed)  # compiled layers keep the decoder they were made of


def _compiled(decoder: Decoder) -> Decoder:
    """The decoder with compiled layers, where numba is installed and they compute what it does."""
    try:
        from engine.layers_cpu import CpuLayers, serves
    except ImportError:
        return decoder
    return replace(decoder, compiled=CpuLayers(decoder)) if serves(decoder) else decoder


def _head_dim(config: Any) -> int:
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def _uses_rope(config: Any, index: int) -> bool:
    marks = getattr(config, "no_rope_layers", None)  # 1 marks a layer WITH rope
    return bool(marks[index]) if marks else True
