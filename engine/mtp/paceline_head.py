"""Opens Paceline's own head over its target."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from engine.decoder import Decoder, Layer, Scales
from engine.device import Device
from engine.errors import StartError
from engine.linear import Linear, linear
from engine.mtp.dense_head import DenseHead, open_dense_head
from engine.mtp.entry import PlainEntry, PlainFusion
from engine.mtp.paceline import FORMAT, PacelineConfig
from engine.mtp.target import embedding_of, head_for, logit_scale
from engine.norm import Norm, rms_norm
from engine.shape import Model, Shape
from engine.trained import DRAFT_IDS, check_target, load_config, load_tensors
from engine.vocabulary import Restrict, reduced


@torch.no_grad()
def open_paceline(
    folder: Path,
    model: Model,
    device: Device,
    fingerprint: str,
    restrict: Restrict = lambda whole: whole,
) -> DenseHead:
    """The head of this folder over a loaded target. fingerprint: of the target's tokenizer.
    restrict: takes ids out of the checkpoint's vocabulary.

    Raises StartError for a broken checkpoint, and for one of another target."""
    config = load_paceline(folder, model, fingerprint)
    tensors = load_tensors(folder, config)
    vocabulary = restrict(reduced(model.shape.vocabulary, tensors.pop(DRAFT_IDS).long()))
    vocabulary = replace(vocabulary, kept=None).to(device.torch_device)
    target, dtype, epsilon = device.torch_device, device.dtype, config.rms_norm_eps

    def place(tensor: Tensor) -> Tensor:
        return tensor.to(target, dtype).contiguous()

    def norm(name: str) -> Norm:
        return rms_norm(place(tensors[f"{name}.weight"]), epsilon)

    def optional_norm(name: str) -> Norm | None:
        return norm(name) if config.norms else None

    def joined(*names: str) -> Linear:
        return linear(place(torch.cat([tensors[f"{name}.weight"] for name in names])))

    d, count = config.hidden_size, len(config.taps)
    of_embedding, of_hidden = tensors["project.weight"].split(d, dim=1)
    entry = PlainEntry(
        optional_norm("embedding_norm"),
        optional_norm("hidden_norm"),
        linear(place(of_embedding)),
        linear(place(of_hidden)),
    )
    fusion = None
    if count > 1:
        weight, ones = tensors["fuse.weight"].float(), None
        if config.norms:
            norms = [tensors[f"tap_norms.{index}.weight"].float() for index in range(count)]
            weight, ones = weight * torch.cat(norms), rms_norm(place(torch.ones(d)), epsilon)
        fusion = PlainFusion(count, ones, linear(place(weight)))
    layer = Layer(
        input_norm=optional_norm("layer.input_norm") or _unchanged,
        qkv=joined("layer.q_proj", "layer.k_proj", "layer.v_proj"),
        q_norm=None,
        k_norm=None,
        output=joined("layer.o_proj"),
        mlp_norm=optional_norm("layer.mlp_norm") or _unchanged,
        gate_up=joined("layer.gate_proj", "layer.up_proj"),
        down=joined("layer.down_proj"),
        rope=True,
    )
    context = model.shape.context_length
    cos, sin = rope_tables(config.rope_theta, config.head_dim, context)
    decoder = Decoder(
        shape=Shape(1, config.heads, config.kv_heads, config.head_dim, d, vocabulary.size, context),
        scales=Scales(attention=config.head_dim**-0.5, logits=logit_scale(model)),
        embedding=embedding_of(model),
        layers=(layer,),
        norm=norm("norm"),
        head=head_for(model, vocabulary),
        cos=place(cos),
        sin=place(sin),
    )
    parameters = sum(tensor.numel() for tensor in tensors.values())
    return open_dense_head(
        FORMAT, model, decoder, entry, fusion, config.taps, vocabulary, parameters
    )


def load_paceline(folder: Path, model: Model, fingerprint: str) -> PacelineConfig:
    """The checkpoint's config. Raises StartError for a broken one, and for one of another target
    than this."""
    config = load_config(folder, PacelineConfig)
    check_target(folder, config, model.shape.hidden, model.shape.vocabulary, fingerprint)
    _check_taps(folder, config, model)
    return config


def rope_tables(theta: float, dim: int, context_length: int) -> tuple[Tensor, Tensor]:
    """float32 cos and sin [context, dim] as Decoder takes them."""
    frequencies = theta ** -(torch.arange(0, dim, 2).double() / dim)
    angles = torch.arange(context_length).double()[:, None] * frequencies
    cos, sin = angles.cos().float(), angles.sin().float()
    return torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)


def _unchanged(x: Tensor) -> Tensor:
    return x


def _check_taps(folder: Path, config: PacelineConfig, model: Model) -> None:
    """Raise StartError when the hidden states that the head reads cannot be had from this model."""
    ours, theirs = model.shape.layers, config.target.layers
    if ours != theirs:
        raise StartError(
            "drafter_unfit",
            f"{folder} was trained for another model: its target has {theirs} layers, this one "
            f"{ours}. Train one for this model with `{config.COMMAND}`, or switch it off.",
        )
    if not isinstance(model, Decoder) and config.taps != (ours,):
        raise StartError(
            "drafter_unfit",
            f"{folder} reads the target at layers {', '.join(map(str, config.taps))}; of this "
            f"model only the final hidden state ({ours}) can be read. Train a head with "
            f"--taps {ours}.",
        )
