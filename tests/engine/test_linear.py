"""Prepacked linear layers, the one-kernel norm and the blocked argmax equal torch's own."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import engine.linear
from engine.greedy import greedy
from engine.linear import PackedLinear, PlainLinear, can_pack, linear
from engine.norm import FusedNorm, MirroredNorm, rms_norm

packing = pytest.mark.skipif(not can_pack(), reason="this torch or CPU has no packed linear")


@packing
@pytest.mark.parametrize("rows", [1, 2, 7, 16, 33, 300])
@pytest.mark.parametrize("with_bias", [True, False])
def test_a_packed_layer_computes_what_the_plain_one_does(rows: int, with_bias: bool) -> None:
    torch.manual_seed(0)
    weight = torch.randn(96, 160).bfloat16()
    bias = torch.randn(96).bfloat16() if with_bias else None
    x = torch.randn(rows, 160).bfloat16()
    packed, plain = linear(weight, bias), PlainLinear(weight, bias)
    assert isinstance(packed, PackedLinear)
    torch.testing.assert_close(packed(x), plain(x), atol=0.1, rtol=0.01)


@packing
def test_a_packed_layer_reads_rows_that_lie_apart() -> None:
    weight, wide = torch.randn(32, 48).bfloat16(), torch.randn(5, 96).bfloat16()
    got = PackedLinear(weight, None)(wide.narrow(1, 0, 48))
    assert torch.equal(got, PackedLinear(weight, None)(wide[:, :48].contiguous()))


def test_float32_weights_stay_plain() -> None:
    assert isinstance(linear(torch.randn(8, 8)), PlainLinear)


class _NoOperators:
    def __init__(self) -> None:
        raise AttributeError("no such operator")


def test_without_the_private_operators_layers_are_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine.linear, "_operators", _NoOperators)
    monkeypatch.setattr(engine.linear, "can_pack", can_pack.__wrapped__)
    weight, x = torch.randn(8, 16).bfloat16(), torch.randn(3, 16).bfloat16()
    layer = linear(weight)
    assert isinstance(layer, PlainLinear)
    assert torch.equal(layer(x), F.linear(x, weight))


def test_operators_that_compute_something_else_are_not_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(PackedLinear, "__init__", lambda self, weight, bias: None)
    monkeypatch.setattr(PackedLinear, "__call__", lambda self, x: torch.zeros(2, 40).bfloat16())
    assert can_pack.__wrapped__() is False


@pytest.mark.parametrize("shape", [(1, 48), (7, 48), (3, 4, 24)])
def test_the_mirrored_norm_equals_the_rms_norm(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    for scale in (1e-4, 1.0, 1e4):  # the smallest is where epsilon counts
        x, weight = scale * torch.randn(shape), torch.randn(shape[-1])
        wanted = FusedNorm(weight, 1e-5)(x)
        torch.testing.assert_close(MirroredNorm(weight, 1e-5)(x), wanted, atol=1e-6, rtol=2e-5)


def test_the_mirrored_norm_in_bfloat16_is_at_most_a_rounding_away() -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(5, 64).bfloat16(), torch.randn(64).bfloat16()
    exact = FusedNorm(weight.float(), 1e-5)(x.float())
    got = rms_norm(weight, 1e-5)(x)
    assert isinstance(rms_norm(weight, 1e-5), MirroredNorm)
    torch.testing.assert_close(got.float(), exact, atol=0, rtol=2**-8)


@pytest.mark.parametrize("vocabulary", [49152, 32000, 1024, 50257, 97])
def test_the_greedy_token_is_the_first_of_the_largest(vocabulary: int) -> None:
    torch.manual_seed(0)
    logits = torch.randn(6, vocabulary).bfloat16().float()  # many are equal
    logits[1] = float("-inf")
    logits[2, 90] = float("nan")
    logits[3, [5, 96]] = float("inf")
    top, tokens = greedy(logits)
    for row in range(len(logits)):
        wanted, place = logits[row].max(dim=-1)
        assert tokens[row] == place
        assert torch.equal(top[row], wanted) or (top[row].isnan() and wanted.isnan())
