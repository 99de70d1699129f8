"""Paceline's own head: what its checkpoint means, and which checkpoints are refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor

from engine.decoder import Decoder
from engine.device import Device
from engine.errors import StartError
from engine.layers_cpu import can_list
from engine.linear import linear
from engine.mtp.dense_head import DenseHead
from engine.mtp.opening import carries_head, open_head
from engine.mtp.paceline import PacelineConfig
from engine.mtp.target import head_rows
from engine.trained import TargetFacts, load_tensors, save
from engine.vocabulary import restricted
from tests.engine.heads import (
    FLOAT,
    HALF,
    Slots,
    causal,
    loaded,
    rms,
    run,
    tiny_decoder,
    turned,
    write,
)

TOKENIZER = "their tokenizer"
CONFIG = PacelineConfig(
    hidden_size=32, heads=4, kv_heads=2, head_dim=8, intermediate_size=40, taps=(0, 1, 2),
    rope_theta=1000.0, rms_norm_eps=1e-4, target=TargetFacts(2, 32, 61, TOKENIZER),
)  # fmt: skip
KEPT = [0, 3, 4, 17, 20, 41, 60]


def tensors(config: PacelineConfig, ids: list[int] = KEPT) -> dict[str, Tensor]:
    """Random weights, exact in bfloat16."""
    torch.manual_seed(7)
    made = {
        name: (torch.randn(shape) * shape[-1] ** -0.5).bfloat16().float()
        for name, shape in config.shapes(len(ids)).items()
    }
    return {**made, "draft_ids": torch.tensor(ids, dtype=torch.int32)}


class Oracle:
    """The head in plain float32 torch, from the words of engine.mtp.paceline."""

    def __init__(
        self, config: PacelineConfig, weights: dict[str, Tensor], embedding: Tensor, head: Tensor
    ) -> None:
        self.config, self.weights, self.embedding, self.head = config, weights, embedding, head

    def norm(self, name: str, x: Tensor) -> Tensor:
        weight = self.weights.get(f"{name}.weight")
        return x if weight is None else rms(x, weight, self.config.rms_norm_eps)

    def linear(self, name: str, x: Tensor) -> Tensor:
        return x @ self.weights[f"{name}.weight"].T

    def fuse(self, features: Tensor) -> Tensor:
        if len(self.config.taps) == 1:
            return features
        parts = features.split(self.config.hidden_size, dim=1)
        normed = [self.norm(f"tap_norms.{index}", part) for index, part in enumerate(parts)]
        return self.linear("fuse", torch.cat(normed, dim=1))

    def forward(self, ids: Tensor, hidden: Tensor, positions: Tensor) -> Tensor:
        config = self.config
        embeddings = self.norm("embedding_norm", self.embedding[ids])
        x = self.linear("project", torch.cat((embeddings, self.norm("hidden_norm", hidden)), 1))
        normed = self.norm("layer.input_norm", x)
        q, k, v = (
            self.linear(f"layer.{part}_proj", normed).unflatten(1, (-1, config.head_dim))
            for part in "qkv"
        )
        q, k = (turned(part, positions, config.rope_theta) for part in (q, k))
        x = x + self.linear("layer.o_proj", causal(q, k, v, config.head_dim**-0.5))
        normed = self.norm("layer.mlp_norm", x)
        gate, up = (self.linear(f"layer.{part}_proj", normed) for part in ("gate", "up"))
        x = x + self.linear("layer.down_proj", F.silu(gate) * up)
        return self.norm("norm", x)

    def logits(self, hidden: Tensor) -> Tensor:
        return hidden @ self.head[self.weights["draft_ids"].long()].T


def oracle(config: PacelineConfig, weights: dict[str, Tensor], tied: bool = True) -> Oracle:
    decoder = tiny_decoder(tied=tied)
    return Oracle(config, weights, decoder.embedding, head_of(decoder))


def head_of(decoder: Decoder) -> Tensor:
    """The weight [V, d] of a head that may be packed: what it makes of unit vectors."""
    return decoder.head(torch.eye(32, dtype=decoder.embedding.dtype)).T.contiguous()


def held(outputs: int, inputs: int) -> int:
    """Bytes that a float32 layer takes, packed where this machine packs."""
    return linear(torch.zeros(outputs, inputs)).extent[1]


@pytest.mark.parametrize(
    "config",
    [
        CONFIG,
        msgspec.structs.replace(CONFIG, taps=(2,)),
        msgspec.structs.replace(CONFIG, norms=False),
        msgspec.structs.replace(CONFIG, kv_heads=4, taps=(1, 2)),
    ],
    ids=["three taps", "one tap", "no norms", "two taps"],
)
def test_a_saved_head_computes_what_its_format_says(config: PacelineConfig, tmp_path: Path) -> None:
    weights = tensors(config)
    save(tmp_path, config, weights)
    head = open_head(tmp_path, loaded(tiny_decoder(tied=False), tmp_path), FLOAT, TOKENIZER)
    wanted = oracle(config, weights, tied=False)
    ids, positions = torch.tensor([5, 0, 60, 9, 33]), torch.arange(1, 6)
    features = torch.randn(5, len(config.taps) * 32)
    hidden = head.fuse(features)
    torch.testing.assert_close(hidden, wanted.fuse(features), atol=1e-5, rtol=1e-5)
    got = run(head, Slots(head.shape), ids, hidden)
    expected = wanted.forward(ids, hidden, positions)
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-4)
    logits = head.logits(got)
    assert logits.dtype == torch.float32
    torch.testing.assert_close(logits, wanted.logits(expected), atol=1e-4, rtol=1e-4)


def test_drafting_on_feeds_its_own_output_with_the_drafted_token(tmp_path: Path) -> None:
    weights = tensors(CONFIG)
    save(tmp_path, CONFIG, weights)
    head = open_head(tmp_path, loaded(tiny_decoder(), tmp_path), FLOAT, TOKENIZER)
    wanted = oracle(CONFIG, weights)
    ids, hidden, slots = torch.tensor([5, 0, 60]), torch.randn(3, 32), Slots(head.shape)
    last = run(head, slots, ids, hidden)[-1:]
    for step in range(3):
        token = head.vocabulary.drawn(head.logits(last).argmax(-1))
        assert int(token) in KEPT
        ids, hidden = torch.cat((ids, token)), torch.cat((hidden, last))
        last = run(head, slots, token, last, first=4 + step)
        expected = wanted.forward(ids, hidden, torch.arange(1, len(ids) + 1))[-1:]
        torch.testing.assert_close(last, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("device", [FLOAT, HALF], ids=["float32", "bfloat16"])
def test_writing_leaves_the_keys_and_values_that_predicting_leaves(
    device: Device, tmp_path: Path
) -> None:
    save(tmp_path, CONFIG, tensors(CONFIG))
    head = open_head(tmp_path, loaded(tiny_decoder(device), tmp_path), device, TOKENIZER)
    ids, hidden = torch.randint(61, (9,)), torch.randn(9, 32).to(device.dtype)
    predicted, written = Slots(head.shape), Slots(head.shape)
    run(head, predicted, ids, hidden)
    write(head, written, ids, hidden)
    assert written.writes == 9
    atol, rtol = (1e-5, 1e-4) if device is FLOAT else (0.05, 0.02)
    for one, other in ((predicted.keys, written.keys), (predicted.values, written.values)):
        torch.testing.assert_close(one[0][1:10], other[0][1:10], atol=atol, rtol=rtol)


@pytest.mark.parametrize("rows", [1, 7, 70])
@pytest.mark.parametrize("norms", [True, False])
def test_a_bfloat16_head_is_close_to_the_format(norms: bool, rows: int, tmp_path: Path) -> None:
    config = msgspec.structs.replace(CONFIG, norms=norms)
    weights = tensors(config)
    save(tmp_path, config, weights)
    target = tiny_decoder(HALF, context=128)
    head = open_head(tmp_path, loaded(target, tmp_path), HALF, TOKENIZER)
    assert isinstance(head, DenseHead)
    compiled: Any = head.decoder.compiled
    assert (compiled is not None) == norms
    assert hasattr(compiled, "enter") == (norms and can_list(torch.bfloat16))
    plain = tiny_decoder()
    rounded = (plain.embedding.bfloat16().float(), head_of(plain).bfloat16().float())
    wanted = Oracle(config, weights, *rounded)
    ids = torch.randint(61, (rows,))
    taps = torch.randn(rows, 96).bfloat16()
    hidden = head.fuse(taps)
    fused = wanted.fuse(taps.float())
    assert (hidden.float() - fused).norm() < 0.01 * fused.norm()
    slots = Slots(replace(head.shape))
    slots.keys, slots.values = ([torch.zeros(128, 2, 8)] for _ in range(2))
    got = run(head, slots, ids, hidden).float()
    expected = wanted.forward(ids, hidden.float(), torch.arange(1, rows + 1))
    error = (got - expected).norm() / expected.norm()
    assert error < 0.03, error
    logits = head.logits(got.bfloat16())
    torch.testing.assert_close(logits, wanted.logits(got), atol=0.1, rtol=0.02)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("device", [FLOAT, HALF], ids=["float32", "bfloat16"])
def test_rows_of_the_targets_head_are_exact(device: Device, tied: bool) -> None:
    target, ids, x = tiny_decoder(device, tied=tied), torch.tensor(KEPT), torch.randn(3, 32)
    got = head_rows(target, ids)(x.to(device.dtype)).float()
    whole = target.logits(x.to(device.dtype))[:, ids]
    torch.testing.assert_close(got, whole, atol=1e-6, rtol=2**-7 if device is HALF else 1e-5)
    units = torch.eye(32).to(device.dtype)
    assert torch.equal(head_rows(target, ids)(units), target.head(units)[:, ids])


def test_the_head_tells_its_sizes_and_its_vocabulary(tmp_path: Path) -> None:
    save(tmp_path, CONFIG, tensors(CONFIG))
    target = tiny_decoder()
    assert carries_head(tmp_path)
    head = open_head(tmp_path, loaded(target, tmp_path), FLOAT, TOKENIZER)
    assert (head.family, head.taps) == ("paceline-mtp", (0, 1, 2))
    assert (head.shape.layers, head.shape.kv_heads, head.shape.context_length) == (1, 2, 64)
    assert (head.vocabulary.to_target.tolist(), head.vocabulary.vocabulary) == (KEPT, 61)
    assert head.vocabulary.drawn(torch.tensor([1, 6])).tolist() == [3, 60]
    stored = sum(
        t.numel() for name, t in load_tensors(tmp_path, CONFIG).items() if name != "draft_ids"
    )
    assert head.parameters == stored
    # Two halves of the projection, fuse, qkv, output, gate and up, down, and rows of the head.
    shapes = [(32, 32), (32, 32), (32, 96), (64, 32), (32, 32), (80, 32), (32, 40), (7, 32)]
    tables = 4 * 2 * 64 * 8
    assert head.bytes == tables + sum(held(*shape) for shape in shapes)


def broken(folder: Path, target: Decoder | None = None, fingerprint: str = TOKENIZER) -> StartError:
    with pytest.raises(StartError) as caught:
        open_head(folder, loaded(target or tiny_decoder(), folder), FLOAT, fingerprint)
    return caught.value


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda t: t.pop("layer.k_proj.weight"), "it lacks layer.k_proj.weight"),
        (lambda t: t.update({"norm.weight": torch.ones(31)}), "norm.weight is [31] instead of"),
        (lambda t: t.update({"layer.bias": torch.ones(1)}), "it holds layer.bias"),
        (lambda t: t.update({"draft_ids": torch.tensor([3, 61])}), "not within the target's voc"),
        (lambda t: t.update({"draft_ids": torch.tensor([-1, 3])}), "not within the target's voc"),
        (lambda t: t.update({"draft_ids": torch.tensor([4, 3])}), "do not ascend"),
        (lambda t: t.update({"draft_ids": torch.tensor([3, 3])}), "do not ascend"),
        (lambda t: t.update({"draft_ids": torch.tensor([3.0])}), "float32, not int32"),
        (lambda t: t.update({"draft_ids": torch.tensor([[3]])}), "draft_ids is [1, 1]"),
        (lambda t: t.update({"draft_ids": torch.tensor(3)}), "draft_ids is []"),
        (lambda t: t.update({"draft_ids": torch.empty(0, dtype=torch.int32)}), "not within"),
        (lambda t: t.update({"norm.weight": torch.ones(32, dtype=torch.int32)}), "no weights"),
    ],
)  # fmt: skip
def test_a_head_of_other_tensors_is_refused(change: Any, said: str, tmp_path: Path) -> None:
    save(tmp_path, CONFIG, tensors(CONFIG))
    file = tmp_path / "model.safetensors"
    stored = load_file(file)
    change(stored)
    save_file(stored, file)
    error = broken(tmp_path)
    assert error.code == "drafter_broken"
    assert said in error.message
    assert str(file) in error.message


def test_a_head_of_other_tensors_is_not_saved(tmp_path: Path) -> None:
    weights = tensors(CONFIG)
    del weights["norm.weight"]
    with pytest.raises(StartError, match=r"lacks norm\.weight"):
        save(tmp_path / "new", CONFIG, weights)
    with pytest.raises(StartError, match="do not ascend"):
        save(tmp_path / "new", CONFIG, tensors(CONFIG, [4, 3]))
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"version": 2}, "version"),
        ({"concat": "hidden_first"}, "concat"),
        ({"position": "hidden"}, "position"),
        ({"recycled": "raw"}, "recycled"),
        ({"taps": []}, "taps"),
        ({"taps": [1, 0]}, "taps do not ascend"),
        ({"taps": [0, 3]}, "not within 0..2"),
        ({"heads": 3}, "multiple of kv_heads"),
        ({"head_dim": 7}, "head_dim is odd"),
        ({"intermediate_size": 0}, "intermediate_size"),
        ({"intermediate_size": 1 << 40}, "intermediate_size"),
        ({"rope_theta": 0}, "rope_theta"),
        ({"hidden_size": 64}, "hidden_size is not"),
        ({"window": 4}, "window"),
        ({"target": None}, "target"),
    ],
)
def test_a_config_that_says_something_else_is_refused(
    change: dict[str, Any], said: str, tmp_path: Path
) -> None:
    save(tmp_path, CONFIG, tensors(CONFIG))
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    error = broken(tmp_path)
    assert error.code == "drafter_broken"
    assert said in error.message
    assert str(file) in error.message


@pytest.mark.parametrize(
    ("target", "fingerprint", "said"),
    [
        ({"layers": 3}, TOKENIZER, "its target has 2 layers, this one 3"),
        ({"vocabulary": 60}, TOKENIZER, "embeds 61 tokens, this one 60"),
        ({"hidden": 64}, TOKENIZER, "a hidden size of 32, this one of 64"),
        ({}, "our tokenizer", "another tokenizer"),
    ],
)
def test_the_head_of_another_model_is_refused(
    target: dict[str, Any], fingerprint: str, said: str, tmp_path: Path
) -> None:
    save(tmp_path, CONFIG, tensors(CONFIG))
    error = broken(tmp_path, tiny_decoder(**target), fingerprint)
    assert error.code == "drafter_unfit"
    assert said in error.message


def test_a_truncated_or_missing_file_is_refused(tmp_path: Path) -> None:
    save(tmp_path, CONFIG, tensors(CONFIG))
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-7])
    assert "is not complete" in broken(tmp_path).message
    file.unlink()
    assert "holds no model.safetensors" in broken(tmp_path).message
    (tmp_path / "config.json").write_text("{")
    assert "not valid JSON" in broken(tmp_path).message


def test_the_drafted_ids_may_be_reduced_further(tmp_path: Path) -> None:
    save(tmp_path, CONFIG, tensors(CONFIG))
    target = loaded(tiny_decoder(), tmp_path)
    whole = open_head(tmp_path, target, FLOAT, TOKENIZER)
    few = open_head(
        tmp_path, target, FLOAT, TOKENIZER, lambda ids: restricted(ids, 3, always=[60, 5])
    )
    assert few.vocabulary.to_target.tolist() == [0, 3, 60]
    x = torch.randn(4, 32)
    torch.testing.assert_close(few.logits(x), whole.logits(x)[:, [0, 1, 6]])
    assert few.bytes == whole.bytes - held(len(KEPT), 32) + held(3, 32)


def test_a_head_that_drafts_every_id_keeps_no_rows_of_its_own(tmp_path: Path) -> None:
    save(tmp_path, CONFIG, tensors(CONFIG))
    save(tmp_path / "all", CONFIG, tensors(CONFIG, list(range(61))))
    target = loaded(tiny_decoder(), tmp_path)
    few = open_head(tmp_path, target, FLOAT, TOKENIZER)
    every = open_head(tmp_path / "all", target, FLOAT, TOKENIZER)
    assert every.vocabulary.whole
    assert every.bytes == few.bytes - held(len(KEPT), 32)
    x = torch.randn(4, 32)
    torch.testing.assert_close(few.logits(x), every.logits(x)[:, KEPT])
