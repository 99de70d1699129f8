"""The compiled layers of the CPU compute what torch does, row by row, at any number of rows."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import llvmlite.binding as llvm
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import engine.layers_cpu
import engine.linear
from engine.decoder import Decoder
from engine.device import Device
from engine.fusing import fuse
from engine.kernels_float import K_SUM
from engine.kernels_product import K_BLOCK, MOST_AT_ONCE, packed_bytes
from engine.layers_cpu import MOST_ROWS, CpuLayers, can_list, listed, product_step, serves
from engine.linear import PackedLinear, can_pack
from engine.norm import FusedNorm, MirroredNorm
from engine.program import ADD_NORM, GATE, HEADER, STEP, TURN, compiled, scratch_floats
from engine.team import Team
from tests.engine.test_families import tiny

NAN, INF = float("nan"), float("inf")
DTYPES = {torch.float32: 1e-5, torch.bfloat16: 2**-7}
"""dtype -> relative error of one rounding, or of sums in another order."""
ROWS = (1, 2, 7, 33)
listing = pytest.mark.parametrize(
    "number",
    [
        pytest.param(
            dtype,
            marks=pytest.mark.skipif(
                not can_list(dtype), reason=f"this CPU does not multiply {dtype} as our code does"
            ),
        )
        for dtype in DTYPES
    ],
)


@pytest.fixture(params=(1, 2))
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def run(dtype: torch.dtype, *step: int) -> None:
    """One operation, in every thread of torch's team."""
    team, size = Team(), scratch_floats(64)
    scratch = torch.empty(team.size * size)
    words = (ctypes.c_int64 * (HEADER + STEP))()
    words[: HEADER + len(step)] = (
        ctypes.addressof(words) + 8 * HEADER, 1, scratch.data_ptr(), size, *team.addresses, 0, *step
    )  # fmt: skip
    team.run(compiled(dtype == torch.bfloat16), words)


def bits(number: float) -> int:
    return int(torch.tensor(number).view(torch.int32))


def add_norm(x: Tensor, branch: Tensor | None, scale: float, weight: Tensor) -> tuple[Tensor, ...]:
    total, normed = torch.empty_like(x), torch.empty_like(x)
    run(
        x.dtype, ADD_NORM, len(x), x.data_ptr(), 0 if branch is None else branch.data_ptr(),
        bits(scale), weight.data_ptr(), bits(1e-5), x.shape[1], total.data_ptr(), normed.data_ptr(),
    )  # fmt: skip
    return total, normed


