"""Attention over pages through FlashInfer's paged prefill kernel (CUDA, optional extra `gpu`).

One wrapper serves prefill, decode and verify: all are appends of n rows to L keys, causal
aligned to the end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from engine.attention import Attention, TorchAttention
from engine.batch import Batch, Chunk, pack
from engine.device import Device, Event
from engine.draw import Draw
from engine.errors import StartError
from engine.flashinfer_plans import MOST_INDICES, FixedPlan, Planner
from engine.kv import KvPool
from engine.shape import Attend, AttentionKind, Shape

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
    most_keys = MOST_INDICES

    def __init__(self, pool: KvPool, shape: Shape, device: Device) -> None:
        self._planner = Planner(pool, shape.kinds, device)
        self._wrappers = self._planner.wrappers()
        self._planned: Event | None = None

    def plan(self, batch: Batch) -> Attend:
        """It may wait for the device, until the plan before has been copied there: a third place
        that waits, beside Step.result and Drawn.result. A model drafter whose passes are not fixed
        plans several times in a step, and the copies of a plan are enqueued behind the pass
        before."""
        hides = any(chunk.first for chunk in batch.chunks)
        if self._planned is not None:
            # A wrapper copies each plan out of the same pinned buffer.
            self._planned.synchronize()
        self._planned = self._planner.plan(self._wrappers, batch.chunks, hides)
        return self._planner.attend(self._wrappers, batch.slots, hides)

    def fixed(self, slots: Tensor, hides: bool) -> list[FixedPlan] | None:
        if not self._planner.fixes:
            return None
        return [FixedPlan(self._planner, number, own, hides) for number, own in enumerate(slots)]


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
