"""The compiled bfloat16 attention against sums in float64, whatever shares its step."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from engine.attention import TorchAttention
from engine.attention_cpu import MOST_ROWS, CpuAttention
from engine.batch import Chunk, pack
from engine.device import Device
from engine.draw import Draw
from engine.kernels_product import multiplies
from engine.kv import KvPool, empty_pool
from engine.shape import AttentionKind, Shape

DEVICE = Device(torch.device("cpu"), torch.bfloat16)
TOKENS = 224
KINDS = tuple(
    AttentionKind(2 * group, 2, dim, value_dim, dim**-0.5, window)
    for group, dim, value_dim, window in (
        (1, 64, 64, None),
        (2, 7, 5, None),
        (3, 64, 64, None),
        (4, 33, 80, None),
        (5, 24, 40, 1),
        (6, 24, 40, 37),
        (7, 128, 65, None),
        (8, 16, 16, 100),
    )
)
"""Groups of 1 to 8 query heads."""
PAGES = [(kind, 16) for kind in KINDS] + [(KINDS[5], 4), (KINDS[1], 24)]
needs_products = pytest.mark.skipif(not multiplies(), reason="this machine has no VDPBF16PS")


@dataclass(frozen=True)
class Text:
    """q, k and v of TOKENS positions, and where in the pool they go."""

    q: Tensor
    k: Tensor
    v: Tensor
    pages: list[int]


def texts(kind: AttentionKind, count: int, page: int) -> list[Text]:
    torch.manual_seed(1)
    each = -(-TOKENS // page)
    order = torch.randperm(count * each).tolist()

    def rows(heads: int, dim: int) -> Tensor:
        return torch.randn(TOKENS, heads, dim).bfloat16()

    return [
        Text(
            2 * rows(kind.heads, kind.head_dim),
            rows(kind.kv_heads, kind.head_dim),
            rows(kind.kv_heads, kind.value_dim) + 0.5,
            order[index * each : (index + 1) * each],
        )
        for index in range(count)
    ]


def pool_of(kind: AttentionKind, stored: list[tuple[Text, int]], page: int) -> KvPool:
    """A pool that holds the first tokens of each text, and NaN wherever nothing was written."""
    pages = 1 + max(page for text, _ in stored for page in text.pages)
    pool = empty_pool(shape_of(kind), DEVICE, pages, page)
    pool.keys[0].fill_(float("nan"))
    pool.values[0].fill_(float("nan"))
    for text, tokens in stored:
        slots = [text.pages[t // page] * page + t % page for t in range(tokens)]
        pool.keys[0][slots] = text.k[:tokens]
        pool.values[0][slots] = text.v[:tokens]
    return pool


def shape_of(kind: AttentionKind) -> Shape:
    return Shape(1, kind.heads, kind.kv_heads, kind.head_dim, 8, 10, TOKENS, (kind,))


def attended(
    kind: AttentionKind, steps: list[tuple[Text, int, int]], page: int, *, by_torch: bool = False
) -> Tensor:
    """The output of one step of (text, position of the first row, rows)."""
    pool = pool_of(kind, [(text, start) for text, start, _ in steps], page)
    chunks = [
        Chunk(index, [0] * rows, start, text.pages, Draw())
        for index, (text, start, rows) in enumerate(steps)
    ]
    attention = (TorchAttention if by_torch else CpuAttention)(pool, shape_of(kind))
    q, k, v = (
        torch.cat([each[start : start + rows] for each, start, rows in part])
        for part in (
            [(text.q, start, rows) for text, start, rows in steps],
            [(text.k, start, rows) for text, start, rows in steps],
            [(text.v, start, rows) for text, start, rows in steps],
        )
    )
    return attention.plan(pack(chunks, DEVICE, page))(0, q, k, v)


def exact(kind: AttentionKind, text: Text, start: int, rows: int) -> Tensor:
    """float64 [rows, Hq * Dv]."""
    group = kind.heads // kind.kv_heads
    found: list[Tensor] = []
    for position in range(start, start + rows):
        oldest = 0 if kind.window is None else max(0, position - kind.window + 1)
        keys = text.k[oldest : position + 1].double().repeat_interleave(group, 1)
        values = text.v[oldest : position + 1].double().repeat_interleave(group, 1)
        scores = torch.einsum("hd,khd->hk", text.q[position].double(), keys) * kind.scale
        found.append(torch.einsum("hk,khd->hd", scores.softmax(-1), values).flatten())
    return torch.stack(found)


@pytest.mark.parametrize(("kind", "page"), PAGES)
def test_it_is_as_exact_as_bfloat16_and_reads_nothing_that_was_not_written(
    kind: AttentionKind, page: int
) -> None:
    some = texts(kind, 4, page)
    steps = [(some[0], 0, 1), (some[1], 63, 2), (some[2], 130, 1), (some[3], 60, MOST_ROWS)]
    got = attended(kind, steps, page)
    wanted = torch.cat([exact(kind, *step) for step in steps])
    torch.testing.assert_close(got.double(), wanted, atol=0.012, rtol=0.01)


def test_its_error_is_not_above_that_of_torch() -> None:
    kind = KINDS[2]
    steps = [
        (text, start, 4) for start, text in zip((20, 100, 200), texts(kind, 3, 16), strict=True)
    ]
    wanted = torch.cat([exact(kind, *step) for step in steps])
    ours = (attended(kind, steps, 16).double() - wanted).square().mean()
    torchs = (attended(kind, steps, 16, by_torch=True).double() - wanted).square().mean()
    assert ours <= 1.02 * torchs


@needs_products
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", [2, 3, 17])
def test_a_row_is_the_same_bit_for_bit_alone_and_beside_drafts_and_other_requests(
    kind: AttentionKind, rows: int
) -> None:
    page = 16
    some = texts(kind, 3, page)
    for start in (0, 55, 130):
        steps = [(some[0], 7, 1), (some[1], start, rows), (some[2], 90, MOST_ROWS)]
        together = attended(kind, steps, page)[1 : 1 + rows]
        alone = [attended(kind, [(some[1], start + row, 1)], page) for row in range(rows)]
        assert torch.equal(together, torch.cat(alone))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_what_is_not_finite_in_a_key_a_query_or_a_value_shows_where_it_is_seen(bad: float) -> None:
    kind = KINDS[5]
    for part in ("q", "k", "v"):
        some = texts(kind, 2, 16)
        getattr(some[0], part)[100, 0, 3] = bad
        got = attended(kind, [(some[0], 100, 3), (some[1], 100, 3)], 16).view(6, 12, 40)
        seen = got[:1, :1] if part == "q" else got[:3, :6]
        assert not (seen[..., 3] if part == "v" else seen).isfinite().any()
        assert got[:3, 6:].isfinite().all()  # the other KV head
        assert got[3:].isfinite().all()  # the other request
        after = attended(kind, [(some[0], 150, 1)], 16)
        assert after.isfinite().all()  # behind the window
