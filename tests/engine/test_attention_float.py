"""float32 attention in vector registers: what torch's attention computes, row by row the same."""

from __future__ import annotations

import pytest
import torch

from engine.attention import TorchAttention
from engine.attention_cpu import MOST_ROWS, CpuAttention
from engine.batch import Batch, Chunk, pack
from engine.device import Device
from engine.draw import Draw
from engine.kernels_attention_float import fits
from engine.kv import KvPool, empty_pool
from engine.shape import AttentionKind, Shape
from tests.engine.test_attention_cpu import random_rows

DEVICE = Device(torch.device("cpu"), torch.float32)
WINDOWS = (None, 1, 21)
SIZES = [(64, 64, 16), (16, 32, 8), (128, 64, 16), (8, 16, 32)]
"""Of a key, of a value, of a page."""
PAGES = ([5, 6, 7, 8, 30, 31, 32, 33, 34], [9, 1, 12, 2, 20, 3, 21, 4, 22], [10, 15, 11])
STEPS = (
    pytest.param(((1, 20), (1, 63), (1, 0)), id="decode"),
    pytest.param(((4, 20), (1, 6), (7, 1)), id="verify"),
    pytest.param(((MOST_ROWS + 5, 8), (2, 47), (5, 3)), id="prefill beside verify"),
)


def shape_of(dim: int, value_dim: int) -> Shape:
    kinds = tuple(AttentionKind(6, 2, dim, value_dim, 0.3, window) for window in WINDOWS)
    return Shape(len(kinds), 6, 2, dim, 48, 10, 128, kinds)


def random_pool(shape: Shape, page: int) -> KvPool:
    torch.manual_seed(0)
    pool = empty_pool(shape, DEVICE, 40, page)
    for storage in (*pool.keys, *pool.values):
        storage.normal_()
    return pool


def batch_of(steps: tuple[tuple[int, int], ...], page: int, first: int = 0) -> Batch:
    chunks = [
        Chunk(request, [0] * rows, start, PAGES[request], Draw(), first=min(first, start))
        for request, (rows, start) in enumerate(steps)
    ]
    return pack(chunks, DEVICE, page)


@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize(("dim", "value_dim", "page"), SIZES)
@pytest.mark.parametrize("first", [0, 5])
def test_it_equals_the_torch_attention(
    dim: int, value_dim: int, page: int, steps: tuple[tuple[int, int], ...], first: int
) -> None:
    """Also where the first keys are hidden, which may be no numbers."""
    assert fits(dim, value_dim, page)
    shape = shape_of(dim, value_dim)
    ours, theirs = random_pool(shape, page), random_pool(shape, page)
    batch = batch_of(steps, page, first)
    for pool in (ours, theirs):
        for request, (_, start) in enumerate(steps):
            hidden = range(min(first, start))
            slots = [PAGES[request][at // page] * page + at % page for at in hidden]
            for storage in (*pool.keys, *pool.values):
                storage[slots] = float("nan")
    attend = CpuAttention(ours, shape).plan(batch)
    expect = TorchAttention(theirs, shape).plan(batch)
    for layer, kind in enumerate(shape.kinds):
        rows = random_rows(kind, len(batch.ids), torch.float32)
        got, wanted = attend(layer, *rows), expect(layer, *rows)
        assert got.isfinite().all()
        torch.testing.assert_close(got, wanted, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("dim", "value_dim", "page"), SIZES)
def test_a_row_gives_the_same_beside_any_others(dim: int, value_dim: int, page: int) -> None:
    """Verified with drafts, alone step by step, or beside another request."""
    shape = shape_of(dim, value_dim)
    kind, start, rows = shape.kinds[0], 19, 9
    q, k, v = random_rows(kind, rows, torch.float32)
    together = CpuAttention(random_pool(shape, page), shape)
    whole = together.plan(batch_of(((rows, start),), page))(0, q, k, v)
    alone = CpuAttention(random_pool(shape, page), shape)
    for row in range(rows):
        batch = batch_of(((1, start + row), (1, 30)), page)
        mine = [torch.cat([part[row : row + 1], part[:1]]) for part in (q, k, v)]
        got = alone.plan(batch)(0, *mine)
        assert torch.equal(got[0], whole[row])


def test_sizes_that_fill_no_vectors_are_left_to_the_other_code() -> None:
    assert not fits(12, 16, 16)
    assert not fits(16, 8, 16)
    assert not fits(16, 16, 4)
