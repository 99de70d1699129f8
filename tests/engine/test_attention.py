"""Both attentions behind one interface: the torch one computes, FlashInfer's contract is kept."""

from __future__ import annotations

from typing import Any

import torch

from engine.attention import TorchAttention
from engine.attention_flashinfer import FlashInferAttention
from engine.batch import Batch, Chunk, pack
from engine.device import Device
from engine.draw import Draw
from engine.kv import KvPool
from engine.shape import Shape

CPU = Device(torch.device("cpu"), torch.float32)
SHAPE = Shape(1, 6, 2, 8, 48, 10, 64)
PAGE = 4


def make_pool() -> KvPool:
    size = (16 * PAGE, SHAPE.kv_heads, SHAPE.head_dim)
    return KvPool((torch.full(size, float("nan")),), (torch.full(size, float("nan")),), 16, PAGE)


def rows(count: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return (
        torch.randn(count, SHAPE.heads, SHAPE.head_dim),
        torch.randn(count, SHAPE.kv_heads, SHAPE.head_dim),
        torch.randn(count, SHAPE.kv_heads, SHAPE.head_dim),
    )


def batch_of(*chunks: Chunk) -> Batch:
    return pack(chunks, CPU, PAGE)


def naive(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> torch.Tensor:
    """Causal attention of the last len(q) positions, one head and row at a time."""
    out = torch.zeros(len(q), SHAPE.heads, SHAPE.head_dim)
    for row in range(len(q)):
        seen = len(k) - len(q) + row + 1
        for head in range(SHAPE.heads):
            kv = head // (SHAPE.heads // SHAPE.kv_heads)
            weights = (k[:seen, kv] @ q[row, head] * scale).softmax(0)
            out[row, head] = weights @ v[:seen, kv]
    return out.flatten(1)


def test_attention_is_causal_from_the_end_over_any_pages() -> None:
    torch.manual_seed(0)
    attention = TorchAttention(make_pool(), SHAPE, 0.3)
    pages = {0: [5, 6, 7], 1: [9, 1, 12]}
    history: dict[int, list[tuple[torch.Tensor, ...]]] = {0: [], 1: []}
    for lengths in ((6, 4), (1, 1), (3, 5), (1, 2)):
        chunks, parts = [], []
        for request, length in enumerate(lengths):
            start = sum(len(part[1]) for part in history[request])
            chunks.append(Chunk(request, [0] * length, start, pages[request], Draw()))
            parts.append(rows(length))
            history[request].append(parts[-1])
        q, k, v = (torch.cat([part[i] for part in parts]) for i in range(3))
        out = attention.plan(batch_of(*chunks))(0, q, k, v)
        at = 0
        for request, length in enumerate(lengths):
            keys = torch.cat([part[1] for part in history[request]])
            values = torch.cat([part[2] for part in history[request]])
            wanted = naive(parts[request][0], keys, values, 0.3)
            torch.testing.assert_close(out[at : at + length], wanted, atol=1e-5, rtol=1e-5)
            at += length


class RecordingWrapper:
    """Takes FlashInfer's place: checks what it is told, as the CUDA kernel would need it."""

    def __init__(self) -> None:
        self.planned: dict[str, Any] = {}

    def plan(
        self,
        qo_indptr: torch.Tensor,
        paged_kv_indptr: torch.Tensor,
        paged_kv_indices: torch.Tensor,
        paged_kv_last_page_len: torch.Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim_qk: int,
        page_size: int,
        *,
        causal: bool = False,
        sm_scale: float | None = None,
        q_data_type: Any = "float16",
        kv_data_type: Any = None,
        seq_lens: torch.Tensor | None = None,
    ) -> None:
        self.planned = locals()

    def run(self, q: torch.Tensor, cache: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        for part in cache:
            assert part.shape == (16, PAGE, SHAPE.kv_heads, SHAPE.head_dim)
        assert q.is_contiguous()
        return torch.zeros_like(q)


def test_flashinfer_is_told_lengths_that_include_the_rows_being_written() -> None:
    wrapper = RecordingWrapper()
    attention = FlashInferAttention(make_pool(), SHAPE, 0.3, wrapper)
    chunks = [
        Chunk(0, [1], 7, [3, 4, 5], Draw()),  # decode: 8 keys, two full pages
        Chunk(1, [1, 2, 3], 6, [9, 1, 12], Draw(), drafted=2),  # verify: 9 keys
        Chunk(2, [1, 2, 3, 4, 5], 0, [8, 7], Draw()),  # prefill: 5 keys
    ]
    q, k, v = rows(9)
    out = attention.plan(batch_of(*chunks))(0, q, k, v)
    told = wrapper.planned
    assert told["qo_indptr"].tolist() == [0, 1, 4, 9]
    assert told["paged_kv_indptr"].tolist() == [0, 2, 5, 7]
    assert told["paged_kv_indices"].tolist() == [3, 4, 9, 1, 12, 8, 7]
    assert told["paged_kv_last_page_len"].tolist() == [4, 1, 1]
    assert told["seq_lens"].tolist() == [8, 9, 5]
    names = ("qo_indptr", "paged_kv_indptr", "paged_kv_last_page_len", "seq_lens")
    for name in (*names, "paged_kv_indices"):
        assert told[name].dtype == torch.int32
        assert name == "paged_kv_indices" or told[name].device.type == "cpu"
    assert told["causal"] is True
    assert told["sm_scale"] == 0.3
    assert told["q_data_type"] == told["kv_data_type"] == torch.float32
    assert out.shape == (9, SHAPE.heads * SHAPE.head_dim)
