"""How FlashInfer's wrappers are told of a step, and run: for a step at a time, or for a graph."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from engine.batch import Chunk
from engine.device import Device, Event
from engine.kv import KvPool
from engine.shape import Attend, AttentionKind

WORKSPACE_BYTES = 128 * 1024 * 1024
PLAN_BYTES = 128 * 1024
"""Of a plan for a graph: some dozen bytes for every tile of its few rows."""
MOST_INDICES = 1 << 19
"""Pages, or keys, that the lists of a plan for a graph hold."""

Wrappers = dict[AttentionKind, Any]


class Keys(NamedTuple):
    """The keys of some chunks. ends: where each chunk's pages end in the list of all; indices: that
    list, int32 on the device; last: tokens in the last page of each; size: tokens of a page."""

    ends: list[int]
    indices: Tensor
    last: list[int]
    size: int


class _Shared(NamedTuple):
    """What the passes of one number have in common, whatever graph they are in: the list of their
    keys, and the rest of their plan by kind."""

    indices: Tensor
    plans: dict[AttentionKind, Tensor]


class Planner:
    """Plans for wrappers over one pool. Layers of equal kind share a wrapper and its plan.

    Where a chunk's first keys are hidden, the pool is described as pages of one token each: a list
    of pages can only begin where a page does."""

    def __init__(self, pool: KvPool, kinds: Sequence[AttentionKind], device: Device) -> None:
        self.pool = pool
        self.device = device
        self._kinds = tuple(kinds)
        # A run's scratch space: layers run one after another, so they can share it.
        self._workspace = torch.zeros(
            WORKSPACE_BYTES, dtype=torch.uint8, device=device.torch_device
        )
        self._shared: list[_Shared] = []

    def wrappers(self) -> Wrappers:
        """One for each kind, for steps of any size."""
        return {kind: self._open(kind) for kind in dict.fromkeys(self._kinds)}

    @property
    def fixes(self) -> bool:
        """Whether every kind has a wrapper whose plans a graph can read."""
        return not any(kind.sinks for kind in self._kinds)

    def fixed_wrappers(self, number: int, rows: int) -> Wrappers:
        """Wrappers for steps of so many chunks of one row, whose plans always lie in the same
        place, so that a graph finds them there. Those of one number share the large parts of it:
        a plan is read before the next one is told. Other passes run between these two."""
        while number >= len(self._shared):
            self._shared.append(_Shared(self._buffer(MOST_INDICES), {}))
        indices, plans = self._shared[number]
        ends, page_ends, last = (self._buffer(size) for size in (rows + 1, rows + 1, rows))
        found: Wrappers = {}
        for kind in dict.fromkeys(self._kinds):
            found[kind] = self._open(
                kind,
                use_cuda_graph=True,
                qo_indptr_buf=ends,
                paged_kv_indptr_buf=page_ends,
                paged_kv_indices_buf=indices,
                paged_kv_last_page_len_buf=last,
            )
            if kind not in plans:
                plans[kind] = self._buffer(PLAN_BYTES // 4).view(torch.uint8)
            found[kind].reset_workspace_buffer(self._workspace, plans[kind])
        return found

    def plan(self, wrappers: Wrappers, chunks: Sequence[Chunk], hides: bool) -> Event:
        """Enqueue the plan of a step. hides: some chunk's first keys are hidden. The event: it has
        been copied, and the wrappers may be given another one."""
        keys = self._tokens(chunks) if hides else self._pages(chunks)
        query_ends = [0]
        for chunk in chunks:
            query_ends.append(query_ends[-1] + len(chunk.ids))
        # plan reads all but the indices on the host: device tensors there would wait for the GPU.
        where = (self._host(query_ends), self._host(keys.ends), keys.indices, self._host(keys.last))
        seq_lens = self._host([chunk.kv_length - chunk.first for chunk in chunks])
        for kind, wrapper in wrappers.items():
            wrapper.plan(
                *where,
                kind.heads,
                kind.kv_heads,
                kind.head_dim,
                keys.size,
                causal=True,
                sm_scale=kind.scale,
                window_left=-1 if kind.window is None else kind.window - 1,
                logits_soft_cap=kind.softcap,
                q_data_type=self.device.dtype,
                kv_data_type=self.device.dtype,
                seq_lens=seq_lens,
                # Before 0.7 a split whose keys are all hidden from a row gives NaN with sinks.
                disable_split_kv=kind.sinks,
                **_uniform_rows(wrapper, chunks),
            )
        return self.device.record()

    def attend(self, wrappers: Wrappers, slots: Tensor, hides: bool) -> Attend:
        """Writes to the slots int64 [T] and runs the wrappers' last plan."""
        pool, kinds = self.pool, self._kinds
        size = 1 if hides else pool.page_size

        def attend(
            layer: int, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None = None, /
        ) -> Tensor:
            keys, values, kind = pool.keys[layer], pool.values[layer], kinds[layer]
            keys.index_copy_(0, slots, k)
            values.index_copy_(0, slots, v)
            paged = (len(keys) // size, size, kind.kv_heads, kind.head_dim)
            q = q.contiguous()
            extra: tuple[Any, ...] = ()
            if kind.sinks:
                # `run(sinks=...)` is dropped silently by the kernels used here; the wrapper for
                # sinks takes them, and the scale again, by position.
                assert sinks is not None
                extra = (sinks.float(), kind.scale)
            out = torch.empty_like(q)
            wrappers[kind].run(q, (keys.view(paged), values.view(paged)), *extra, out=out)
            return out.flatten(1)

        return attend

    def _pages(self, chunks: Sequence[Chunk]) -> Keys:
        size = self.pool.page_size
        ends, held, last = [0], [], []
        for chunk in chunks:
            used = -(-chunk.kv_length // size)
            held.extend(chunk.pages[:used])
            ends.append(len(held))
            last.append(chunk.kv_length - (used - 1) * size)
        return Keys(ends, self.device.tensor(held, torch.int32), last, size)

    def _tokens(self, chunks: Sequence[Chunk]) -> Keys:
        """With each key that is seen as a page of its own. The slots are computed on the device: a
        list of every token is long."""
        size, device = self.pool.page_size, self.device
        ends, held, skipped = [0], [], []
        for chunk in chunks:
            begin, used = chunk.first // size, -(-chunk.kv_length // size)
            # In the list of all slots of the held pages, the chunk's first key lies so far behind
            # its place in the list of the keys that are seen.
            skipped.append(len(held) * size + chunk.first % size - ends[-1])
            held.extend(chunk.pages[begin:used])
            ends.append(ends[-1] + chunk.kv_length - chunk.first)
        counts = [after - before for before, after in pairwise(ends)]
        within = torch.arange(size, dtype=torch.int32, device=device.torch_device)
        pages = device.tensor(held, torch.int32)
        slots = (pages.unsqueeze(1) * size + within).flatten()
        behind = torch.repeat_interleave(
            device.tensor(skipped, torch.int64),
            device.tensor(counts, torch.int64),
            output_size=ends[-1],
        )
        seen = torch.arange(ends[-1], device=device.torch_device) + behind
        return Keys(ends, slots.index_select(0, seen), [1] * len(counts), 1)

    def _buffer(self, size: int) -> Tensor:
        return torch.zeros(size, dtype=torch.int32, device=self.device.torch_device)

    def _host(self, values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int32, pin_memory=self.device.is_cuda)

    def _open(self, kind: AttentionKind, **graph: Any) -> Any:
        """FlashInfer's wrapper in NHD layout. Always its fa2 kernels: they run on every GPU since
        Turing and are the faster ones for the few rows of decode and verify."""
        from flashinfer import (
            BatchAttentionWithAttentionSinkWrapper,
            BatchPrefillWithPagedKVCacheWrapper,
        )

        if not kind.sinks:
            return BatchPrefillWithPagedKVCacheWrapper(
                self._workspace, "NHD", backend="fa2", **graph
            )
        return BatchAttentionWithAttentionSinkWrapper(
            self._workspace,
            "NHD",
            backend="fa2",
            q_data_type=self.device.dtype,
            kv_data_type=self.device.dtype,
            head_dim_qk=kind.head_dim,
            head_dim_vo=kind.value_dim,
            window_left=-1 if kind.window is None else kind.window - 1,
        )


class FixedPlan:
    """One pass of a graph: always as many chunks of one row, over slots that lie in one tensor. Its
    plan says where it reads; the graph's kernels find that in the same place every time."""

    def __init__(self, planner: Planner, number: int, slots: Tensor, hides: bool) -> None:
        """number: of the pass among those of its graph."""
        self._planner = planner
        self._wrappers = planner.fixed_wrappers(number, len(slots))
        self._hides = hides
        self._planned: Event | None = None
        self.attend = planner.attend(self._wrappers, slots, hides)

    def plan(self, chunks: Sequence[Chunk]) -> None:
        """It waits for its own plan of the step before to be copied, which was long ago."""
        if self._planned is not None:
            self._planned.synchronize()
        self._planned = self._planner.plan(self._wrappers, chunks, self._hides)


def _uniform_rows(wrapper: Any, chunks: Sequence[Chunk]) -> dict[str, int]:
    """A hint for the planner, where the installed version (0.7) takes it."""
    rows = len(chunks[0].ids)
    if not all(len(chunk.ids) == rows for chunk in chunks):
        return {}
    return {"uniform_q_len": rows} if _takes_uniform(type(wrapper)) else {}


@cache
def _takes_uniform(wrapper: type[Any]) -> bool:
    return "uniform_q_len" in inspect.signature(wrapper.plan).parameters
