"""The torch attention against a naive one: every kind of layer, ragged batches, any pages."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

import engine.attention
from engine.attention import TorchAttention
from engine.batch import Chunk, pack
from engine.device import Device
from engine.draw import Draw
from engine.kv import KvPool, empty_pool
from engine.shape import AttentionKind, Shape

CPU = Device(torch.device("cpu"), torch.float32)
PAGE = 4
PLAIN = AttentionKind(6, 2, 8, 8, 0.3)
KINDS = [
    AttentionKind(6, 2, 8, value_dim, 0.3, window, softcap, sinks)
    for value_dim, window, softcap, sinks in itertools.product(
        (8, 5), (None, 1, 3, 7), (None, 2.0), (False, True)
    )
]
STEPS = ((6, 4), (1, 1), (3, 5), (1, 2))
"""Rows that each of two requests gets in each step: prefill, decode, verify, mixed."""
PAGES = ([5, 6, 7], [9, 1, 12])
"""Consecutive pages for one request, scattered ones for the other."""


def shape_of(*kinds: AttentionKind) -> Shape:
    return Shape(len(kinds), 6, 2, 8, 48, 10, 64, kinds)


def unset_pool(shape: Shape) -> KvPool:
    """A pool of NaN: whatever is read before it was written shows."""
    pool = empty_pool(shape, CPU, 16, PAGE)
    for storage in (*pool.keys, *pool.values):
        storage.fill_(float("nan"))
    return pool


def draw_rows(kind: AttentionKind, count: int) -> tuple[Tensor, Tensor, Tensor]:
    return (
        torch.randn(count, kind.heads, kind.head_dim),
        torch.randn(count, kind.kv_heads, kind.head_dim),
        torch.randn(count, kind.kv_heads, kind.value_dim),
    )


def naive(q: Tensor, k: Tensor, v: Tensor, kind: AttentionKind, sinks: Tensor | None) -> Tensor:
    """The last len(q) positions, one row at a time, every query head with its own keys."""
    group = kind.heads // kind.kv_heads
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    out = torch.zeros(len(q), kind.heads, kind.value_dim)
    for row in range(len(q)):
        end = len(k) - len(q) + row + 1
        begin = 0 if kind.window is None else max(0, end - kind.window)
        scores = torch.einsum("hd,khd->hk", q[row], k[begin:end]) * kind.scale
        if kind.softcap is not None:
            scores = kind.softcap * torch.tanh(scores / kind.softcap)
        weights = scores.exp()
        total = weights.sum(-1, keepdim=True) + (0 if sinks is None else sinks.exp().unsqueeze(1))
        out[row] = torch.einsum("hk,khd->hd", weights / total, v[begin:end])
    return out.flatten(1)


def assert_naive(kinds: list[AttentionKind]) -> None:
    """Run STEPS through every layer of a model with these kinds."""
    torch.manual_seed(0)
    shape = shape_of(*kinds)
    attention = TorchAttention(unset_pool(shape), shape)
    sinks = [torch.randn(kind.heads) if kind.sinks else None for kind in kinds]
    history = [[[] for _ in PAGES] for _ in kinds]
    starts = [0, 0]
    for lengths in STEPS:
        chunks = [
            Chunk(request, [0] * length, starts[request], PAGES[request], Draw())
            for request, length in enumerate(lengths)
        ]
        attend = attention.plan(pack(chunks, CPU, PAGE))
        for layer, kind in enumerate(kinds):
            parts = [draw_rows(kind, length) for length in lengths]
            for request, part in enumerate(parts):
                history[layer][request].append(part)
            q, k, v = (torch.cat([part[i] for part in parts]) for i in range(3))
            out = attend(layer, q, k, v, sinks[layer])
            assert out.shape == (sum(lengths), kind.heads * kind.value_dim)
            for request, got in enumerate(out.split(lengths)):
                past = zip(*history[layer][request], strict=True)
                _, keys, values = (torch.cat(part) for part in past)
                wanted = naive(parts[request][0], keys, values, kind, sinks[layer])
                torch.testing.assert_close(got, wanted, atol=1e-5, rtol=1e-5)
        starts = [start + length for start, length in zip(starts, lengths, strict=True)]


def test_layers_of_every_kind_attend_causally_from_the_end_over_any_pages() -> None:
    assert_naive(KINDS)


def test_a_long_prefill_is_cut_into_blocks_of_rows_with_the_same_result(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engine.attention, "MAX_SCORES", 6 * 11 * 2)  # two rows of 11 keys
    assert_naive(KINDS)


def test_keys_outside_the_window_are_not_read() -> None:
    kind = AttentionKind(6, 2, 8, 8, 0.3, window=5)
    shape = shape_of(kind)
    pool = unset_pool(shape)  # as if pages that the window has left behind were overwritten
    recent = [page * PAGE + offset for page in (3, 9) for offset in range(PAGE)]
    pool.keys[0][recent] = 0.5
    pool.values[0][recent] = 0.5
    attention = TorchAttention(pool, shape)
    pages = [7, 1, 2, 3, 9]
    chunk = Chunk(0, [0, 0, 0], 17, pages, Draw())  # keys 13.. of 20: pages 3 and 9
    attend = attention.plan(pack([chunk], CPU, PAGE))
    assert attend(0, *draw_rows(kind, 3)).isfinite().all()
    single = Chunk(0, [0], 19, pages, Draw())
    assert attention.plan(pack([single], CPU, PAGE))(0, *draw_rows(kind, 1)).isfinite().all()


@pytest.mark.parametrize("first", [1, 4, 6, 9])
def test_keys_before_a_chunks_first_are_neither_seen_nor_read(first: int) -> None:
    torch.manual_seed(0)
    shape, start, rows = shape_of(*KINDS), 9, 2
    pool = unset_pool(shape)
    for pages in PAGES:
        past = [draw_rows(kind, start - first) for kind in KINDS]
        slots = [pages[place // PAGE] * PAGE + place % PAGE for place in range(first, start)]
        for layer, (_, k, v) in enumerate(past):
            pool.keys[layer][slots], pool.values[layer][slots] = k, v
        chunk = Chunk(0, [0] * rows, start, pages, Draw(), first=first)
        attend = TorchAttention(pool, shape).plan(pack([chunk], CPU, PAGE))
        for layer, kind in enumerate(KINDS):
            q, k, v = draw_rows(kind, rows)
            sinks = torch.randn(kind.heads) if kind.sinks else None
            got = attend(layer, q, k, v, sinks)
            keys, values = torch.cat((past[layer][1], k)), torch.cat((past[layer][2], v))
            torch.testing.assert_close(got, naive(q, keys, values, kind, sinks))


def test_layers_whose_window_hides_nothing_share_the_plan_of_full_layers() -> None:
    wide = AttentionKind(6, 2, 8, 8, 0.3, window=64)
    shape = shape_of(PLAIN, wide)
    attention = TorchAttention(unset_pool(shape), shape)
    q, k, v = draw_rows(PLAIN, 9)
    attend = attention.plan(pack([Chunk(0, [0] * 9, 0, [5, 6, 7], Draw())], CPU, PAGE))
    assert torch.equal(attend(0, q, k, v), attend(1, q, k, v))


def test_a_shape_without_kinds_is_plain_attention() -> None:
    shape = Shape(3, 6, 2, 16, 48, 10, 64)
    assert shape.kinds == (AttentionKind(6, 2, 16, 16, 0.25),) * 3
