"""What training starts with: least squares before a head's block, or a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.errors import StartError
from engine.trained import DRAFT_IDS, load_config, load_tensors, save
from engine.training.fit import fit
from engine.training.fit_batches import batches
from engine.training.fit_checkpoint import describe
from engine.training.fit_module import Trained
from engine.training.fit_mtp import MtpHead
from engine.training.fit_options import Options
from engine.training.fit_start import begin_with, build
from engine.training.shards import About, path_of, write
from tests.engine.test_fit import (
    FACTS,
    HIDDEN,
    KEPT,
    KINDS,
    SHORT,
    about_of,
    shard,
    stored,
    target_folder,
)  # fmt: skip


@pytest.fixture(autouse=True)
def gradients() -> Iterator[None]:
    """An engine that was opened in this process has switched them off."""
    with torch.enable_grad():
        yield


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return target_folder(tmp_path_factory.mktemp("models") / "target")


def predictable(folder: Path, target: Path, taps: tuple[int, ...]) -> tuple[Path, About]:
    """A shard in which the input of layer 1 at a slot is linear in the embedding of its token and
    in the taps of the slot before, times an irregular size."""
    texts = shard(texts=30)
    about = replace(about_of(target), taps=taps)
    place = taps.index(1)
    head = build(target, about, KEPT, Options(precision="float32"))
    torch.manual_seed(5)
    features = torch.randn(len(texts.tokens), len(taps) * HIDDEN)
    told, before = torch.randn(HIDDEN, HIDDEN), torch.randn(len(taps) * HIDDEN, HIDDEN)
    for slot, token in enumerate(texts.tokens.tolist()):
        if slot:
            own = features[slot - 1].split(HIDDEN)
            past = torch.cat([one / one.square().mean().sqrt() for one in own]) @ before
            embedded = head.embedding[token]
            x = embedded / embedded.square().mean().sqrt() @ told + past
            features[slot, place * HIDDEN : (place + 1) * HIDDEN] = 0.1 * x
    folder.mkdir()
    write(path_of(folder, 0), replace(texts, features=features.bfloat16()), about)
    return path_of(folder, 0), about


def error(head: Trained, path: Path, place: int) -> float:
    """Of the block's input on answers, as a share of what it should be."""
    assert isinstance(head, MtpHead)
    off = whole = 0.0
    for rows in batches([path], 64, 64, 1, 0, 0):
        with torch.no_grad():
            x = head.block_input(rows)
        wanted = rows.features[:, 1:, place * HIDDEN : (place + 1) * HIDDEN].float()
        off += float(((x - wanted)[rows.known] ** 2).sum())
        whole += float((wanted[rows.known] ** 2).sum())
    return off / whole


@pytest.mark.parametrize("taps", [(0, 1, 2), (1,)])
def test_a_heads_block_is_given_what_its_layer_gets(
    tmp_path: Path, target: Path, taps: tuple[int, ...]
) -> None:
    path, about = predictable(tmp_path / "shards", target, taps)
    options = Options(precision="float32")
    head = build(target, about, KEPT, options)
    raw = error(head, path, taps.index(1))
    begin_with(head, [path], about, FACTS, options)
    assert error(head, path, taps.index(1)) < 0.1 < 0.5 < raw


def test_the_block_begins_as_the_layer_whose_input_is_known(target: Path) -> None:
    def query(taps: tuple[int, ...]) -> Tensor:
        about = replace(about_of(target), taps=taps)
        return build(target, about, KEPT, Options()).tensors()["layer.q_proj.weight"]

    layers = [build(target, about_of(target), KEPT, Options(kind="draft", layers=2)).tensors()]
    own = [layers[0][f"layers.{index}.q_proj.weight"] for index in range(2)]
    assert torch.equal(query((0, 2)), own[0])
    assert torch.equal(query((0, 1, 2)), own[1])
    assert torch.equal(query((2,)), own[1])


@pytest.mark.parametrize("kind", KINDS)
def test_training_goes_on_from_a_checkpoint(tmp_path: Path, target: Path, kind: Any) -> None:
    shards = stored(tmp_path / "shards", target)
    first = run(target, shards, tmp_path / "first", kind=kind, rate=1e-2)
    keep(tmp_path / "kept", first, about_of(target), KEPT)
    again = run(
        target, shards, tmp_path / "again", ids=KEPT[1:], kind=kind, rate=0.0,
        start=str(tmp_path / "kept"),
    )  # fmt: skip
    for name, value in again.tensors().items():
        assert torch.equal(value.bfloat16(), first.tensors()[name].bfloat16()), name


@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_of_something_else_is_no_start(
    tmp_path: Path, target: Path, kind: Any
) -> None:
    shards = stored(tmp_path / "shards", target)
    module = build(target, about_of(target), KEPT, Options(kind=kind, layers=1))
    keep(tmp_path / "kept", module, about_of(target), KEPT)
    start = str(tmp_path / "kept")
    other: dict[str, Any] = {"norms": False} if kind == "mtp" else {"layers": 2}
    told = "norms is True instead of False" if kind == "mtp" else "layers is 1 instead of 2"
    with pytest.raises(StartError, match=told):
        run(target, shards, tmp_path / "other", kind=kind, start=start, **other)
    with pytest.raises(StartError, match="missing"):
        run(target, shards, tmp_path / "none", kind=kind, start=str(tmp_path / "missing"))


def run(
    target: Path, shards: Path, folder: Path, *, ids: Sequence[int] = tuple(KEPT), **more: Any
) -> Trained:
    options = Options(**SHORT | more)
    return fit(target, FACTS, shards, ids, folder, options, lambda report: None)


def keep(folder: Path, module: Trained, about: About, ids: list[int]) -> None:
    config = describe(module, about, FACTS)
    save(folder, config, module.tensors() | {DRAFT_IDS: torch.tensor(ids)})
    assert load_tensors(folder, load_config(folder, type(config)))
