"""Storage of the page pool: keys and values of every layer, indexed by slot."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.device import Device
from engine.errors import StartError
from engine.host_memory import size_text
from engine.shape import Shape

GPU_FRACTION = 0.85
HOST_FRACTION = 0.4
"""Shares of the free memory for keys and values when none is set: a GPU keeps room for
activations, a host for its other processes."""


@dataclass(frozen=True)
class KvPool:
    """keys and values: per layer [pages * page_size, Hkv, Dk] and [.., Hkv, Dv]; slot =
    page * page_size + offset."""

    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]
    pages: int
    page_size: int


def storing(pool: KvPool, slots: Tensor) -> Callable[[int, Tensor, Tensor], None]:
    """Writes a layer's k [T, Hkv, Dk] and v [T, Hkv, Dv] to the slots int64 [T]."""

    def store(layer: int, k: Tensor, v: Tensor, /) -> None:
        pool.keys[layer].index_copy_(0, slots, k)
        pool.values[layer].index_copy_(0, slots, v)

    return store


def bytes_per_token(shape: Shape, dtype: torch.dtype) -> int:
    """Bytes of keys and values that one token takes over all layers."""
    sizes = (kind.kv_heads * (kind.head_dim + kind.value_dim) for kind in shape.kinds)
    return sum(sizes) * dtype.itemsize


def open_pool(
    shape: Shape,
    device: Device,
    page_size: int,
    kv_tokens: int,
    memory_fraction: float,
    of_drafters: int = 0,
) -> KvPool:
    """Allocate the pool: kv_tokens, or what memory_fraction of the free memory (0: the share
    above) holds, at most 64 full contexts. of_drafters: bytes that drafters' layers need for each
    token beside the pool, in the same memory.

    Call it once the model is loaded. Raises StartError when that is less than one full context,
    or less than kv_tokens asks for."""
    per_token = bytes_per_token(shape, device.dtype) + of_drafters
    context = shape.context_length
    free = device.free_bytes()
    fraction = memory_fraction or (GPU_FRACTION if device.is_cuda else HOST_FRACTION)
    affordable = int(free * fraction) // per_token // page_size * page_size
    tokens = -(-(kv_tokens or min(affordable, 64 * context)) // page_size) * page_size
    if tokens > affordable:
        raise StartError(
            "memory_too_small",
            f"a KV cache of {tokens} tokens needs {size_text(tokens * per_token)}"
            f"{_share(tokens * of_drafters)}, and "
            f"memory_fraction {fraction} of the {size_text(free)} that are free on "
            f"{device.torch_device} allows {affordable} tokens "
            f"({size_text(affordable * per_token)}). Set --kv-tokens {affordable} or less, "
            "raise --memory-fraction, or free memory.",
        )
    if tokens < context:
        given = (
            f"--kv-tokens {kv_tokens} is"
            if kv_tokens
            else f"memory_fraction {fraction} of the {size_text(free)} that are free on "
            f"{device.torch_device} holds {tokens} tokens,"
        )
        raise StartError(
            "memory_too_small",
            f"{given} too few for one request of the full context of {context} tokens "
            f"({size_text(context * per_token)} of keys and values"
            f"{_share(context * of_drafters)}). Set --context-length "
            f"{max(tokens, page_size)} or less"
            + (
                f", or --kv-tokens {context} or more."
                if kv_tokens
                else ", raise --memory-fraction, or free memory."
            ),
        )
    return empty_pool(shape, device, tokens // page_size, page_size)


def _share(of_drafters: int) -> str:
    if not of_drafters:
        return ""
    return f", {size_text(of_drafters)} of it for drafters (see --mtp and --draft-model)"


def empty_pool(shape: Shape, device: Device, pages: int, page_size: int) -> KvPool:
    """Storage for so many pages, of unset content, whatever else the memory is needed for."""
    slots = pages * page_size
    return KvPool(
        tuple(_storage(slots, kind.kv_heads, kind.head_dim, device) for kind in shape.kinds),
        tuple(_storage(slots, kind.kv_heads, kind.value_dim, device) for kind in shape.kinds),
        pages,
        page_size,
    )


def _storage(slots: int, kv_heads: int, dim: int, device: Device) -> Tensor:
    return torch.empty((slots, kv_heads, dim), dtype=device.dtype, device=device.torch_device)
