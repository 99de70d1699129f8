"""Chooses the attention implementation that serves a model's layers on a device."""

from __future__ import annotations

import logging

from engine.attention import Attention, TorchAttention
from engine.attention_flashinfer import open_flashinfer
from engine.config import EngineConfig
from engine.device import Device
from engine.errors import StartError
from engine.kv import KvPool
from engine.shape import Shape

log = logging.getLogger(__name__)


def open_attention(config: EngineConfig, device: Device, pool: KvPool, shape: Shape) -> Attention:
    """FlashInfer on CUDA and compiled code on the CPU, where they serve the model and are not
    refused; otherwise torch, unless FlashInfer was asked for."""
    if config.attention == "flashinfer" or (config.attention == "auto" and device.is_cuda):
        try:
            return open_flashinfer(pool, shape, device)
        except StartError as error:
            if config.attention == "flashinfer":
                raise
            log.warning("using the torch attention: %s", error.message)
    if config.attention == "auto" and not device.is_cuda:
        try:
            from engine.attention_cpu import CpuAttention, serves
        except ImportError:
            log.warning("numba is not installed: decoding uses the slower torch attention")
        else:
            if serves(pool, shape):
                return CpuAttention(pool, shape)
    return TorchAttention(pool, shape)
