"""Attention over pages: the interface and the torch implementation, the reference.

Causal is aligned to the end of the keys: row j of a chunk of n over L keys sees the first
L - n + j + 1, but none before the chunk's `first`. Lengths include the rows being written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.batch import Batch, Chunk
from engine.kv import KvPool
from engine.shape import Attend, AttentionKind, Shape

MAX_SCORES = 1 << 26
"""Rows of a chunk are cut into blocks of at most this many scores (heads x rows x keys), which
bounds the memory of a long prefill."""


class Attention(Protocol):
    name: str

    def plan(self, batch: Batch) -> Attend:
        """Prepare one step; the returned function serves every layer of it."""
        ...


class Fixed(Protocol):
    """One pass of a graph, over as many chunks of one row every time."""

    @property
    def attend(self) -> Attend:
        """Serves every layer of it, with what `plan` was told last."""
        ...

    def plan(self, chunks: Sequence[Chunk]) -> None:
        """Prepare the next run. Enqueues, and waits for nothing but the plan before."""
        ...


@runtime_checkable
class Fixes(Protocol):
    """An attention whose passes a graph can repeat."""

    most_keys: int
    """Of all chunks of a pass together."""

    def fixed(self, slots: Tensor, hides: bool) -> Sequence[Fixed] | None:
        """Passes of one row for each of the slots int64 [passes, rows], which are read at each run.
        Their plans are told before the first of them runs. hides: some chunk's first keys are
        hidden. None where a layer has no such kernel."""
        ...


@dataclass(frozen=True, slots=True)
class _Span:
    """Rows first..last of the batch over the keys at `where`. mask: additive [rows * group, L],
    None when every row sees every key."""

    first: int
    last: int
    where: slice | Tensor
    mask: Tensor | None


class TorchAttention:
    """One fused call per request, on any device. The query heads of a KV head are folded into
    the rows; keys and values are read in place when the request's pages are consecutive. Layers
    with a soft cap or sinks, which the fused call has not, are computed step by step."""

    name = "torch"

    def __init__(self, pool: KvPool, shape: Shape) -> None:
        self._pool = pool
        self._kinds = shape.kinds
        reaches = [(kind.window, kind.heads, kind.kv_heads) for kind in shape.kinds]
        self._reaches = tuple(dict.fromkeys(reaches))
        self._reach_of = tuple(self._reaches.index(reach) for reach in reaches)

    def plan(self, batch: Batch) -> Attend:
        pool, kinds, reach_of = self._pool, self._kinds, self._reach_of
        device, dtype = pool.keys[0].device, pool.keys[0].dtype
        slots = batch.slots
        longest = max(chunk.kv_length for chunk in batch.chunks)
        plans: dict[tuple[int | None, int, int], list[_Span]] = {}
        by_reach: list[list[_Span]] = []
        for window, heads, kv_heads in self._reaches:
            inside = window is None or window >= longest  # then a window hides nothing
            reach = (None if inside else window, heads, kv_heads)
            if reach not in plans:
                plans[reach] = [
                    span
                    for first, chunk in zip(batch.offsets, batch.chunks, strict=True)
                    for span in self._spans(first, chunk, *reach, device, dtype)
                ]
            by_reach.append(plans[reach])

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None = None, /):
            keys, values, kind = pool.keys[layer], pool.values[layer], kinds[layer]
            kv_heads, dim, value_dim = kind.kv_heads, kind.head_dim, kind.value_dim
            group = kind.heads // kv_heads
            stepwise = kind.softcap is not None or sinks is not None
            keys.index_copy_(0, slots, k)
            values.index_copy_(0, slots, v)
            outputs: list[Tensor] = []
            for span in by_reach[reach_of[layer]]:
                where, rows = span.where, span.last - span.first
                if isinstance(where, slice):
                    key, value = keys[where], values[where]
                else:
                    key, value = keys.index_select(0, where), values.index_select(0, where)
                # [rows, Hq, D] -> [1, Hkv, rows * group, D]
                query = q[span.first : span.last].unflatten(1, (kv_heads, group))
                query = query.transpose(0, 1).reshape(1, kv_heads, rows * group, dim)
                key, value = key.transpose(0, 1).unsqueeze(0), value.transpose(0, 1).unsqueeze(0)
                if stepwise:
                    out = _stepwise(query, key, value, span.mask, kind, sinks)
                else:
                    out = F.scaled_dot_product_attention(
                        query, key, value, attn_mask=span.mask, scale=kind.scale
                    )
                out = out.view(kv_heads, rows, group, value_dim).transpose(0, 1)
                outputs.append(out.reshape(rows, kv_heads * group * value_dim))
            return outputs[0] if len(outputs) == 1 else torch.cat(outputs)

        return attend

    def _spans(
        self,
        first: int,
        chunk: Chunk,
        window: int | None,
        heads: int,
        kv_heads: int,
        device: torch.device,
        dtype: torch.dtype,
    ) -> list[_Span]:
        """The chunk's rows in blocks, each over the keys that its first row may see on."""
        count, group = len(chunk.ids), heads // kv_heads
        block = max(1, MAX_SCORES // (heads * chunk.kv_length))
        spans: list[_Span] = []
        for begin in range(0, count, block):
            end = min(begin + block, count)
            start, length = chunk.start + begin, chunk.start + end
            oldest = chunk.first if window is None else max(chunk.first, start - window + 1)
            where = self._key_slots(chunk.pages, oldest, length, device)
            mask = _mask(start - oldest, end - begin, window, group, device, dtype)
            spans.append(_Span(first + begin, first + end, where, mask))
        return spans

    def _key_slots(
        self, held: Sequence[int], begin: int, end: int, device: torch.device
    ) -> slice | Tensor:
        """Slots of the tokens begin..end, a slice where their pages are consecutive."""
        size = self._pool.page_size
        pages = held[begin // size : -(-end // size)]
        first, skipped = pages[0], begin % size
        if pages[-1] - first == len(pages) - 1 and all(
            page == first + index for index, page in enumerate(pages)
        ):
            return slice(first * size + skipped, first * size + skipped + end - begin)
        host = torch.tensor(pages, pin_memory=device.type == "cuda")
        starts = host.to(device, non_blocking=True).unsqueeze(1) * size
        slots = (starts + torch.arange(size, device=device)).flatten()
        return slots[skipped : skipped + end - begin]


def _mask(
    before: int,
    rows: int,
    window: int | None,
    group: int,
    device: torch.device,
    dtype: torch.dtype,
) -> Tensor | None:
    """Additive [rows * group, before + rows]: row j sees keys up to before + j, of those the last
    `window`. None for a single row, which sees every key it is given."""
    if rows == 1:
        return None
    mask = torch.zeros(rows, before + rows, device=device, dtype=dtype)
    corner = torch.full((rows, rows), float("-inf"), device=device, dtype=dtype).triu_(1)
    mask[:, before:] = corner
    if window is not None:
        old = torch.full_like(mask, float("-inf")).tril_(before - window)
        mask += old
    return mask.repeat_interleave(group, dim=0)


def _stepwise(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    kind: AttentionKind,
    sinks: Tensor | None,
) -> Tensor:
    """softmax(softcap(q @ k^T * scale) + mask, with sinks [Hq] as one more logit) @ v, the softmax
    in float32. query [1, Hkv, rows * group, D] -> [1, Hkv, rows * group, Dv]."""
    scores = torch.matmul(query, key.transpose(-1, -2)).float() * kind.scale
    if kind.softcap is not None:
        scores = torch.tanh(scores / kind.softcap) * kind.softcap
    if mask is not None:
        scores = scores + mask
    if sinks is None:
        return torch.matmul(scores.softmax(-1).to(value.dtype), value)
    rows = scores.shape[2] // (kind.heads // kind.kv_heads)
    extra = sinks.float().view(1, kind.kv_heads, -1).repeat(1, 1, rows).unsqueeze(-1)
    weights = torch.cat((scores, extra), dim=-1).softmax(-1)[..., :-1]
    return torch.matmul(weights.to(value.dtype), value)
