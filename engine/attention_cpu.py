"""Attention over pages on the CPU: compiled code for decoding and verifying, torch for prefill."""

from __future__ import annotations

import ctypes
import struct
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from engine import kernels, kernels_attention_bf16
from engine.attention import TorchAttention
from engine.batch import Batch, Chunk
from engine.kernels import ITEM, MOST_SCORES, TENSORS, WORDS, Layout
from engine.kernels_product import multiplies
from engine.kv import KvPool
from engine.shape import Attend, AttentionKind, Shape
from engine.team import Team

MOST_ROWS = 20
"""Chunks of more rows are prefill, for which torch's blocked kernel is faster."""
COST_KEYS, COST_ROWS = 32, 8
"""The cost of a KV head is (keys + COST_KEYS) * (rows + COST_ROWS): reading the keys and values
takes as long as COST_ROWS rows."""
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

    items: array[int]
    pages: array[int]
    bounds: array[int]
    scratch: int


class CpuAttention:
    """Writes and attends with engine.kernels where a chunk has few rows, with torch elsewhere."""

    name = "cpu"

    def __init__(self, pool: KvPool, shape: Shape) -> None:
        self._pool = pool
        self._kinds = shape.kinds
        self._torch = TorchAttention(pool, shape)
        self._layouts = {kind: _layout(kind, pool) for kind in shape.kinds}
        halves = pool.keys[0].dtype == torch.bfloat16 and multiplies()
        self._kernels = kernels_attention_bf16 if halves else kernels
        self._bodies = [self._kernels.compiled(self._layouts[kind]) for kind in shape.kinds]
        self._stores = [
            (keys.data_ptr(), values.data_ptr())
            for keys, values in zip(pool.keys, pool.values, strict=True)
        ]
        self._team = Team()
        self._scratch = torch.empty(0, dtype=torch.float32)

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
            self._scratch = torch.empty(2 * needed, dtype=torch.float32)
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
        """The work of one kind of layer, cut into shares of about equal cost. Plain loops: a call
        of numpy costs more than what the few chunks of a step need."""
        heads, group = kind.kv_heads, kind.heads // kind.kv_heads
        size, window = self._pool.page_size, kind.window or UNBOUNDED
        items, pages, bounds = array("q"), array("q"), array("q", (0,))
        sizes: list[tuple[int, int, int, int]] = []  # oldest, most heads at once, cost, first page
        most_rows = most_keys = total = 0
        for _, chunk in chunks:
            rows, begin = len(chunk.ids), chunk.start
            oldest = max(chunk.first, begin - window + 1)
            keys = begin + rows - oldest
            cost = (keys + COST_KEYS) * (rows + COST_ROWS)
            at_once = max(1, MOST_SCORES // (rows * group * keys))
            sizes.append((oldest, at_once, cost, len(pages)))
            pages.extend(chunk.pages[: -(-(begin + rows) // size)])
            most_rows, most_keys, total = max(most_rows, rows), max(most_keys, keys), total + cost
        shares = self._team.size
        left = step = total * heads / shares  # of the share that is being filled
        for (first, chunk), (oldest, at_once, cost, page) in zip(chunks, sizes, strict=True):
            head = 0
            while head < heads:
                fitting = int(left / cost + 0.5) if len(bounds) < shares else heads
                count = min(fitting, at_once, heads - head)
                if count <= 0:
                    bounds.append(len(items) // ITEM)
                    left += step
                    continue
                items.extend((first, len(chunk.ids), chunk.start, oldest, page, head, count))
                head += count
                left -= count * cost
        bounds.extend([len(items) // ITEM] * (shares + 1 - len(bounds)))
        layout = self._layouts[kind]
        return _Work(
            items, pages, bounds, self._kernels.scratch_floats(layout, most_rows, most_keys)
        )

    def _call(self, kind: AttentionKind, work: _Work, scratch: Tensor) -> Any:
        """The arguments of kernels.compiled, those of the tensors left open."""
        return (ctypes.c_int64 * WORDS)(
            *[0] * TENSORS,
            work.items.buffer_info()[0],
            work.pages.buffer_info()[0],
            work.bounds.buffer_info()[0],
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
