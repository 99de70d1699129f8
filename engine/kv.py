"""Storage of the page pool: keys and values of every layer, indexed by slot."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.device import Device
from engine.errors import StartError
from engine.shape import Shape


@dataclass(frozen=True)
class KvPool:
    """keys and values: per layer [pages * page_size, Hkv, D]; slot = page * page_size + offset."""

    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]
    pages: int
    page_size: int


def bytes_per_token(shape: Shape, dtype: torch.dtype) -> int:
    """Bytes of keys and values that one token takes over all layers."""
    return 2 * shape.layers * shape.kv_heads * shape.head_dim * dtype.itemsize


def open_pool(
    shape: Shape, device: Device, page_size: int, kv_tokens: int, memory_fraction: float
) -> KvPool:
    """Allocate the pool: kv_tokens, or what memory_fraction of the free memory holds.

    Raises StartError when that is less than 256 tokens, or less than kv_tokens asks for."""
    per_token = bytes_per_token(shape, device.dtype)
    affordable = int(device.free_bytes() * memory_fraction) // per_token
    tokens = kv_tokens or min(affordable, 64 * shape.context_length)
    pages = -(-tokens // page_size)
    smallest = min(shape.context_length, 256)
    mib = per_token / 2**20
    if tokens < smallest:
        raise StartError(
            "memory_too_small",
            f"the KV cache would hold {tokens} tokens ({tokens * mib:.1f} MiB), and at least "
            f"{smallest} are needed. Raise --kv-tokens or --memory-fraction, or free memory.",
        )
    if tokens > affordable:
        raise StartError(
            "memory_too_small",
            f"a KV cache of {tokens} tokens needs {tokens * mib:.0f} MiB; memory_fraction "
            f"{memory_fraction} of the free memory allows {affordable * mib:.0f} MiB "
            f"({affordable} tokens). Lower --kv-tokens or raise --memory-fraction.",
        )
    size = (pages * page_size, shape.kv_heads, shape.head_dim)

    def storage() -> tuple[Tensor, ...]:
        return tuple(
            torch.empty(size, dtype=device.dtype, device=device.torch_device)
            for _ in range(shape.layers)
        )

    return KvPool(storage(), storage(), pages, page_size)