def gated(pair: Tensor) -> Tensor:
    out = pair.new_empty(len(pair), pair.shape[1] // 2)
    run(pair.dtype, GATE, len(pair), pair.data_ptr(), out.shape[1], out.data_ptr())
    return out


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("size", [1, 37, 96])
def test_residual_and_norm(rows: int, size: int, dtype: torch.dtype, threads: int) -> None:
    torch.manual_seed(0)
    x, branch = torch.randn(2, rows, size).to(dtype)
    weight = torch.randn(size).to(dtype)
    for scale in (1.0, 0.3):
        total, normed = add_norm(x, branch, scale, weight)
        summed = x.float() + scale * branch.float()
        torch.testing.assert_close(total.float(), summed, atol=1e-6, rtol=DTYPES[dtype])
        wanted = FusedNorm(weight.float(), 1e-5)(total.float())
        torch.testing.assert_close(normed.float(), wanted, atol=1e-6, rtol=DTYPES[dtype])
    total, normed = add_norm(x, None, 1.0, weight)
    assert torch.equal(total, x)
    wanted = FusedNorm(weight.float(), 1e-5)(x.float())
    torch.testing.assert_close(normed.float(), wanted, atol=1e-6, rtol=DTYPES[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize(("has_norm", "has_rope"), [(True, True), (True, False), (False, True)])
def test_norm_and_rope_of_heads_in_place(
    rows: int, has_norm: bool, has_rope: bool, dtype: torch.dtype, threads: int
) -> None:
    torch.manual_seed(0)
    heads, dim = 3, 10
    x = torch.randn(rows, heads + 2, dim).to(dtype)
    cos, sin, weight = torch.randn(50, dim).to(dtype), torch.randn(50, dim).to(dtype), x[0, 0] + 1
    positions = torch.randint(50, (rows,))
    wanted = x[:, :heads].float()
    if has_norm:
        wanted = FusedNorm(weight.float(), 1e-5)(wanted).to(dtype).float()
    if has_rope:
        c, s = cos[positions].float().unsqueeze(1), sin[positions].float().unsqueeze(1)
        wanted = wanted * c + wanted.roll(dim // 2, -1) * s
    got = x.clone()
    run(
        dtype, TURN, rows, got.data_ptr(), got.stride(0), heads,
        weight.data_ptr() if has_norm else 0, bits(1e-5), positions.data_ptr(),
        cos.data_ptr() if has_rope else 0, sin.data_ptr() if has_rope else 0, dim,
    )  # fmt: skip
    tolerance = 2 * DTYPES[dtype]
    torch.testing.assert_close(got[:, :heads].float(), wanted, atol=tolerance, rtol=tolerance)
    assert torch.equal(got[:, heads:], x[:, heads:])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("size", [1, 37, 96])
def test_gating(rows: int, size: int, dtype: torch.dtype, threads: int) -> None:
    torch.manual_seed(0)
    pair = (20 * torch.randn(rows, 2 * size)).to(dtype)
    gate, up = pair.float().chunk(2, dim=-1)
    wanted = F.silu(gate) * up
    torch.testing.assert_close(gated(pair).float(), wanted, atol=1e-5, rtol=DTYPES[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bad", [NAN, INF, -INF])
def test_what_is_not_finite_shows_in_its_own_row_only(bad: float, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(3, 40).to(dtype), torch.ones(40).to(dtype)
    sane = gated(x)
    normed = add_norm(x, None, 1.0, weight)[1]
    x[1, 5] = bad
    found = gated(x)
    assert not found[1, 5].isfinite()
    assert torch.equal(found[[0, 2]], sane[[0, 2]])
    total, found = add_norm(x, None, 1.0, weight)
    assert not total[1, 5].isfinite()
    assert not found[1].isfinite().all()
    assert torch.equal(found[[0, 2]], normed[[0, 2]])


def products(threads: int, dtype: torch.dtype) -> CpuLayers:
    torch.set_num_threads(threads)
    model = tiny("llama")
    device = Device(torch.device("cpu"), dtype)
    compiled = fuse(model, model.config, device, 128).compiled
    assert isinstance(compiled, CpuLayers)
    return compiled


@listing
@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize(
    ("outputs", "inputs"),
    [(64, 32), (2, 2), (97, 50), (130, K_BLOCK + 66), (200, 3 * K_BLOCK), (61, K_SUM + 130)],
)
def test_products_of_any_number_of_rows(
    outputs: int, inputs: int, with_bias: bool, threads: int, number: torch.dtype
) -> None:
    torch.manual_seed(0)
    layers = products(threads, number)
    weight, bias = torch.randn(outputs, inputs).to(number), torch.randn(outputs).to(number)
    layer = PackedLinear(weight, bias if with_bias else None)
    assert listed(layer)
    x = torch.randn(MOST_ROWS, inputs).to(number)
    wanted = F.linear(x.float(), weight.float(), bias.float() if with_bias else None)
    alone = torch.cat([layers.multiply(layer, row) for row in x.split(1)])
    atol, rtol = (1e-2, 2**-8) if number == torch.bfloat16 else (1e-4, 1e-5)
    torch.testing.assert_close(alone.float(), wanted, atol=atol, rtol=rtol)
    torch.testing.assert_close(alone, layer(x), atol=atol, rtol=rtol)
    for rows in (*range(2, 2 * MOST_AT_ONCE + 2), 33, MOST_ROWS):
        assert torch.equal(layers.multiply(layer, x[:rows]), alone[:rows])


@listing
def test_nothing_is_written_beside_a_product(number: torch.dtype) -> None:
    """The last panel is padded; what lies behind the results is not this operation's."""
    layer = PackedLinear(torch.ones(70, 34).to(number), None)
    held = torch.full((4, 70), 7.0).to(number)
    x, out = torch.ones(3, 34).to(number), held[:3]
    run(number, *product_step(layer, x, out))
    assert (held[:3] == 34.0).all()
    assert (held[3] == 7.0).all()


@listing
def test_a_product_shows_what_is_not_finite_in_its_own_row(number: torch.dtype) -> None:
    layers, layer = products(1, number), PackedLinear(torch.ones(70, 34).to(number), None)
    x = torch.ones(3, 34).to(number)
    x[1, 7] = NAN
    x[2, 7] = INF
    got = layers.multiply(layer, x)
    assert torch.equal(got[0], torch.full((70,), 34.0).to(number))
    assert got[1].isnan().all()
    assert (got[2] == INF).all()


@listing
def test_rows_that_lie_apart_are_understood(number: torch.dtype) -> None:
    layers, layer = products(1, number), PackedLinear(torch.randn(70, 34).to(number), None)
    wide = torch.randn(3, 68).to(number)
    narrow = wide[:, :34]
    assert torch.equal(layers.multiply(layer, narrow), layers.multiply(layer, narrow.contiguous()))


@listing
def test_products_that_the_code_cannot_read_stay_with_torch(
    monkeypatch: pytest.MonkeyPatch, number: torch.dtype
) -> None:
    torch.manual_seed(0)
    layers, half = products(1, number), number == torch.bfloat16
    strange = PackedLinear(torch.randn(*((70, 33) if half else (1, 34))).to(number), None)
    x = torch.randn(3, strange.inputs).to(number)
    assert not listed(strange)
    assert torch.equal(layers.multiply(strange, x), strange(x))
    monkeypatch.setattr(engine.linear, "PANELS", (48, 8))
    monkeypatch.setattr(engine.layers_cpu, "packed_bytes", lambda *sizes: 2 * packed_bytes(*sizes))
    assert not listed(PackedLinear(torch.randn(70, 34).to(number), None))
    assert can_list.__wrapped__(number) is False


@listing
def test_a_layout_of_the_same_size_but_another_order_is_not_used(
    monkeypatch: pytest.MonkeyPatch, number: torch.dtype
) -> None:
    class Transposed(PackedLinear):
        def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
            super().__init__(weight.flip(0), bias)

    monkeypatch.setattr(engine.layers_cpu, "PackedLinear", Transposed)
    assert can_list.__wrapped__(number) is False


def attend(layer: int, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None = None, /) -> Tensor:
    """Mixes what a layer hands over, without any other row."""
    group = q.shape[1] // k.shape[1]
    keys, values = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    return torch.tanh(q.float() + keys.float()).mul(values.float()).to(q.dtype).flatten(1)


def decoder(family: str, dtype: torch.dtype, **more: Any) -> tuple[Decoder, Decoder]:
    """With and without compiled code."""
    with torch.no_grad():
        model = tiny(family, **more)
        found = fuse(model, model.config, Device(torch.device("cpu"), dtype), 128)
    assert isinstance(found.compiled, CpuLayers)
    return found, replace(found, compiled=None)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "granite", "smollm3", "mistral"])
def test_layers_equal_those_of_torch(family: str, dtype: torch.dtype, threads: int) -> None:
    ours, theirs = decoder(family, dtype)
    for rows in (1, 3, 33, MOST_ROWS + 1):
        ids = torch.randint(97, (rows,), generator=torch.Generator().manual_seed(rows))
        positions = torch.arange(rows) + 5
        got = ours.logits(ours.forward(ids, positions, attend))
        wanted = theirs.logits(theirs.forward(ids, positions, attend))
        error = float((got - wanted).norm() / wanted.norm())
        assert error < (1e-5 if dtype == torch.float32 else 0.02)


@listing
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "granite"])
def test_a_row_does_not_depend_on_how_many_there_are(
    family: str, threads: int, number: torch.dtype
) -> None:
    ours, _ = decoder(family, number)
    ids, positions = torch.arange(MOST_ROWS) + 3, torch.arange(MOST_ROWS)
    whole = ours.forward(ids, positions, attend)
    logits = ours.logits(whole)
    for rows in (1, 2, 5, 8, 32):
        hidden = ours.forward(ids[:rows], positions[:rows], attend)
        assert torch.equal(hidden, whole[:rows])
        assert torch.equal(ours.logits(hidden), logits[:rows])


def test_hidden_states_outlive_the_next_step() -> None:
    ours, _ = decoder("llama", torch.bfloat16)
    first = ours.forward(torch.tensor([5]), torch.tensor([0]), attend)
    kept = first.clone()
    ours.forward(torch.tensor([9]), torch.tensor([1]), attend)
    assert torch.equal(first, kept)


def test_without_numba_torch_computes_the_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "engine.layers_cpu", None)
    model = tiny("llama")
    assert (
        fuse(model, model.config, Device(torch.device("cpu"), torch.float32), 128).compiled is None
    )


def test_norms_of_another_kind_are_not_served() -> None:
    ours, _ = decoder("llama", torch.float32)
    assert isinstance(ours.norm, MirroredNorm)
    assert serves(ours)
    assert not serves(replace(ours, norm=FusedNorm(ours.norm.weight, 1e-5)))


def test_an_avx2_machine_lists_float32_products() -> None:
    """Else every test above would be skipped there, and nobody would notice that the code is not
    used: it is checked against `F.linear` before it is."""
    features = llvm.get_host_cpu_features()
    if features.get("avx512f", False) or not features.get("fma", False):
        pytest.skip("oneDNN packs in another order where this CPU is not AVX2")
    if not can_pack(torch.float32):
        pytest.skip("this torch packs no float32 weights")
    assert can_list(torch.float32)
    assert listed(PackedLinear(torch.randn(70, 34), None))
