"""MiMo's head: a dense Qwen2 layer, which the lean decoder runs."""

from __future__ import annotations

from dataclasses import replace

import torch

from engine.decoder import Decoder, Layer
from engine.device import Device
from engine.errors import StartError
from engine.linear import Linear, linear
from engine.mtp.checkpoint import Checkpoint
from engine.mtp.dense_head import DenseHead, open_dense_head
from engine.mtp.entry import PlainEntry
from engine.mtp.layouts import MIMO
from engine.mtp.target import head_for
from engine.norm import Norm, rms_norm
from engine.shape import Model, Shape
from engine.vocabulary import Restrict, identity


@torch.no_grad()
def open_mimo(
    checkpoint: Checkpoint, model: Model, device: Device, restrict: Restrict = lambda whole: whole
) -> DenseHead:
    """The head of a MiMo checkpoint over its target. Raises StartError for a broken one."""
    wanted = check_mimo(checkpoint, model)
    assert isinstance(model, Decoder)
    shape, prefix, d = model.shape, MIMO.blocks, model.shape.hidden
    epsilon = float(checkpoint.config.get("rms_norm_eps", 1e-6))
    tensors = {
        name: checkpoint.tensor(name, size).to(device.torch_device, device.dtype)
        for name, size in wanted.items()
    }
    parameters = sum(tensor.numel() for tensor in tensors.values())

    def norm(name: str) -> Norm:
        return rms_norm(tensors[name], epsilon)

    def joined(*names: str, bias: bool = False) -> Linear:
        weight = torch.cat([tensors[f"{prefix}{name}.weight"] for name in names])
        if not bias:
            return linear(weight)
        return linear(weight, torch.cat([tensors[f"{prefix}{name}.bias"] for name in names]))

    of_hidden, of_embedding = (half.contiguous() for half in tensors[MIMO.project].split(d, dim=1))
    entry = PlainEntry(
        norm(MIMO.embedding_norm), norm(MIMO.hidden_norm), linear(of_embedding), linear(of_hidden)
    )
    layer = Layer(
        input_norm=norm(f"{prefix}input_layernorm.weight"),
        qkv=joined("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", bias=True),
        q_norm=None,
        k_norm=None,
        output=joined("self_attn.o_proj"),
        mlp_norm=norm(f"{prefix}post_attention_layernorm.weight"),
        gate_up=joined("mlp.gate_proj", "mlp.up_proj"),
        down=joined("mlp.down_proj"),
        rope=True,
    )
    vocabulary = restrict(identity(shape.vocabulary))
    vocabulary = replace(vocabulary, kept=None).to(device.torch_device)
    decoder = replace(
        model,
        shape=Shape(
            1, shape.heads, shape.kv_heads, shape.head_dim, d, vocabulary.size, shape.context_length
        ),
        layers=(layer,),
        norm=norm(MIMO.norm),
        head=head_for(model, vocabulary),
        compiled=None,
    )
    taps = (shape.layers,)
    return open_dense_head(
        checkpoint.family, model, decoder, entry, None, taps, vocabulary, parameters
    )


def check_mimo(checkpoint: Checkpoint, model: Model) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor of the head. Raises StartError when one is missing or of
    another shape or kind."""
    if not isinstance(model, Decoder):
        raise StartError(
            "drafter_unfit", f"{checkpoint.path} holds the head of a dense Qwen2 model."
        )
    shape, prefix, d = model.shape, MIMO.blocks, model.shape.hidden
    q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    inner = checkpoint.config.get("intermediate_size", 0)
    sizes = {
        "input_layernorm.weight": (d,),
        "post_attention_layernorm.weight": (d,),
        "self_attn.q_proj.weight": (q, d),
        "self_attn.q_proj.bias": (q,),
        "self_attn.k_proj.weight": (kv, d),
        "self_attn.k_proj.bias": (kv,),
        "self_attn.v_proj.weight": (kv, d),
        "self_attn.v_proj.bias": (kv,),
        "self_attn.o_proj.weight": (d, q),
        "mlp.gate_proj.weight": (inner, d),
        "mlp.up_proj.weight": (inner, d),
        "mlp.down_proj.weight": (d, inner),
    }
    wanted: dict[str, tuple[int, ...]] = {prefix + name: size for name, size in sizes.items()}
    wanted |= dict.fromkeys((MIMO.embedding_norm, MIMO.hidden_norm, MIMO.norm), (d,))
    wanted[MIMO.project] = (d, 2 * d)
    checkpoint.require(list(wanted))
    for name, size in wanted.items():
        checkpoint.check(name, size)
    return wanted
