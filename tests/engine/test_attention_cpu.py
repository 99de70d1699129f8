"""The compiled CPU attention computes and writes what the torch attention does."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from engine.attention import TorchAttention
from engine.attention_cpu import MOST_ROWS, CpuAttention, serves
from engine.batch import Batch, Chunk, pack
from engine.device import Device
from engine.draw import Draw
from engine.kv import KvPool, empty_pool
from engine.shape import AttentionKind, Shape
from engine.team import Team

PAGE = 4
PAGES = ([5, 6, 7, 8, 30, 31, 32, 33, 34], [9, 1, 12, 2, 20, 3, 21, 4, 22], [10, 15])
WINDOWS = (None, 1, 5)
DTYPES = {torch.float32: 1e-5, torch.bfloat16: 0.02}
STEPS = (
    pytest.param(((1, 20), (1, 33), (1, 0)), id="decode"),
    pytest.param(((4, 20), (1, 6), (7, 0)), id="verify"),
    pytest.param(((MOST_ROWS + 5, 8), (2, 17), (5, 3)), id="prefill beside verify"),
    pytest.param(((MOST_ROWS + 1, 0),), id="prefill alone"),
)


@pytest.fixture(params=(1, 2))
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def shape_of(value_dim: int) -> Shape:
    kinds = tuple(AttentionKind(6, 2, 8, value_dim, 0.3, window) for window in WINDOWS)
    return Shape(len(kinds), 6, 2, 8, 48, 10, 64, kinds)


def random_pool(shape: Shape, device: Device) -> KvPool:
    torch.manual_seed(0)
    pool = empty_pool(shape, device, 40, PAGE)
    for storage in (*pool.keys, *pool.values):
        storage.normal_()
    return pool


def batch_of(steps: tuple[tuple[int, int], ...], device: Device) -> Batch:
    chunks = [
        Chunk(request, [0] * rows, start, PAGES[request], Draw())
        for request, (rows, start) in enumerate(steps)
    ]
    return pack(chunks, device, PAGE)


def random_rows(kind: AttentionKind, rows: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """q, k and v as views of one projection, as the decoder hands them over."""
    sizes = [kind.heads * kind.head_dim, kind.kv_heads * kind.head_dim]
    sizes.append(kind.kv_heads * kind.value_dim)
    parts = torch.randn(rows, sum(sizes), dtype=dtype).split(sizes, dim=1)
    heads = (kind.heads, kind.kv_heads, kind.kv_heads)
    return tuple(part.unflatten(1, (n, -1)) for part, n in zip(parts, heads, strict=True))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("steps", STEPS)
def test_it_equals_the_torch_attention_for_any_window_and_pages(
    steps: tuple[tuple[int, int], ...], dtype: torch.dtype, threads: int
) -> None:
    device = Device(torch.device("cpu"), dtype)
    shape = shape_of(value_dim=8)
    ours, theirs = random_pool(shape, device), random_pool(shape, device)
    batch = batch_of(steps, device)
    attend = CpuAttention(ours, shape).plan(batch)
    expect = TorchAttention(theirs, shape).plan(batch)
    for layer, kind in enumerate(shape.kinds):
        rows = random_rows(kind, len(batch.ids), dtype)
        got, wanted = attend(layer, *rows), expect(layer, *rows)
        torch.testing.assert_close(got, wanted, atol=DTYPES[dtype], rtol=DTYPES[dtype])
        assert torch.equal(ours.keys[layer], theirs.keys[layer])
        assert torch.equal(ours.values[layer], theirs.values[layer])


@pytest.mark.parametrize("dtype", DTYPES)
def test_keys_before_a_chunks_first_are_neither_seen_nor_read(
    dtype: torch.dtype, threads: int
) -> None:
    device = Device(torch.device("cpu"), dtype)
    shape = shape_of(value_dim=8)
    ours, theirs = random_pool(shape, device), random_pool(shape, device)
    firsts = ((1, 20, 1), (3, 17, 6), (2, 3, 3))
    chunks = [
        Chunk(request, [0] * rows, start, PAGES[request], Draw(), first=first)
        for request, (rows, start, first) in enumerate(firsts)
    ]
    for pool in (ours, theirs):
        for chunk in chunks:
            hidden = [
                chunk.pages[place // PAGE] * PAGE + place % PAGE for place in range(chunk.first)
            ]
            for storage in (*pool.keys, *pool.values):
                storage[hidden] = float("nan")
    batch = pack(chunks, device, PAGE)
    attend = CpuAttention(ours, shape).plan(batch)
    expect = TorchAttention(theirs, shape).plan(batch)
    for layer, kind in enumerate(shape.kinds):
        rows = random_rows(kind, len(batch.ids), dtype)
        got, wanted = attend(layer, *rows), expect(layer, *rows)
        assert got.isfinite().all()
        torch.testing.assert_close(got, wanted, atol=DTYPES[dtype], rtol=DTYPES[dtype])


def test_values_of_another_size_than_keys_and_rows_apart_are_understood() -> None:
    device = Device(torch.device("cpu"), torch.float32)
    shape = shape_of(value_dim=5)
    ours, theirs = random_pool(shape, device), random_pool(shape, device)
    batch = batch_of(((3, 20), (1, 6)), device)
    q, k, v = random_rows(shape.kinds[0], len(batch.ids), torch.float32)
    q = q.transpose(0, 1).contiguous().transpose(0, 1)  # heads outside rows
    wanted = TorchAttention(theirs, shape).plan(batch)(0, q, k, v)
    got = CpuAttention(ours, shape).plan(batch)(0, q, k, v)
    torch.testing.assert_close(got, wanted, atol=1e-5, rtol=1e-5)


def test_large_scores_and_not_a_number_show_in_their_own_head_only() -> None:
    device = Device(torch.device("cpu"), torch.float32)
    shape = shape_of(value_dim=8)
    ours, theirs = random_pool(shape, device), random_pool(shape, device)
    batch = batch_of(((1, 20), (1, 6)), device)
    q, k, v = random_rows(shape.kinds[0], 2, torch.float32)
    q = q.clone()
    q[0] *= 1000
    wanted = TorchAttention(theirs, shape).plan(batch)(0, q, k, v)
    q[1, 2] = float("nan")
    got = CpuAttention(ours, shape).plan(batch)(0, q, k, v)
    wanted[1, 16:24] = float("nan")
    torch.testing.assert_close(got, wanted, atol=1e-4, rtol=1e-4, equal_nan=True)


def test_every_share_is_computed_when_openmp_gives_fewer_threads(
    monkeypatch: pytest.MonkeyPatch, threads: int
) -> None:
    device = Device(torch.device("cpu"), torch.float32)
    shape = shape_of(value_dim=8)
    ours, theirs = random_pool(shape, device), random_pool(shape, device)
    attention = CpuAttention(ours, shape)
    monkeypatch.setattr(attention._team, "size", 7)
    monkeypatch.setattr(Team, "run", lambda team, body, call: body.ctypes(call))
    batch = batch_of(((4, 20), (1, 6), (7, 0)), device)
    rows = random_rows(shape.kinds[0], len(batch.ids), torch.float32)
    got = attention.plan(batch)(0, *rows)
    torch.testing.assert_close(got, TorchAttention(theirs, shape).plan(batch)(0, *rows))


def test_layers_with_a_soft_cap_or_sinks_are_not_served() -> None:
    device = Device(torch.device("cpu"), torch.float32)
    for kind, wanted in (
        (AttentionKind(6, 2, 8, 8, 0.3), True),
        (AttentionKind(6, 2, 8, 8, 0.3, softcap=2.0), False),
        (AttentionKind(6, 2, 8, 8, 0.3, sinks=True), False),
    ):
        shape = Shape(1, 6, 2, 8, 48, 10, 64, (kind,))
        assert serves(empty_pool(shape, device, 4, PAGE), shape) is wanted
