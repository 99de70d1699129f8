"""FlashInfer's real kernels against the torch attention, where torch has a CUDA device."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from engine.attention import TorchAttention
from engine.attention_flashinfer import FlashInferAttention, prove
from engine.batch import Chunk, pack
from engine.device import Device
from engine.draft_models import repeated
from engine.draft_models.lane import Lane
from engine.draft_models.passes import Passes
from engine.drafts import Draft
from engine.draw import Draw
from engine.kv import KvPool
from engine.shape import AttentionKind, Shape
from tests.engine.conformance import (
    ATTENTIONS,
    VOCABULARY,
    Scenario,
    at_random,
    decode,
    differences,
    drafters,
    tiny,
)
from tests.engine.model_drafters import draft_model, mtp, tiny_head
from tests.engine.test_device_loop import always

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available(), reason="torch finds no CUDA device to run the kernels on"
    ),
]

PAGE = 16
PAGES = 256
PLAIN = AttentionKind(8, 2, 128, 128, 128**-0.5)
KINDS = {
    "plain": PLAIN,
    "head size 64, groups of 3": AttentionKind(9, 3, 64, 64, 0.125),
    "head size 256, groups of 7": AttentionKind(7, 1, 256, 256, 0.0625),
    "window": replace(PLAIN, window=37),
    "soft cap": replace(PLAIN, softcap=3.0),
    "window and soft cap": replace(PLAIN, window=128, softcap=3.0),
    "sinks": replace(PLAIN, sinks=True),
    "window and sinks": replace(PLAIN, window=37, sinks=True),
}


def pool_of(kind: AttentionKind, device: Device) -> KvPool:
    size = (PAGES * PAGE, kind.kv_heads, kind.head_dim)
    storage = [torch.full(size, float("nan"), dtype=device.dtype, device="cuda") for _ in range(2)]
    return KvPool((storage[0],), (storage[1],), PAGES, PAGE)


def random(generator: torch.Generator, dtype: torch.dtype, *size: int) -> Tensor:
    return torch.randn(size, generator=generator, device="cuda").to(dtype)


STEPS = [
    [300, 33, 1, 64],  # prefills
    [1, 1, 1, 1],  # decode
    [5, 1, 9, 17],  # verify, each with its own D
    [1, 200, 4, 1],  # decode, a prefill's second chunk and verify in one batch
    [1, 1, 1, 1],
]
"""Rows of each of four requests, step after step."""

TIE = 0.25
"""Between logits in bfloat16, whose rounding depends on how many rows a kernel computes."""


@pytest.fixture
def no_waiting() -> Generator[None]:
    """Any hidden wait for the device raises."""
    yield
    torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_the_kernels_equal_the_torch_attention(kind: AttentionKind, dtype: torch.dtype) -> None:
    device = Device(torch.device("cuda"), dtype)
    shape = Shape(1, kind.heads, kind.kv_heads, kind.head_dim, 1024, 10, 4096, (kind,))
    pools = pool_of(kind, device), pool_of(kind, device)
    ours = FlashInferAttention(pools[0], shape, device)
    reference = TorchAttention(pools[1], shape)
    generator = torch.Generator("cuda").manual_seed(0)
    scattered = torch.randperm(PAGES, generator=torch.Generator().manual_seed(0)).tolist()
    pages = [scattered[request::4] for request in range(4)]
    reached = [0] * 4
    for counts in STEPS:
        chunks = [
            Chunk(request, [0] * rows, reached[request], pages[request], Draw())
            for request, rows in enumerate(counts)
        ]
        reached = [start + rows for start, rows in zip(reached, counts, strict=True)]
        batch = pack(chunks, device, PAGE)
        total = sum(counts)
        q = random(generator, dtype, total, kind.heads, kind.head_dim)
        k = random(generator, dtype, total, kind.kv_heads, kind.head_dim)
        v = random(generator, dtype, total, kind.kv_heads, kind.head_dim)
        sinks = random(generator, dtype, kind.heads) if kind.sinks else None
        got = ours.plan(batch)(0, q, k, v, sinks)
        wanted = reference.plan(batch)(0, q, k, v, sinks)
        torch.testing.assert_close(got, wanted, atol=0.03, rtol=0.03)
    assert torch.equal(pools[0].keys[0].nan_to_num(7.0), pools[1].keys[0].nan_to_num(7.0))


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_the_kernels_hide_the_keys_before_a_chunks_first(kind: AttentionKind) -> None:
    device = Device(torch.device("cuda"), torch.bfloat16)
    shape = Shape(1, kind.heads, kind.kv_heads, kind.head_dim, 1024, 10, 4096, (kind,))
    pools = pool_of(kind, device), pool_of(kind, device)
    ours = FlashInferAttention(pools[0], shape, device)
    reference = TorchAttention(pools[1], shape)
    generator = torch.Generator("cuda").manual_seed(0)
    scattered = torch.randperm(PAGES, generator=torch.Generator().manual_seed(0)).tolist()
    pages = [scattered[request::4] for request in range(4)]
    firsts = [1, 40, 0, 17]
    reached = firsts.copy()
    for counts in STEPS:
        chunks = [
            Chunk(request, [0] * rows, reached[request], pages[request], Draw(), first=first)
            for request, (rows, first) in enumerate(zip(counts, firsts, strict=True))
        ]
        reached = [start + rows for start, rows in zip(reached, counts, strict=True)]
        batch = pack(chunks, device, PAGE)
        q, k, v = (
            random(generator, device.dtype, sum(counts), heads, kind.head_dim)
            for heads in (kind.heads, kind.kv_heads, kind.kv_heads)
        )
        sinks = random(generator, device.dtype, kind.heads) if kind.sinks else None
        got = ours.plan(batch)(0, q, k, v, sinks)
        wanted = reference.plan(batch)(0, q, k, v, sinks)
        torch.testing.assert_close(got, wanted, atol=0.03, rtol=0.03)


def test_one_step_of_two_kinds_enqueues_without_waiting(no_waiting: None) -> None:
    device = Device(torch.device("cuda"), torch.bfloat16)
    kinds = (PLAIN, KINDS["window"])
    shape = Shape(2, 8, 2, 128, 1024, 10, 4096, kinds)
    pools = [pool_of(kind, device) for kind in kinds]
    pool = KvPool(
        tuple(one.keys[0] for one in pools), tuple(one.values[0] for one in pools), PAGES, PAGE
    )
    attention = FlashInferAttention(pool, shape, device)
    generator = torch.Generator("cuda").manual_seed(0)
    rows = [random(generator, torch.bfloat16, 6, heads, 128) for heads in (8, 2, 2)]
    outputs: list[Tensor] = []
    for step in range(3):
        chunks = [
            Chunk(0, [0] * 5, 5 * step, [7, 3], Draw()),
            Chunk(1, [0], step, [9], Draw()),
        ]
        if step == 1:  # the first step compiles and loads the kernels
            torch.cuda.set_sync_debug_mode("error")
        attend = attention.plan(pack(chunks, device, PAGE))
        outputs += [attend(layer, rows[0], rows[1], rows[2]) for layer in range(2)]
    torch.cuda.set_sync_debug_mode("default")
    assert all(output.isfinite().all() for output in outputs)


def test_a_plan_made_while_the_last_one_is_still_copied_does_not_spoil_it() -> None:
    """Steps are enqueued without waiting; each must compute with its own plan."""
    device = Device(torch.device("cuda"), torch.bfloat16)
    shape = Shape(1, 8, 2, 128, 1024, 10, 4096, (PLAIN,))
    pool = pool_of(PLAIN, device)
    for storage in (*pool.keys, *pool.values):
        storage.normal_(generator=torch.Generator("cuda").manual_seed(0))
    ours, reference = FlashInferAttention(pool, shape, device), TorchAttention(pool, shape)
    generator = torch.Generator("cuda").manual_seed(1)
    busy = random(generator, torch.bfloat16, 4096, 4096)
    results: list[tuple[Tensor, Tensor]] = []
    for length in range(40, 72):
        batch = pack([Chunk(0, [0], length, [9, 4, 31, 2, 77], Draw())], device, PAGE)
        q, k, v = (random(generator, torch.bfloat16, 1, heads, 128) for heads in (8, 2, 2))
        for _ in range(4):
            busy = (busy @ busy).clamp(-1, 1)  # keeps the device behind the host
        got = ours.plan(batch)(0, q, k, v)
        results.append((got, reference.plan(batch)(0, q, k, v)))
    for got, wanted in results:
        torch.testing.assert_close(got, wanted, atol=0.03, rtol=0.03)


def test_the_check_at_start_passes() -> None:
    shape = Shape(len(KINDS), 8, 2, 128, 1024, 10, 4096, tuple(KINDS.values()))
    prove(shape, PAGE, Device(torch.device("cuda"), torch.bfloat16))


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_any_sequence_of_drafters_and_lengths_gives_the_plain_text(family: str) -> None:
    device = Device(torch.device("cuda"), torch.bfloat16)
    with torch.no_grad():
        subject = tiny(family, device, head_dim=64)
        plain = decode(subject, ATTENTIONS["flashinfer"], Scenario()).texts
        hands = drafters(VOCABULARY, plain, device)
        scenario = Scenario(pages=26, chunk_rows=9, waves=2, cancelled=(2, 7))
        run = decode(subject, ATTENTIONS["flashinfer"], scenario, hands, at_random(2))
        assert differences(subject, plain, run.texts, TIE) == []
    assert run.preemptions > 0
    assert 0 < run.accepted < run.drafted


@pytest.mark.parametrize("draw", [Draw(), Draw(temperature=0.9, top_p=0.9)], ids=str)
def test_model_drafters_give_the_plain_text_too(draw: Draw) -> None:
    """In their passes nothing waits but Drawn.result."""
    device = Device(torch.device("cuda"), torch.bfloat16)
    with torch.no_grad():
        subject = tiny("llama", device, head_dim=64)
        plain = decode(subject, ATTENTIONS["flashinfer"], Scenario()).texts
        models = [
            draft_model(subject.model, attention=lambda p, s: FlashInferAttention(p, s, device)),
            mtp(tiny_head(subject.model, device=device)),
        ]
        scenario = Scenario(pages=26, chunk_rows=9, waves=2, cancelled=(2, 7))
        run = decode(
            subject, ATTENTIONS["flashinfer"], scenario, (), at_random(2), draw, models=models
        )
        if draw.greedy:
            assert differences(subject, plain, run.texts, TIE) == []
    assert run.preemptions > 0
    assert 0 < run.accepted < run.drafted


def test_the_passes_of_a_drafter_enqueue_without_waiting(
    no_waiting: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = Device(torch.device("cuda"), torch.bfloat16)
    draft = Passes.draft

    def strict(passes: Passes, lanes: Sequence[Lane], hidden: Tensor) -> list[Draft]:
        torch.cuda.set_sync_debug_mode("error")
        try:
            return draft(passes, lanes, hidden)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    with torch.no_grad():
        subject = tiny("llama", device, head_dim=64)
        models = [draft_model(subject.model), mtp(tiny_head(subject.model, device=device))]
        decode(subject, ATTENTIONS["flashinfer"], Scenario(), (), at_random(2), models=models)
        monkeypatch.setattr(Passes, "draft", strict)  # everything is compiled and loaded now
        for draw in (Draw(), Draw(temperature=0.9), Draw(temperature=0.9, seed=1)):
            run = decode(
                subject, ATTENTIONS["flashinfer"], Scenario(), (), at_random(2), draw, models
            )
            assert run.drafted > 0


def test_graphs_of_passes_draft_what_the_passes_one_by_one_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Padding and other kernels may round otherwise, so that a few drafts may differ."""
    device = Device(torch.device("cuda"), torch.bfloat16)
    with torch.no_grad():
        subject = tiny("llama", device, head_dim=64)
        plain = decode(subject, ATTENTIONS["flashinfer"], Scenario()).texts
        graph, made = Device.graph, []

        def counted(self: Device, body: Callable[[], None]) -> Callable[[], None]:
            made.append(body)
            return graph(self, body)

        monkeypatch.setattr(Device, "graph", counted)
        accepted: list[int] = []
        for uses in (1 << 30, 1):
            monkeypatch.setattr(repeated, "USES", uses)
            models = [
                draft_model(subject.model, attention=lambda p, s: FlashInferAttention(p, s, device))
            ]
            scenario = Scenario(pages=26, chunk_rows=9, waves=3)
            run = decode(
                subject,
                ATTENTIONS["flashinfer"],
                scenario,
                (),
                always("draft_model", 4),
                models=models,
            )
            assert differences(subject, plain, run.texts, TIE) == []
            accepted.append(run.accepted)
        assert made
        assert abs(accepted[1] - accepted[0]) < 0.1 * accepted[0]
