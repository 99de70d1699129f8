"""Attention over pages through FlashInfer's paged prefill kernel (CUDA, optional extra `gpu`).

One wrapper serves prefill, decode and verify: all are appends of n rows to L keys, causal
aligned to the end. Layers of equal kind share a wrapper and its plan of the step.

Where a chunk's first keys are hidden, the pool is described as pages of one token each: a list of
pages can only begin where a page does."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from engine.attention import Attention, TorchAttention
from engine.batch import Batch, Chunk, pack
from engine.device import Device, Event
from engine.draw import Draw
from engine.errors import StartError
from engine.kv import KvPool
from engine.shape import Attend, AttentionKind, Shape

WORKSPACE_BYTES = 128 * 1024 * 1024
HEAD_DIMS = (64, 128, 256)
DTYPES = (torch.float16, torch.bfloat16)
TOLERANCE = 0.05
"""Largest difference to the torch attention, in units of a value of variance 1, that the two
roundings to bfloat16 explain."""


def open_flashinfer(pool: KvPool, shape: Shape, device: Device) -> FlashInferAttention:
    """The attention of a model on a CUDA device, its kernels compiled and compared with torch.

    Raises StartError when there is no CUDA device, the package is missing, a layer is of a kind
    that FlashInfer does not serve, or its kernels fail or compute something else."""
    if not device.is_cuda:
        raise StartError(
            "no_cuda", "attention flashinfer needs a CUDA GPU; use --attention auto or torch."
        )
    reason = refusal(shape.kinds, device.dtype)
    if reason is not None:
        raise StartError(
            "flashinfer_unsupported",
            f"attention flashinfer cannot serve this model: {reason}. "
            "Use --attention auto or torch.",
        )
    prove(shape, pool.page_size, device)
    return FlashInferAttention(pool, shape, device)


def refusal(kinds: Sequence[AttentionKind], dtype: torch.dtype) -> str | None:
    """Why FlashInfer's kernels cannot serve these layers in this dtype; None if they can."""
    if dtype not in DTYPES:
        return f"its kernels compute in float16 and bfloat16, not in {str(dtype)[6:]}"
    for layer, kind in enumerate(kinds):
        if kind.value_dim != kind.head_dim:
            return (
                f"layer {layer} has value heads of {kind.value_dim} and key heads of "
                f"{kind.head_dim} numbers, which must be equal"
            )
        if kind.head_dim not in HEAD_DIMS:
            return f"layer {layer} has heads of {kind.head_dim} numbers, not 64, 128 or 256"
        if kind.sinks and kind.softcap is not None:
            return f"layer {layer} has both sinks and a soft cap, for which there is no kernel"
    # Most versions of FlashInfer name the sinks' kernel without its head size.
    if len({kind.head_dim for kind in kinds if kind.sinks}) > 1:
        return "its layers with sinks have heads of different sizes"
    return None


