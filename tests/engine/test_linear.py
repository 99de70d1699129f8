"""Prepacked linear layers, the one-kernel norm and the blocked argmax equal torch's own."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import engine.linear
from engine.greedy import greedy
from engine.linear import TOLERANCES, PackedLinear, PlainLinear, can_pack, linear
from engine.norm import FusedNorm, MirroredNorm, rms_norm

packing = pytest.mark.parametrize(
    "dtype",
    [
        pytest.param(
            dtype,
            marks=pytest.mark.skipif(
                not can_pack(dtype), reason=f"this torch or CPU packs no {dtype} weights"
            ),
        )
        for dtype in TOLERANCES
    ],
)


@packing
@pytest.mark.parametrize("rows", [1, 2, 7, 16, 33, 300])
@pytest.mark.parametrize("with_bias", [True, False])
def test_a_packed_layer_computes_what_the_plain_one_does(
    rows: int, with_bias: bool, dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    weight = torch.randn(96, 160).to(dtype)
    bias = torch.randn(96).to(dtype) if with_bias else None
    x = torch.randn(rows, 160).to(dtype)
    packed, plain = linear(weight, bias), PlainLinear(weight, bias)
    assert isinstance(packed, PackedLinear)
    rtol, atol = TOLERANCES[dtype]
    torch.testing.assert_close(packed(x), plain(x), atol=2 * atol, rtol=rtol)


@packing
@pytest.mark.parametrize("shape", [(960, 576), (576, 1536), (150, 96)])
def test_what_a_row_gives_does_not_depend_on_the_rows_beside_it(
    shape: tuple[int, int], dtype: torch.dtype
) -> None:
    """So that a text is the same to the last bit, whatever is drafted and whoever shares a step."""
    torch.manual_seed(0)
    layer = linear(torch.randn(shape).to(dtype))
    x = torch.randn(64, shape[1]).to(dtype)
    together = layer(x)
    for rows in (1, 2, 3, 4, 5, 8, 9, 16, 33):
        assert torch.equal(layer(x[:rows].contiguous()), together[:rows])


@packing
def test_a_packed_layer_reads_rows_that_lie_apart(dtype: torch.dtype) -> None:
    weight, wide = torch.randn(32, 48).to(dtype), torch.randn(5, 96).to(dtype)
    got = PackedLinear(weight, None)(wide.narrow(1, 0, 48))
    assert torch.equal(got, PackedLinear(weight, None)(wide[:, :48].contiguous()))


def test_weights_of_other_dtypes_stay_plain() -> None:
    assert isinstance(linear(torch.randn(8, 8).double()), PlainLinear)


class _NoOperators:
    def __init__(self) -> None:
        raise AttributeError("no such operator")


@pytest.mark.parametrize("dtype", TOLERANCES)
def test_without_the_private_operators_layers_are_plain(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> None:
    monkeypatch.setattr(engine.linear, "_operators", _NoOperators)
    monkeypatch.setattr(engine.linear, "can_pack", can_pack.__wrapped__)
    weight, x = torch.randn(8, 16).to(dtype), torch.randn(3, 16).to(dtype)
    layer = linear(weight)
    assert isinstance(layer, PlainLinear)
    assert torch.equal(layer(x), F.linear(x, weight))


@pytest.mark.parametrize("dtype", TOLERANCES)
def test_operators_that_compute_something_else_are_not_used(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> None:
    monkeypatch.setattr(PackedLinear, "__init__", lambda self, weight, bias: None)
    monkeypatch.setattr(PackedLinear, "__call__", lambda self, x: torch.zeros(2, 40).to(dtype))
    assert can_pack.__wrapped__(dtype) is False


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
