"""The residual stream that a decoder shows on the way is the one it computes with."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from msgspec import structs

from engine.batch import Chunk, pack
from engine.build import Target, open_target
from engine.config import EngineConfig
from engine.decoder import Decoder
from engine.draw import Draw


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def typed(request: pytest.FixtureRequest, target: Target, config: EngineConfig) -> Target:
    """The target in either type: few rows of bfloat16 take another path than many."""
    if request.param == "float32":
        return target
    half = structs.replace(config, dtype="bfloat16", kv_tokens=8192)
    return open_target(half, lambda stage, fraction, message: None)


@pytest.mark.parametrize("rows", [3, 90])
def test_taps_are_the_stream_before_each_layer(typed: Target, rows: int) -> None:
    decoder = typed.executor.decoder
    assert isinstance(decoder, Decoder)
    ids = [(17 * place) % 4000 + 20 for place in range(rows)]
    held = list(range(-(-rows // typed.pool.page_size)))
    batch = pack([Chunk(0, ids, 0, held, Draw())], typed.device, typed.pool.page_size)

    with torch.no_grad():
        plain = decoder.forward(batch.ids, batch.positions, typed.executor.attention.plan(batch))
        layers = (0, 7, decoder.shape.layers)
        hidden, features = decoder.features(
            batch.ids, batch.positions, typed.executor.attention.plan(batch), layers
        )
        reference = dataclasses.replace(decoder, compiled=None)
        _, expected = reference.features(
            batch.ids, batch.positions, typed.executor.attention.plan(batch), layers
        )
    assert torch.equal(hidden, plain)
    first, middle, last = features.split(decoder.shape.hidden, -1)
    assert torch.equal(first, decoder.embedding[batch.ids])
    assert torch.equal(last, hidden)
    wanted = expected.split(decoder.shape.hidden, -1)[1]
    loose = 1e-4 if features.dtype == torch.float32 else 0.1
    assert torch.allclose(middle.float(), wanted.float(), rtol=loose, atol=loose * 20)
    assert not torch.allclose(middle.float(), first.float(), rtol=0.1, atol=0.1)
