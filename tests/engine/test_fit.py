"""What is trained is what is served: the trainer's modules against the loaded checkpoints."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from engine.config import EngineConfig
from engine.errors import StartError
from engine.mtp.paceline_head import open_paceline
from engine.trained import DRAFT_IDS, TargetFacts, save
from engine.training import fit_batches
from engine.training.fit import fit
from engine.training.fit_batches import batches
from engine.training.fit_checkpoint import describe
from engine.training.fit_loss import soft_cross_entropy
from engine.training.fit_module import Sizes
from engine.training.fit_mtp import MtpHead
from engine.training.fit_options import Options
from engine.training.fit_start import build
from engine.training.job import Fit
from engine.training.model_digest import weights_digest
from engine.training.shards import About, Shard, about_all, path_of, read, write
from engine.training.vocabulary_ranking import write_ids
from tests.engine.heads import FLOAT, Slots, run, tiny_decoder

VOCABULARY, HIDDEN, TAPS = 61, 32, (0, 1, 2)
KEPT = list(range(0, VOCABULARY, 2))
FACTS = TargetFacts(2, HIDDEN, VOCABULARY, "target")
ABOUT = About(TAPS, HIDDEN, "target", 4, "weights", "template")


@pytest.fixture(autouse=True)
def gradients() -> Iterator[None]:
    """An engine that was opened in this process has switched them off."""
    with torch.enable_grad():
        yield


def shard(texts: int = 6, seed: int = 0) -> Shard:
    """Texts whose next token is a function of the last, with features that tell nothing."""
    torch.manual_seed(seed)
    tokens: list[int] = []
    offsets, answers = [0], []
    for index in range(texts):
        token = 2 * index
        for _ in range(9 + index):
            tokens.append(token)
            token = (token * 3 + 2) % (VOCABULARY - 1) // 2 * 2
        offsets.append(len(tokens))
        answers.append(3)
    ids: list[Tensor] = []
    for begin, end in pairwise(offsets):
        told = torch.tensor(tokens[begin + 3 : end])
        ids.append(torch.stack([told, (told + 1) % 61, (told + 7) % 61, (told + 9) % 61], 1))
    top = torch.cat(ids).int()
    return Shard(
        torch.tensor(tokens, dtype=torch.int32),
        torch.tensor(offsets),
        torch.tensor(answers),
        torch.randn(len(tokens), len(TAPS) * HIDDEN).bfloat16(),
        top,
        torch.tensor([0.7, 0.15, 0.1, 0.05]).log().half().expand(len(top), 4).clone(),
    )


def target_folder(folder: Path, seed: int = 1) -> Path:
    """Files of a tiny Llama, as the trainer reads them."""
    folder.mkdir()
    (folder / "config.json").write_text(
        '{"model_type": "llama", "hidden_size": 32, "num_attention_heads": 4,'
        '"num_key_value_heads": 2, "intermediate_size": 48, "num_hidden_layers": 2,'
        '"rms_norm_eps": 1e-5, "vocab_size": 61}'
    )
    (folder / "tokenizer.json").write_text("{}")
    torch.manual_seed(seed)
    tensors = {
        "model.embed_tokens.weight": torch.randn(61, 32),
        "model.norm.weight": torch.ones(32),
    }
    for index in range(2):
        block = f"model.layers.{index}"
        shapes = {"q": (32, 32), "k": (16, 32), "v": (16, 32), "o": (32, 32)}
        for part, shape in shapes.items():
            tensors[f"{block}.self_attn.{part}_proj.weight"] = torch.randn(shape) * 0.1
        for part, shape in {"gate": (48, 32), "up": (48, 32), "down": (32, 48)}.items():
            tensors[f"{block}.mlp.{part}_proj.weight"] = torch.randn(shape) * 0.1
        for part in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{block}.{part}.weight"] = torch.ones(32)
    save_file(tensors, folder / "model.safetensors")
    return folder


def about_of(target: Path) -> About:
    return replace(ABOUT, weights=weights_digest(target))


def stored(folder: Path, target: Path, **options: int) -> Path:
    folder.mkdir()
    write(path_of(folder, 0), shard(**options), about_of(target))
    return folder


def tiny_job(folder: Path, tokens: int, checkpoint_steps: int) -> Fit:
    """Trains a head for the tiny target, in folders beside it."""
    target = target_folder(folder / "target")
    shards = stored(folder / "shards", target)
    write_ids(folder / "ids.npy", np.array(KEPT))
    return Fit(
        EngineConfig(model=str(target), threads=1),
        out=str(folder / "made"),
        run=str(folder / "made.run"),
        shards=str(shards),
        draft_ids=str(folder / "ids.npy"),
        options={"tokens": tokens, "rows": 24, "depth": 1, "precision": "float32"},
        checkpoint_steps=checkpoint_steps,
    )


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return target_folder(tmp_path_factory.mktemp("models") / "target")


@pytest.mark.parametrize("norms", [True, False])
@pytest.mark.parametrize("taps", [TAPS, (2,)])
def test_a_trained_head_computes_what_the_served_one_does(
    tmp_path: Path, norms: bool, taps: tuple[int, ...]
) -> None:
    decoder = tiny_decoder(tied=False)
    rows_of_head = decoder.logits(torch.eye(HIDDEN)).T.contiguous()
    columns = torch.full((VOCABULARY,), -1)
    columns[KEPT] = torch.arange(len(KEPT))
    sizes = Sizes(HIDDEN, 4, 2, 8, 40, 1e-5, 10000.0, len(taps))
    torch.manual_seed(3)
    module = MtpHead(sizes, decoder.embedding, rows_of_head[KEPT], columns, {}, norms)
    with torch.no_grad():
        for parameter in module.parameters():  # what a checkpoint can hold
            spread = torch.randn_like(parameter) * (4 if parameter.dim() == 2 else 0.2)
            spread = spread * 0.05 if parameter.dim() == 2 else spread + 1
            parameter.copy_(spread.bfloat16().float())
    about = replace(ABOUT, taps=taps)
    tensors = module.tensors() | {DRAFT_IDS: torch.tensor(KEPT)}
    save(tmp_path / "head", describe(module, about, FACTS), tensors)
    served = open_paceline(tmp_path / "head", decoder, FLOAT, "target")
    texts = shard(texts=1)
    wide = texts.features if len(taps) == 3 else texts.features[:, -HIDDEN:]
    stored_at = path_of(tmp_path, 0)
    write(
        stored_at,
        Shard(**{**vars(texts), "features": wide.contiguous()}),
        about,
    )
    (rows,) = batches([stored_at], 64, 64, 3, 0, 0)
    with torch.no_grad():
        first, second, third = module(rows, 3)
        ids, features = texts.tokens.long(), wide.float()
        slots = Slots(served.shape)
        outputs = run(served, slots, ids[1:-1], served.fuse(features[:-2]))
        assert torch.allclose(outputs[2:], first[1], atol=2e-4)
        # The second and third tokens after slot 5: the text's own are fed, and the head's output.
        begin = 5
        slots = Slots(served.shape)
        run(served, slots, ids[1 : begin + 1], served.fuse(features[:begin]))
        out = first[1][begin - 3 : begin - 2]
        for step, trained in ((1, second), (2, third)):
            slot = begin + step
            out = run(served, slots, ids[slot : slot + 1], out, slot)
            assert torch.allclose(out, trained[1][begin - 3 : begin - 2], atol=2e-4)
        logits = served.logits(outputs[2:])
        teacher = texts.top_ids[1:], texts.top_logprobs[1:]
        taught = soft_cross_entropy(logits, teacher[0].long(), teacher[1].float(), columns)
    assert torch.allclose(taught.loss, first[0].loss, rtol=1e-4)
    assert int(taught.agreed) == int(first[0].agreed)


def test_the_loss_is_the_divergence_on_what_can_be_drafted() -> None:
    torch.manual_seed(0)
    columns = torch.tensor([0, -1, 1, 2])
    p = torch.tensor([[0.5, 0.2, 0.2, 0.1]])
    logits = torch.tensor([[0.3, -1.0, 2.0]], requires_grad=True)
    taught = soft_cross_entropy(logits, torch.tensor([[0, 1, 2, 3]]), p.log(), columns)
    inside = torch.tensor([0.5, 0.2, 0.1])
    wanted = -(inside * logits.log_softmax(-1)).sum()
    assert torch.allclose(taught.loss, wanted)
    assert torch.allclose(taught.weight, torch.tensor(0.8))
    taught.loss.backward()
    assert logits.grad is not None
    assert torch.allclose(logits.grad, 0.8 * logits.softmax(-1) - inside, atol=1e-6)


def weights(module: torch.nn.Module) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in module.parameters()]


@pytest.mark.parametrize("kind", ["mtp", "draft"])
def test_training_learns_and_a_resumed_run_is_the_same(
    tmp_path: Path, target: Path, kind: str
) -> None:
    shards = stored(tmp_path / "shards", target, texts=12)
    options = Options(
        kind=kind,  # pyright: ignore[reportArgumentType] - one of its two
        tokens=2000, rows=64, depth=2, rate=2e-2, layers=1, precision="float32",
    )  # fmt: skip
    curve: list[tuple[float, ...]] = []

    def run_to(folder: str, limit: float) -> torch.nn.Module:
        class Enough(Exception):
            pass

        def tell(report: object) -> None:
            curve.append(report.agreement)  # pyright: ignore[reportAttributeAccessIssue]
            if report.tokens >= limit:  # pyright: ignore[reportAttributeAccessIssue]
                raise Enough

        try:
            place = tmp_path / folder
            return fit(target, FACTS, shards, KEPT, place, options, tell, checkpoint_steps=7)
        except Enough:
            return torch.nn.Module()

    whole = run_to("whole", float("inf"))
    assert curve[0][0] < 0.6
    assert min(curve[-1]) > 0.95, "it did not learn a function of one token"
    run_to("parts", 700)
    resumed = run_to("parts", float("inf"))
    for one, other in zip(weights(whole), weights(resumed), strict=True):
        assert torch.equal(one, other)


KINDS: tuple[Any, ...] = ("mtp", "draft")
SHORT: dict[str, Any] = {
    "tokens": 40, "rows": 32, "depth": 2, "layers": 1, "precision": "float32",
}  # fmt: skip


def train(target: Path, shards: Path, folder: Path, ids: list[int] = KEPT, **more: Any) -> Any:
    options = Options(**SHORT | more)
    reports: list[Any] = []
    fit(target, FACTS, shards, ids, folder, options, reports.append)
    return reports[-1]


@pytest.mark.parametrize("kind", KINDS)
def test_the_hidden_loss_compares_with_the_state_that_the_target_predicts_from(
    tmp_path: Path, target: Path, kind: Any
) -> None:
    texts = shard(texts=4)
    slots = torch.arange(len(texts.tokens))
    features = slots[:, None].expand_as(texts.features).bfloat16().contiguous()
    begins = [int(begin) + 3 for begin in texts.offsets[:-1]]
    told = torch.cat([slots[a:b] for a, b in zip(begins, texts.offsets[1:], strict=True)])
    top = torch.stack([told, told * 0, told * 0 + 1, told * 0 + 2], 1).int()
    write(path_of(tmp_path, 0), replace(texts, features=features, top_ids=top), about_of(target))
    module = build(target, about_of(target), KEPT, Options(kind=kind, precision="float32"))
    found: list[int] = []
    for rows in batches([path_of(tmp_path, 0)], 24, 2, 3, 0, 0):
        width = rows.known.shape[1] - rows.context
        with torch.no_grad():
            positions = module(rows, 3)
        for step, (_, outputs, seen) in enumerate(positions):
            places = rows.teacher[:, step : step + width].reshape(-1)
            predicted = rows.top_ids[places[places >= 0], 0]
            own = rows.features.flatten(0, 1)[seen, -HIDDEN:]
            assert own.shape == outputs.shape
            assert torch.equal(own[:, -1].long(), predicted - 1)
            found += predicted.tolist() if step == 0 else []
    assert sorted(found) == [slot for slot in told.tolist() if slot not in begins]


@pytest.mark.parametrize("kind", KINDS)
def test_the_hidden_loss_adds_to_the_other(tmp_path: Path, target: Path, kind: Any) -> None:
    shards = stored(tmp_path / "shards", target)
    plain = train(target, shards, tmp_path / "plain", kind=kind, rate=0.0)
    more = train(target, shards, tmp_path / "more", kind=kind, rate=0.0, hidden_loss=0.1)
    assert more.loss > plain.loss


@pytest.mark.parametrize("kind", KINDS)
def test_the_hidden_loss_needs_the_last_state(target: Path, kind: Any) -> None:
    about = replace(about_of(target), taps=(0, 1))
    build(target, about, KEPT, Options(kind=kind))
    with pytest.raises(StartError, match="--taps that end with 2"):
        build(target, about, KEPT, Options(kind=kind, hidden_loss=0.1))


def test_shards_of_other_weights_are_refused(tmp_path: Path, target: Path) -> None:
    other = target_folder(tmp_path / "other", seed=2)
    assert weights_digest(other) != weights_digest(target)
    weights = target_folder(tmp_path / "same") / "model.safetensors"
    assert weights_digest(weights.parent) == weights_digest(target)
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    assert weights_digest(weights.parent) != weights_digest(target)
    with pytest.raises(StartError, match="other weights"):
        train(target, stored(tmp_path / "shards", other), tmp_path / "run")


def test_shards_that_are_not_of_one_extraction_are_refused(tmp_path: Path, target: Path) -> None:
    shards = stored(tmp_path / "shards", target)
    write(path_of(shards, 1), shard(), replace(about_of(target), template="another"))
    with pytest.raises(StartError, match=r"shard-00001.* than .*shard-00000"):
        about_all([path_of(shards, 0), path_of(shards, 1)])


def test_a_run_goes_on_only_with_the_data_that_it_was_begun_with(
    tmp_path: Path, target: Path
) -> None:
    shards, run_folder = stored(tmp_path / "shards", target), tmp_path / "run"
    train(target, shards, run_folder)
    others = [one + 1 for one in KEPT[:-1]] + KEPT[-1:]
    with pytest.raises(StartError, match=r"other data \(draft_ids\)"):
        train(target, shards, run_folder, others)
    with pytest.raises(StartError, match=r"other data \(norms\)"):
        train(target, shards, run_folder, norms=False)
    checkpoint = run_folder / "checkpoint.pt"
    kept = torch.load(checkpoint)
    torch.save({**kept, "run": kept["run"] | {"processes": 2}}, checkpoint)
    with pytest.raises(StartError, match=r"other data \(processes\)"):
        train(target, shards, run_folder)
    torch.save(kept, checkpoint)
    write(path_of(shards, 1), shard(seed=1), about_of(target))
    with pytest.raises(StartError, match=r"other data \(shards\)"):
        train(target, shards, run_folder)


@pytest.mark.parametrize("damage", ["cut", "text", "other"])
def test_a_damaged_checkpoint_is_told(tmp_path: Path, target: Path, damage: str) -> None:
    shards = stored(tmp_path / "shards", target)
    checkpoint = tmp_path / "run" / "checkpoint.pt"
    train(target, shards, checkpoint.parent)
    match damage:
        case "cut":
            checkpoint.write_bytes(checkpoint.read_bytes()[:-2000])
        case "text":
            checkpoint.write_bytes(b"no checkpoint")
        case _:
            torch.save([1, 2], checkpoint)
    with pytest.raises(StartError, match=r"checkpoint\.pt cannot be read"):
        train(target, shards, checkpoint.parent)


def test_a_full_disk_is_told(tmp_path: Path, target: Path) -> None:
    shards, run_folder = stored(tmp_path / "shards", target), tmp_path / "run"
    run_folder.mkdir()
    (run_folder / "checkpoint.part").symlink_to("/dev/full")
    with pytest.raises(StartError, match="cannot write the checkpoint"):
        train(target, shards, run_folder)
    path_of(shards, 1).with_suffix(".part").mkdir()
    with pytest.raises(StartError, match="cannot write"):
        write(path_of(shards, 1), shard(), about_of(target))


def test_a_window_of_shards_is_freed_before_the_next_is_read(
    tmp_path: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for index in range(3):
        write(path_of(tmp_path, index), shard(seed=index), about_of(target))
    held: list[weakref.ref[Shard]] = []

    def reading(path: Path) -> tuple[Shard, About]:
        assert not [one for one in held if one() is not None]
        found = read(path)
        held.append(weakref.ref(found[0]))
        return found

    monkeypatch.setattr(fit_batches, "read", reading)
    monkeypatch.setattr(fit_batches, "WINDOW", 1)
    files = [path_of(tmp_path, index) for index in range(3)]
    assert sum(rows.taught for rows in batches(files, 32, 4, 2, 0, 0)) > 0
    assert len(held) == 3


def test_a_window_without_a_text_to_learn_from_is_passed_over(tmp_path: Path, target: Path) -> None:
    texts = shard(texts=1)
    short = replace(
        texts, answers=torch.tensor([8]), top_ids=texts.top_ids[-1:],
        top_logprobs=texts.top_logprobs[-1:],
    )  # fmt: skip
    write(path_of(tmp_path, 0), short, about_of(target))
    assert list(batches([path_of(tmp_path, 0)], 32, 4, 2, 0, 0)) == []
    with pytest.raises(StartError, match="holds no answer of two tokens"):
        train(target, tmp_path, tmp_path / "run")
