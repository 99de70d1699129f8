"""Attention over pages on the CPU: compiled code for decoding and verifying, torch for prefill."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from engine.attention import TorchAttention
from engine.batch import Batch, Chunk
from engine.kernels import TENSORS, WORDS, Layout, compiled, scratch_floats
from engine.kv import KvPool
from engine.shape import Attend, AttentionKind, Shape
from engine.team import Team

MOST_ROWS = 20
"""Chunks of more rows are prefill, for which torch's blocked kernel is faster."""
UNBOUNDED = 1 << 40
"""The window of layers that see every key."""


def serves(pool: KvPool, shape: Shape) -> bool:
    """Whether the compiled code computes every layer: none has a soft cap or sinks, and keys and
    values are float32 or bfloat16."""
    plain = all(kind.softcap is None and not kind.sinks for kind in shape.kinds)
    return plain and pool.keys[0].dtype in (torch.bfloat16, torch.float32)


@dataclass(frozen=True, slots=True)
class _Work:
    """What one kind of layer has to compute in a step, see kernels.ITEM. bounds: the items of
    share s are bounds[s]..bounds[s + 1]. scratch: float32 numbers for each thread."""

    items: np.ndarray
    pages: np.ndarray
    bounds: np.ndarray
    scratch: int


class CpuAttention:
    """Writes and attends with engine.kernels where a chunk has few rows, with torch elsewhere."""

    name = "cpu"

    def __init__(self, pool: KvPool, shape: Shape) -> None:
        self._pool = pool
        self._kinds = shape.kinds
        self._torch = TorchAttention(pool, shape)
        self._layouts = {kind: _layout(kind, pool) for kind in shape.kinds}
        self._bodies = [compiled(self._layouts[kind]) for kind in shape.kinds]
        self._stores = [
            (keys.data_ptr(), values.data_ptr())
            for keys, values in zip(pool.keys, pool.values, strict=True)
        ]
        self._team = Team()
        self._scratch = torch.empty(0)

    def plan(self, batch: Batch) -> Attend:
        few: list[tuple[int, Chunk]] = []
        many: list[tuple[int, Chunk]] = []
        for first, chunk in zip(batch.offsets, batch.chunks, strict=True):
            (few if len(chunk.ids) <= MOST_ROWS else many).append((first, chunk))
        if not few:
            return self._torch.plan(batch)
        rest = None
        if many:
            offsets, chunks = zip(*many, strict=True)
            rest = self._torch.plan(replace(batch, offsets=offsets, chunks=chunks))
        work = {kind: self._work(few, kind) for kind in self._layouts}
        needed = self._team.size * max(each.scratch for each in work.values())
        if self._scratch.numel() < needed:
            self._scratch = torch.empty(2 * needed)
        scratch, team = self._scratch, self._team
        calls = {kind: self._call(kind, each, scratch) for kind, each in work.items()}
        kinds, bodies, stores = self._kinds, self._bodies, self._stores
        rows = sum(len(chunk.ids) for chunk in batch.chunks)

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None = None, /):
            kind = kinds[layer]
            q, k, v = _packed(q), _packed(k), _packed(v)
            out = q.new_empty((rows, kind.heads * kind.value_dim))
            if rest is not None:
                others = rest(layer, q, k, v).split([len(chunk.ids) for _, chunk in many])
                for (first, chunk), other in zip(many, others, strict=True):
                    out[first : first + len(chunk.ids)] = other
            call = calls[kind]
            keys, values = stores[layer]
            call[:TENSORS] = (
                q.data_ptr(),
                q.stride(0),
                k.data_ptr(),
                k.stride(0),
                v.data_ptr(),
                v.stride(0),
                keys,
                values,
                out.data_ptr(),
                out.stride(0),
            )
            team.run(bodies[layer], call)
            return out

        attend.__dict__["held"] = (work, scratch)  # the call holds their addresses only
        return attend

    def _work(self, chunks: Sequence[tuple[int, Chunk]], kind: AttentionKind) -> _Work:
        """The work of one kind of layer, cut into shares of about equal cost."""
        items: list[tuple[int, ...]] = []
        costs: list[int] = []
        pages: list[int] = []
        scratch = 0
        for first, chunk in chunks:
            rows, begin = len(chunk.ids), chunk.start
            oldest = 0 if kind.window is None else max(0, begin - kind.window + 1)
            keys = begin + rows - oldest
            scratch = max(scratch, scratch_floats(self._layouts[kind], rows, keys))
            for head in range(kind.kv_heads):
                items.append((first, rows, begin, oldest, len(pages), head))
                costs.append((keys + 32) * (rows + 1))
            pages.extend(chunk.pages[: -(-chunk.kv_length // self._pool.page_size)])
        shares = self._team.size
        middles = np.cumsum(costs) - np.array(costs) / 2
        bounds = np.searchsorted(middles, sum(costs) * np.arange(shares + 1) / shares)
        return _Work(
            np.array(items, np.int64), np.array(pages, np.int64), bounds.astype(np.int64), scratch
        )

    def _call(self, kind: AttentionKind, work: _Work, scratch: Tensor) -> Any:
        """The arguments of kernels.compiled, those of the tensors left open."""
        return (ctypes.c_int64 * WORDS)(
            *[0] * TENSORS,
            work.items.ctypes.data,
            work.pages.ctypes.data,
            work.bounds.ctypes.data,
            *self._team.addresses[:2],
            scratch.data_ptr(),
            work.scratch,
            struct.unpack("I", struct.pack("f", kind.scale))[0],
            kind.window or UNBOUNDED,
            self._team.size,
            kind.value_dim,
        )


def _layout(kind: AttentionKind, pool: KvPool) -> Layout:
    return Layout(
        kind.kv_heads,
        kind.heads // kind.kv_heads,
        kind.head_dim,
        kind.value_dim,
        pool.page_size,
        pool.keys[0].dtype == torch.bfloat16,
    )


def _packed(x: Tensor) -> Tensor:
    """x [T, H, D] with the heads of a row next to each other."""
    return x if x.stride(2) == 1 and x.stride(1) == x.shape[2] else x.contiguous()
