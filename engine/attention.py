"""Attention over pages: the interface and the torch implementation, the reference.

Causal is aligned to the end of the keys: row j of a chunk of n over L keys sees the first
L - n + j + 1. Lengths include the rows being written."""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.batch import Batch, Chunk
from engine.kv import KvPool
from engine.shape import Attend, Shape


class Attention(Protocol):
    name: str

    def plan(self, batch: Batch) -> Attend:
        """Prepare one step; the returned function serves every layer of it."""
        ...


class TorchAttention:
    """One fused call per request, on any device. The query heads of a KV head are folded into
    the rows; keys and values are read in place when the request's pages are consecutive."""

    name = "torch"

    def __init__(self, pool: KvPool, shape: Shape, scale: float) -> None:
        self._pool = pool
        self._shape = shape
        self._scale = scale

    def plan(self, batch: Batch) -> Attend:
        pool, scale = self._pool, self._scale
        kv_heads, dim = self._shape.kv_heads, self._shape.head_dim
        group = self._shape.heads // kv_heads
        device, dtype = pool.keys[0].device, pool.keys[0].dtype
        slots = batch.slots
        spans = [
            (
                first,
                first + len(chunk.ids),
                self._key_slots(chunk, device),
                self._mask(chunk, group, device, dtype),
            )
            for first, chunk in zip(batch.offsets, batch.chunks, strict=True)
        ]

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            keys, values = pool.keys[layer], pool.values[layer]
            keys.index_copy_(0, slots, k)
            values.index_copy_(0, slots, v)
            outputs: list[Tensor] = []
            for first, last, where, mask in spans:
                rows = last - first
                if isinstance(where, slice):
                    key, value = keys[where], values[where]
                else:
                    key, value = keys.index_select(0, where), values.index_select(0, where)
                # [rows, Hq, D] -> [1, Hkv, rows * group, D]
                query = q[first:last].unflatten(1, (kv_heads, group))
                query = query.transpose(0, 1).reshape(1, kv_heads, rows * group, dim)
                out = F.scaled_dot_product_attention(
                    query,
                    key.transpose(0, 1).unsqueeze(0),
                    value.transpose(0, 1).unsqueeze(0),
                    attn_mask=mask,
                    scale=scale,
                )
                out = out.view(kv_heads, rows, group, dim).transpose(0, 1)
                outputs.append(out.reshape(rows, kv_heads * group * dim))
            return outputs[0] if len(outputs) == 1 else torch.cat(outputs)

        return attend

    def _key_slots(self, chunk: Chunk, device: torch.device) -> slice | Tensor:
        size, length = self._pool.page_size, chunk.kv_length
        pages = chunk.pages[: -(-length // size)]
        first = pages[0]
        if pages[-1] - first == len(pages) - 1 and all(
            page == first + index for index, page in enumerate(pages)
        ):
            return slice(first * size, first * size + length)
        starts = torch.tensor(pages, device=device).unsqueeze(1) * size
        return (starts + torch.arange(size, device=device)).flatten()[:length]

    def _mask(
        self, chunk: Chunk, group: int, device: torch.device, dtype: torch.dtype
    ) -> Tensor | None:
        """Additive mask [rows * group, L], or None for a single row, which sees every key."""
        rows = len(chunk.ids)
        if rows == 1:
            return None
        mask = torch.zeros(rows, chunk.kv_length, device=device, dtype=dtype)
        corner = torch.full((rows, rows), float("-inf"), device=device, dtype=dtype).triu_(1)
        mask[:, chunk.start :] = corner
        return mask.repeat_interleave(group, dim=0)
