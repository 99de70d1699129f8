"""FlashInfer's contract, on any machine: the installed package's own Python takes our calls."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from engine.attention import TorchAttention
from engine.attention_choice import open_attention
from engine.attention_flashinfer import FlashInferAttention, open_flashinfer, prove, refusal
from engine.batch import Batch, Chunk, pack
from engine.config import EngineConfig
from engine.device import Device, Event
from engine.draw import Draw
from engine.errors import StartError
from engine.kv import KvPool
from engine.shape import AttentionKind, Shape
from tests.engine.flashinfer_kernels import Kernels, replace_kernels

PAGE = 4
PAGES = 24
PLAIN = AttentionKind(6, 2, 64, 64, 0.3)
KINDS = {
    "plain": PLAIN,
    "no groups": replace(PLAIN, kv_heads=6),
    "window": replace(PLAIN, window=5),
    "window of one": replace(PLAIN, window=1),
    "soft cap": replace(PLAIN, softcap=2.0),
    "window and soft cap": replace(PLAIN, window=5, softcap=2.0),
    "sinks": replace(PLAIN, sinks=True),
    "window and sinks": replace(PLAIN, window=5, sinks=True),
}
CPU = Device(torch.device("cpu"), torch.bfloat16)


@dataclass(frozen=True)
class Marked:
    """A device event that notes when it is waited for."""

    log: list[str]

    def synchronize(self) -> None:
        self.log.append("waited")


@dataclass(frozen=True)
class WatchedDevice(Device):
    """Notes which values became device tensors, and its events."""

    moved: list[list[Any]] = field(default_factory=list)
    log: list[str] = field(default_factory=list)

    def tensor(self, values: list[int] | list[float], dtype: torch.dtype) -> Tensor:
        self.moved.append(list(values))
        return super().tensor(values, dtype)

    def record(self) -> Event:
        self.log.append("recorded")
        return Marked(self.log)


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> Kernels:
    return replace_kernels(monkeypatch)


def shape_of(*kinds: AttentionKind) -> Shape:
    first = kinds[0]
    sizes = (first.heads, first.kv_heads, first.head_dim)
    return Shape(len(kinds), *sizes, first.heads * first.head_dim, 10, 64, tuple(kinds))


def pool_of(shape: Shape) -> KvPool:
    """A pool of NaN: a kernel that reads past a length spoils its result."""

    def storage(dims: Sequence[tuple[int, int]]) -> tuple[Tensor, ...]:
        nan = float("nan")
        return tuple(
            torch.full((PAGES * PAGE, heads, dim), nan, dtype=CPU.dtype) for heads, dim in dims
        )

    return KvPool(
        storage([(kind.kv_heads, kind.head_dim) for kind in shape.kinds]),
        storage([(kind.kv_heads, kind.value_dim) for kind in shape.kinds]),
        PAGES,
        PAGE,
    )


def rows_of(kind: AttentionKind, count: int) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    q = torch.randn(count, kind.heads, kind.head_dim, dtype=CPU.dtype)
    k = torch.randn(count, kind.kv_heads, kind.head_dim, dtype=CPU.dtype)
    v = torch.randn(count, kind.kv_heads, kind.value_dim, dtype=CPU.dtype)
    return q, k, v, torch.randn(kind.heads, dtype=CPU.dtype) if kind.sinks else None


def batch_of(*chunks: Chunk) -> Batch:
    return pack(chunks, CPU, PAGE)


MIXED = (
    [(0, 11, [20, 3, 14, 9]), (1, 7, [8, 7]), (2, 5, [0, 23])],  # three prefills
    [(0, 1, [20, 3, 14, 9]), (1, 4, [8, 7, 1]), (2, 2, [0, 23])],  # decode, verify, prefill
    [(0, 4, [20, 3, 14, 9]), (1, 1, [8, 7, 1]), (2, 1, [0, 23])],  # verify and decodes
)
"""Steps of (request, rows, pages); every request goes on where its last step ended."""


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_every_kind_of_layer_equals_the_torch_attention_in_mixed_batches(
    kernels: Kernels, kind: AttentionKind
) -> None:
    torch.manual_seed(0)
    shape = shape_of(kind)
    pools = pool_of(shape), pool_of(shape)
    ours, reference = FlashInferAttention(pools[0], shape, CPU), TorchAttention(pools[1], shape)
    reached = {0: 0, 1: 0, 2: 0}
    for step in MIXED:
        chunks: list[Chunk] = []
        for request, count, pages in step:
            chunks.append(Chunk(request, [0] * count, reached[request], pages, Draw()))
            reached[request] += count
        batch = batch_of(*chunks)
        rows = rows_of(kind, len(batch.ids))
        got, wanted = ours.plan(batch)(0, *rows), reference.plan(batch)(0, *rows)
        assert got.dtype == wanted.dtype
        torch.testing.assert_close(got, wanted, atol=0.03, rtol=0.03)
    for mine, other in zip(
        pools[0].keys + pools[0].values, pools[1].keys + pools[1].values, strict=True
    ):
        assert torch.equal(mine.nan_to_num(7.0), other.nan_to_num(7.0))


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_every_kind_of_layer_hides_the_keys_before_a_chunks_first(
    kernels: Kernels, kind: AttentionKind
) -> None:
    torch.manual_seed(0)
    shape = shape_of(kind)
    pools = pool_of(shape), pool_of(shape)
    ours, reference = FlashInferAttention(pools[0], shape, CPU), TorchAttention(pools[1], shape)
    firsts = [1, 6, 0]  # NaN lies before them: it was never written
    reached, longer = firsts.copy(), ([20, 3, 14, 9, 21], [8, 7, 1, 22, 5], [0, 23, 19])
    for step in MIXED:
        chunks: list[Chunk] = []
        for request, count, _ in step:
            start, first = reached[request], firsts[request]
            pages = longer[request]
            chunks.append(Chunk(request, [0] * count, start, pages, Draw(), first=first))
            reached[request] += count
        batch = batch_of(*chunks)
        rows = rows_of(kind, len(batch.ids))
        got, wanted = ours.plan(batch)(0, *rows), reference.plan(batch)(0, *rows)
        torch.testing.assert_close(got, wanted, atol=0.03, rtol=0.03)
        (told,) = kernels.planned[-1:]
        assert told["page_size"] == 1
        assert told["lengths"].tolist() == [chunk.kv_length - chunk.first for chunk in chunks]
    for mine, other in zip(
        pools[0].keys + pools[0].values, pools[1].keys + pools[1].values, strict=True
    ):
        assert torch.equal(mine.nan_to_num(7.0), other.nan_to_num(7.0))


def test_pages_of_hidden_keys_are_listed_whole_and_their_slots_computed_on_the_device(
    kernels: Kernels,
) -> None:
    shape = shape_of(PLAIN)
    device = WatchedDevice(CPU.torch_device, CPU.dtype)
    attention = FlashInferAttention(pool_of(shape), shape, device)
    batch = batch_of(
        Chunk(0, [1], 7, [3, 4], Draw(), first=1), Chunk(1, [1], 9, [9, 5, 6], Draw(), first=6)
    )
    attend = attention.plan(batch)
    assert [3, 4, 5, 6] in device.moved  # no list of tokens
    assert max(map(len, device.moved)) == 4
    attend(0, *rows_of(PLAIN, 2))
    assert kernels.planned[0]["page_ends"].tolist() == [0, 7, 11]


def test_lengths_include_the_rows_being_written(kernels: Kernels) -> None:
    shape = shape_of(PLAIN)
    attention = FlashInferAttention(pool_of(shape), shape, CPU)
    batch = batch_of(
        Chunk(0, [1], 7, [3, 4, 5], Draw()),  # decode: 8 keys, two full pages
        Chunk(1, [1, 2, 3], 6, [9, 1, 12], Draw(), drafted=2),  # verify: 9 keys
        Chunk(2, [1, 2, 3, 4, 5], 0, [8, 7], Draw()),  # prefill: 5 keys
    )
    attention.plan(batch)
    (told,) = kernels.planned
    assert told["query_ends"].tolist() == [0, 1, 4, 9]
    assert told["page_ends"].tolist() == [0, 2, 5, 7]
    assert told["lengths"].tolist() == [8, 9, 5]


def test_any_batch_over_any_pages_is_described_soundly(kernels: Kernels) -> None:
    """The replaced kernel checks its arguments; NaN shows a read past a length."""
    shape = shape_of(PLAIN)
    pool = pool_of(shape)
    attention = FlashInferAttention(pool, shape, CPU)

    @settings(max_examples=30, deadline=None)
    @given(data=st.data())
    def check(data: st.DataObject) -> None:
        free = data.draw(st.permutations(range(PAGES)))
        chunks: list[Chunk] = []
        written: list[int] = []
        for request in range(data.draw(st.integers(1, 4))):
            start = data.draw(st.integers(0, 12))
            rows = data.draw(st.integers(1, 6))
            count = -(-(start + rows) // PAGE) + data.draw(st.integers(0, 1))
            pages, free = free[:count], free[count:]
            chunks.append(Chunk(request, [0] * rows, start, pages, Draw()))
            written += [pages[place // PAGE] * PAGE + place % PAGE for place in range(start)]
        for storage in (*pool.keys, *pool.values):
            storage.fill_(float("nan"))[written] = 1.0
        batch = batch_of(*chunks)
        attend = attention.plan(batch)
        assert attend(0, *rows_of(PLAIN, len(batch.ids))).isfinite().all()

    check()


def test_a_kind_is_planned_once_a_step_however_many_layers_have_it(kernels: Kernels) -> None:
    window = KINDS["window"]
    shape = shape_of(window, PLAIN, window, PLAIN, window)
    attention = FlashInferAttention(pool_of(shape), shape, CPU)
    batch = batch_of(Chunk(0, [1, 2], 0, [5], Draw()))
    attend = attention.plan(batch)
    for layer, kind in enumerate(shape.kinds):
        attend(layer, *rows_of(kind, 2))
    assert [told["window_left"] for told in kernels.planned] == [4, -1]
    assert [told["window_left"] for told in kernels.ran] == [4, -1, 4, -1, 4]
    first, second = kernels.planned
    assert first["float_workspace"] is second["float_workspace"]
    assert first["int_workspace"] is not second["int_workspace"]  # each holds a plan


def test_only_page_indices_are_device_tensors_and_plans_wait_for_each_other(
    kernels: Kernels,
) -> None:
    shape = shape_of(PLAIN, KINDS["window"])
    device = WatchedDevice(CPU.torch_device, CPU.dtype)
    attention = FlashInferAttention(pool_of(shape), shape, device)
    batch = batch_of(Chunk(0, [1], 7, [3, 4], Draw()), Chunk(1, [1], 2, [9], Draw()))
    for _ in range(3):
        attention.plan(batch)
    assert device.moved == [[3, 4, 9]] * 3
    assert device.log == ["recorded", "waited", "recorded", "waited", "recorded"]


def test_equal_row_counts_are_a_hint_only_where_the_version_takes_it(
    kernels: Kernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flashinfer import BatchPrefillWithPagedKVCacheWrapper as Wrapper

    told: list[dict[str, Any]] = []
    plan = Wrapper.plan
    signature = inspect.signature(plan)

    def watched(*arguments: Any, **options: Any) -> None:
        told.append(signature.bind(*arguments, **options).arguments)
        plan(*arguments, **options)

    watched.__signature__ = signature
    monkeypatch.setattr(Wrapper, "plan", watched)
    shape = shape_of(PLAIN)
    attention = FlashInferAttention(pool_of(shape), shape, CPU)
    attention.plan(batch_of(Chunk(0, [1, 2], 3, [3, 4], Draw()), Chunk(1, [1, 2], 0, [9], Draw())))
    attention.plan(batch_of(Chunk(0, [1, 2], 3, [3, 4], Draw()), Chunk(1, [1], 2, [9], Draw())))
    known = "uniform_q_len" in signature.parameters
    assert [call.get("uniform_q_len") for call in told] == [2 if known else None, None]
    assert all(call["q_data_type"] == call["kv_data_type"] == torch.bfloat16 for call in told)


def test_our_attention_and_page_write_equal_flashinfers_own_torch_references() -> None:
    templates = "flashinfer.trace.templates"
    reason = "this version of FlashInfer ships no torch references"
    attention = pytest.importorskip(f"{templates}.attention", reason=reason)
    page = pytest.importorskip(f"{templates}.page", reason=reason)
    torch.manual_seed(0)
    shape = shape_of(PLAIN)
    pool = pool_of(shape)
    for storage in (*pool.keys, *pool.values):
        storage.normal_()
    # Full last pages, because their attention ignores last_page_len.
    chunks = (
        Chunk(0, [0] * 3, 9, [20, 3, 14], Draw()),
        Chunk(1, [0], 7, [8, 7], Draw()),
        Chunk(2, [0] * 8, 0, [0, 23], Draw()),
    )
    batch = batch_of(*chunks)
    q, k, v, _ = rows_of(PLAIN, len(batch.ids))
    view = (PAGES, PAGE, PLAIN.kv_heads, PLAIN.head_dim)
    keys, values = pool.keys[0].clone().view(view), pool.values[0].clone().view(view)
    page_ends = torch.tensor([0, 3, 5, 7], dtype=torch.int32)
    indices = torch.tensor([20, 3, 14, 8, 7, 0, 23], dtype=torch.int32)
    owners = torch.tensor([0] * 3 + [1] + [2] * 8, dtype=torch.int32)
    page._append_paged_kv_cache_reference(
        k, v, owners, batch.positions, (keys, values), indices, page_ends, torch.tensor([4] * 3)
    )
    got = TorchAttention(pool, shape).plan(batch)(0, q, k, v)
    assert torch.equal(pool.keys[0].view(view), keys)
    assert torch.equal(pool.values[0].view(view), values)
    query_ends = torch.tensor([0, 3, 4, 12], dtype=torch.int32)
    wanted, _ = attention._gqa_paged_prefill_reference(
        q, keys, values, query_ends, page_ends, indices, PLAIN.scale
    )
    torch.testing.assert_close(got, wanted.flatten(1), atol=0.02, rtol=0.02)


@pytest.mark.parametrize(
    ("kinds", "dtype", "reason"),
    [
        ([PLAIN], torch.float32, "not in float32"),
        ([PLAIN, replace(PLAIN, head_dim=80, value_dim=80)], torch.bfloat16, "layer 1.* 80"),
        ([replace(PLAIN, head_dim=128)], torch.bfloat16, "value heads of 64 and key heads of 128"),
        ([replace(PLAIN, sinks=True, softcap=2.0)], torch.bfloat16, "both sinks and a soft cap"),
        (
            [KINDS["sinks"], replace(PLAIN, head_dim=128, value_dim=128, sinks=True)],
            torch.bfloat16,
            "heads of different sizes",
        ),
    ],
)
def test_what_flashinfer_cannot_serve_is_refused_with_the_reason(
    kinds: list[AttentionKind], dtype: torch.dtype, reason: str
) -> None:
    shape = shape_of(*kinds)
    device = Device(torch.device("cuda"), dtype)
    with pytest.raises(StartError, match=reason) as caught:
        open_flashinfer(pool_of(shape), shape, device)
    assert caught.value.code == "flashinfer_unsupported"
    assert "--attention auto or torch" in caught.value.message


def test_every_kind_of_layer_here_is_served() -> None:
    assert all(refusal([kind], torch.bfloat16) is None for kind in KINDS.values())


def test_auto_says_why_it_takes_torch_and_flashinfer_insists(
    caplog: pytest.LogCaptureFixture,
) -> None:
    shape = shape_of(PLAIN)
    device = Device(torch.device("cuda"), torch.float32)
    with caplog.at_level(logging.WARNING):
        chosen = open_attention(EngineConfig(attention="auto"), device, pool_of(shape), shape)
    assert chosen.name == "torch"
    assert "not in float32" in caplog.text
    with pytest.raises(StartError, match="not in float32"):
        open_attention(EngineConfig(attention="flashinfer"), device, pool_of(shape), shape)


def test_a_machine_without_cuda_does_without_silently_and_refuses_flashinfer(
    caplog: pytest.LogCaptureFixture,
) -> None:
    shape = shape_of(KINDS["soft cap"])
    with caplog.at_level(logging.WARNING):
        chosen = open_attention(EngineConfig(attention="auto"), CPU, pool_of(shape), shape)
    assert chosen.name != "flashinfer"
    assert "flashinfer" not in caplog.text.lower()
    with pytest.raises(StartError, match="needs a CUDA GPU"):
        open_attention(EngineConfig(attention="flashinfer"), CPU, pool_of(shape), shape)


def test_the_check_at_start_passes_sound_kernels_of_every_kind(kernels: Kernels) -> None:
    prove(shape_of(*KINDS.values()), 16, CPU)
    assert len(kernels.planned) == len(kernels.ran) == len(KINDS)


def test_the_check_at_start_finds_kernels_that_compute_something_else(kernels: Kernels) -> None:
    kernels.ignore_window = True
    with pytest.raises(StartError, match=r"window=5.* is off by") as caught:
        prove(shape_of(PLAIN, KINDS["window"]), 16, CPU)
    assert caught.value.code == "flashinfer_wrong"


def test_the_check_at_start_reports_kernels_that_cannot_run(
    kernels: Kernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_compiler(*arguments: Any) -> None:
        raise RuntimeError("Could not find nvcc")

    monkeypatch.setattr("flashinfer.prefill.get_batch_prefill_module", no_compiler)
    with pytest.raises(StartError, match=r"RuntimeError: Could not find nvcc.*torch until then"):
        prove(shape_of(PLAIN), 16, CPU)
