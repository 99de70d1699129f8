"""What the target's steps should take by arithmetic: its shape on the device that it runs on."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from math import inf
from typing import Any

import torch

from controller.simulate.machines import HARDWARE, Experts, Hardware, Model
from controller.simulate.step_cost import StepCost, roofline
from engine.device import Device
from engine.shape import Model as Target
from engine.shape import Shape, weight_bytes

LAYER_MS = 0.25
"""Of a layer on a CPU, whatever it computes: that of the embedded model, as `HARDWARE` has it."""
COPIED, INNER, ROWS = 8 << 20, 256, 32
"""Values that are copied, and the sides of a product, to measure a device that is not known: as
small as possible, because a CPU may emulate its dtype."""
LEAST_KNEE = 5.0
"""Rows that cost as much as reading the weights: no device has fewer."""
TRIES, TRY_S = 3, 0.05
"""A device is measured so often at least, and for so long; the quickest try counts."""


def roofline_of(target: Target, device: Device) -> StepCost | None:
    """None for a model that does not tell its weights."""
    model = _model(target, device.dtype.itemsize)
    if model is None:
        return None
    cost = roofline(_hardware(device, model.layers), model)
    # The attention of a CPU computes the rows that there are, not whole tiles of them.
    return cost if device.is_cuda else replace(cost, tile_kv_ms=0.0)


def _model(target: Target, value_bytes: int) -> Model | None:
    """A target with its loaded weights. Layers that attend to a window count as none: what they
    read stops growing."""
    weights, shape = weight_bytes(target) / value_bytes, target.shape
    if not weights:
        return None
    reaching = [kind for kind in shape.kinds if kind.window is None]
    values = sum(kind.kv_heads * (kind.head_dim + kind.value_dim) for kind in reaching)
    flops = sum(2.0 * kind.heads * (kind.head_dim + kind.value_dim) for kind in reaching)
    experts = _experts(getattr(getattr(target, "model", None), "config", None), shape)
    routed = experts.layers * experts.count * experts.parameters if experts is not None else 0.0
    return Model(
        layers=shape.layers,
        hidden=shape.hidden,
        dense=max(weights - routed, 0.0),
        group=max(shape.heads // max(shape.kv_heads, 1), 1),
        kv_values=round(values / shape.layers),
        head_flops=flops / shape.layers,
        weight_bytes=value_bytes,
        experts=experts,
    )


def _experts(config: Any, shape: Shape) -> Experts | None:
    """Of a transformers config; None for a dense model, and where it uses other names."""

    def first(*names: str) -> int:
        found = (getattr(config, name, None) for name in names)
        return next((value for value in found if isinstance(value, int) and value > 0), 0)

    count = first("num_experts", "num_local_experts", "n_routed_experts")
    used = first("num_experts_per_tok")
    inner = first("moe_intermediate_size", "intermediate_size")
    if not (0 < used < count and inner):
        return None
    layers = max(shape.layers - first("first_k_dense_replace"), 1)
    return Experts(count, used, 3.0 * shape.hidden * inner, layers)


def _hardware(device: Device, layers: int) -> Hardware:
    """A known GPU by its name, else what is quickly measured."""
    if device.is_cuda:
        name = torch.cuda.get_device_name(device.torch_device)
        known = [key for key in HARDWARE if key in name]
        if known:
            return replace(HARDWARE[max(known, key=len)], memory=inf)
        return _measured(device, replace(HARDWARE["A100"], memory=inf))
    return _measured(device, replace(HARDWARE["CPU"], memory=inf, launch_ms=LAYER_MS * layers))


def _measured(device: Device, like: Hardware) -> Hardware:
    """A device with a measured bandwidth and peak, in the rest like another one. The peak is at
    least what a knee of LEAST_KNEE takes: small products flatter no device that others use."""
    place = device.torch_device
    source = torch.zeros(COPIED, dtype=torch.float32, device=place)
    copy = torch.empty_like(source)
    rows = torch.ones(ROWS, INNER, dtype=device.dtype, device=place)
    weights = torch.ones(INNER, INNER, dtype=device.dtype, device=place)
    bandwidth = 2.0 * source.nbytes / _shortest(device, lambda: copy.copy_(source))
    peak = 2.0 * ROWS * INNER * INNER / _shortest(device, lambda: rows @ weights)
    least = LEAST_KNEE * 2.0 * bandwidth / device.dtype.itemsize
    return replace(like, bandwidth=bandwidth, peak=max(peak, least))


def _shortest(device: Device, work: Callable[[], object]) -> float:
    """Seconds of the quickest try."""
    times: list[float] = []
    while len(times) < TRIES or sum(times) < TRY_S:
        begin = time.perf_counter()
        work()
        device.record().synchronize()
        times.append(max(time.perf_counter() - begin, 1e-6))
    return min(times)