class FlashInferAttention:
    """Plans once per kind and step; every layer of the kind runs that plan."""

    name = "flashinfer"

    def __init__(self, pool: KvPool, shape: Shape, device: Device) -> None:
        self._pool = pool
        self._kinds = shape.kinds
        self._device = device
        # A run's scratch space: layers run one after another, so they can share it.
        workspace = torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device=device.torch_device)
        self._wrappers = {
            kind: _open_wrapper(kind, workspace, device.dtype)
            for kind in dict.fromkeys(self._kinds)
        }
        first = self._wrappers[self._kinds[0]]
        self._takes_uniform = "uniform_q_len" in inspect.signature(first.plan).parameters
        self._planned: Event | None = None

    def plan(self, batch: Batch) -> Attend:
        """It may wait for the device, until the plan before has been copied there: a third place
        that waits, beside Step.result and Drawn.result. A model drafter plans several times in a
        step, and the copies of a plan are enqueued behind the pass before."""
        pool, kinds, wrappers = self._pool, self._kinds, self._wrappers
        hides = any(chunk.first for chunk in batch.chunks)
        size = 1 if hides else pool.page_size
        query_ends = [0]
        for chunk in batch.chunks:
            query_ends.append(query_ends[-1] + len(chunk.ids))
        page_ends, indices, last = self._tokens(batch) if hides else self._pages(batch)
        # plan reads all but the indices on the host: device tensors there would wait for the GPU.
        where = (self._host(query_ends), self._host(page_ends), indices, self._host(last))
        seq_lens = self._host([chunk.kv_length - chunk.first for chunk in batch.chunks])
        options = self._uniform_rows(batch)
        if self._planned is not None:
            # A wrapper copies each plan out of the same pinned buffer.
            self._planned.synchronize()
        for kind, wrapper in wrappers.items():
            wrapper.plan(
                *where,
                kind.heads,
                kind.kv_heads,
                kind.head_dim,
                size,
                causal=True,
                sm_scale=kind.scale,
                window_left=-1 if kind.window is None else kind.window - 1,
                logits_soft_cap=kind.softcap,
                q_data_type=self._device.dtype,
                kv_data_type=self._device.dtype,
                seq_lens=seq_lens,
                # Before 0.7 a split whose keys are all hidden from a row gives NaN with sinks.
                disable_split_kv=kind.sinks,
                **options,
            )
        self._planned = self._device.record()
        slots = batch.slots

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

    def _pages(self, batch: Batch) -> tuple[list[int], Tensor, list[int]]:
        """Where each chunk's pages end in the list of all, that list, int32 on the device, and the
        tokens in the last page of each."""
        size = self._pool.page_size
        ends, held, last = [0], [], []
        for chunk in batch.chunks:
            used = -(-chunk.kv_length // size)
            held.extend(chunk.pages[:used])
            ends.append(len(held))
            last.append(chunk.kv_length - (used - 1) * size)
        return ends, self._device.tensor(held, torch.int32), last

    def _tokens(self, batch: Batch) -> tuple[list[int], Tensor, list[int]]:
        """The same with each key that is seen as a page of its own. The slots are computed on the
        device: a list of every token is long."""
        size, device = self._pool.page_size, self._device
        ends, held, skipped = [0], [], []
        for chunk in batch.chunks:
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
        return ends, slots.index_select(0, seen), [1] * len(counts)

    def _uniform_rows(self, batch: Batch) -> dict[str, int]:
        """A hint for the planner, where the installed version (0.7) takes it."""
        rows = len(batch.chunks[0].ids)
        if self._takes_uniform and all(len(chunk.ids) == rows for chunk in batch.chunks):
            return {"uniform_q_len": rows}
        return {}

    def _host(self, values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int32, pin_memory=self._device.is_cuda)


def _open_wrapper(kind: AttentionKind, workspace: Tensor, dtype: torch.dtype) -> Any:
    """FlashInfer's wrapper in NHD layout. Always its fa2 kernels: they run on every GPU since
    Turing and are the faster ones for the few rows of decode and verify."""
    from flashinfer import (
        BatchAttentionWithAttentionSinkWrapper,
        BatchPrefillWithPagedKVCacheWrapper,
    )

    if not kind.sinks:
        return BatchPrefillWithPagedKVCacheWrapper(workspace, "NHD", backend="fa2")
    return BatchAttentionWithAttentionSinkWrapper(
        workspace,
        "NHD",
        backend="fa2",
        q_data_type=dtype,
        kv_data_type=dtype,
        head_dim_qk=kind.head_dim,
        head_dim_vo=kind.value_dim,
        window_left=-1 if kind.window is None else kind.window - 1,
    )


def prove(shape: Shape, page_size: int, device: Device) -> None:
    """Run one batch (decode, verify, prefill) over scattered pages through every kind of layer,
    which also compiles the kernels. Raises StartError when the package is missing, when that fails
    or when torch disagrees."""
    kinds = tuple(dict.fromkeys(shape.kinds))
    try:
        wrong = [
            f"{kind} is off by {error:.3f}"
            for kind, error in zip(kinds, _errors(shape, kinds, page_size, device), strict=True)
            if not error <= TOLERANCE
        ]
    except ImportError as error:
        raise StartError(
            "no_flashinfer",
            f"attention flashinfer was asked for, but it cannot be imported ({error}); "
            "install the extra with `pip install 'paceline[gpu]'` or use --attention torch.",
        ) from error
    except Exception as error:  # compilers, drivers and kernels each raise their own
        raise StartError(
            "flashinfer_failed",
            f"FlashInfer's kernels do not run here ({type(error).__name__}: {error}). They are "
            "compiled at first use, which needs nvcc and ninja, or the flashinfer-jit-cache "
            "package; use --attention auto or torch until then.",
        ) from error
    if wrong:
        raise StartError(
            "flashinfer_wrong",
            f"FlashInfer's kernels do not compute what the torch attention does: {wrong[0]}. "
            "Install another version of flashinfer-python, or use --attention torch.",
        )


def _errors(
    shape: Shape, kinds: tuple[AttentionKind, ...], page_size: int, device: Device
) -> list[float]:
    """Largest difference to the torch attention, per kind, on random numbers."""
    longest = 40 + max(min(kind.window or 0, 4096) for kind in kinds)
    # (rows, first position): decode, verify, a prefill's second chunk, a whole prefill
    sizes = ((1, longest), (5, 20), (9, 7), (12, 0))
    needed = [-(-(start + rows) // page_size) for rows, start in sizes]
    pages = sum(needed)
    free = list(range(pages))[::-1]
    chunks = [
        Chunk(request, [0] * rows, start, [free.pop() for _ in range(count)][::-1], Draw())
        for request, ((rows, start), count) in enumerate(zip(sizes, needed, strict=True))
    ]
    batch = pack(chunks, device, page_size)
    generator = torch.Generator().manual_seed(0)

    def random(*size: int) -> Tensor:
        values = torch.randn(size, generator=generator)
        return values.to(device.torch_device, device.dtype)

    slots = pages * page_size
    pool = KvPool(
        tuple(random(slots, kind.kv_heads, kind.head_dim) for kind in kinds),
        tuple(random(slots, kind.kv_heads, kind.value_dim) for kind in kinds),
        pages,
        page_size,
    )
    own = replace(shape, layers=len(kinds), kinds=kinds)
    attentions: tuple[Attention, ...] = (
        FlashInferAttention(pool, own, device),
        TorchAttention(pool, own),
    )
    attends = [attention.plan(batch) for attention in attentions]
    errors: list[float] = []
    for layer, kind in enumerate(kinds):
        rows = len(batch.ids)
        q = random(rows, kind.heads, kind.head_dim)
        k = random(rows, kind.kv_heads, kind.head_dim)
        v = random(rows, kind.kv_heads, kind.value_dim)
        sinks = random(kind.heads) if kind.sinks else None
        ours, reference = (attend(layer, q, k, v, sinks).float() for attend in attends)
        errors.append(float((ours - reference).abs().max()))
    return errors
