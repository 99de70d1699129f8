"""Attention over pages through FlashInfer's paged prefill kernel (CUDA, optional extra `gpu`).

One wrapper serves prefill, decode and verify: all are appends of n rows to L keys, causal
aligned to the end. `plan` gets CPU int32 tensors, because it reads them on the host."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from engine.batch import Batch
from engine.errors import StartError
from engine.kv import KvPool
from engine.shape import Attend, Shape

WORKSPACE_BYTES = 128 * 1024 * 1024


def open_wrapper(device: torch.device) -> Any:
    """FlashInfer's wrapper in NHD layout. Raises StartError when the package is missing."""
    try:
        # An optional extra, absent on machines without a GPU.
        from flashinfer import (  # pyright: ignore[reportMissingImports]
            BatchPrefillWithPagedKVCacheWrapper,
        )
    except ImportError as error:
        raise StartError(
            "no_flashinfer",
            "attention flashinfer was asked for, but flashinfer is not installed; "
            "install the extra with `pip install 'paceline[gpu]'` or use --attention torch.",
        ) from error
    workspace = torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device=device)
    return BatchPrefillWithPagedKVCacheWrapper(workspace, "NHD")


class FlashInferAttention:
    """Plans once per step; every layer of the step runs the same plan."""

    name = "flashinfer"

    def __init__(self, pool: KvPool, shape: Shape, scale: float, wrapper: Any) -> None:
        self._pool = pool
        self._shape = shape
        self._scale = scale
        self._wrapper = wrapper
        self._planned: torch.cuda.Event | None = None

    def plan(self, batch: Batch) -> Attend:
        pool, shape, wrapper = self._pool, self._shape, self._wrapper
        size = pool.page_size
        query_ends, page_ends, last, indices, lengths = [0], [0], [], [], []
        for chunk in batch.chunks:
            used = -(-chunk.kv_length // size)
            query_ends.append(query_ends[-1] + len(chunk.ids))
            page_ends.append(page_ends[-1] + used)
            indices.extend(chunk.pages[:used])
            last.append(chunk.kv_length - (used - 1) * size)
            lengths.append(chunk.kv_length)
        dtype = pool.keys[0].dtype
        if self._planned is not None:
            self._planned.synchronize()  # the wrapper reuses one pinned buffer between plans
        wrapper.plan(
            _int32(query_ends),
            _int32(page_ends),
            _int32(indices).to(pool.keys[0].device, non_blocking=True),
            _int32(last),
            shape.heads,
            shape.kv_heads,
            shape.head_dim,
            size,
            causal=True,
            sm_scale=self._scale,
            q_data_type=dtype,
            kv_data_type=dtype,
            seq_lens=_int32(lengths),
        )
        if pool.keys[0].is_cuda:
            self._planned = torch.cuda.Event()
            self._planned.record()
        slots = batch.slots
        paged = (pool.pages, size, shape.kv_heads, shape.head_dim)

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            keys, values = pool.keys[layer], pool.values[layer]
            keys.index_copy_(0, slots, k)
            values.index_copy_(0, slots, v)
            out: Tensor = wrapper.run(q.contiguous(), (keys.view(paged), values.view(paged)))
            return out.flatten(1)

        return attend


def _int32(values: list[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)
