"""What is trained is what is served: the trainer's modules against the loaded checkpoints."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from engine.mtp.paceline_head import open_paceline
from engine.trained import DRAFT_IDS, TargetFacts, save
from engine.training.fit import fit
from engine.training.fit_batches import batches
from engine.training.fit_loss import soft_cross_entropy
from engine.training.fit_mtp import MtpHead, Sizes
from engine.training.fit_options import Options
from engine.training.fitting import describe, tensors_of
from engine.training.shards import About, Shard, path_of, write
from tests.engine.heads import FLOAT, Slots, run, tiny_decoder

VOCABULARY, HIDDEN, TAPS = 61, 32, (0, 1, 2)
KEPT = list(range(0, VOCABULARY, 2))
ABOUT = About(TAPS, HIDDEN, "target", 4)


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


def stored(folder: Path, **options: int) -> Path:
    folder.mkdir()
    write(path_of(folder, 0), shard(**options), ABOUT)
    return folder


@pytest.mark.parametrize("norms", [True, False])
@pytest.mark.parametrize("taps", [TAPS, (2,)])
def test_a_trained_head_computes_what_the_served_one_does(
    tmp_path: Path, norms: bool, taps: tuple[int, ...]
) -> None:
    target = tiny_decoder(tied=False)
    rows_of_head = target.logits(torch.eye(HIDDEN)).T.contiguous()
    columns = torch.full((VOCABULARY,), -1)
    columns[KEPT] = torch.arange(len(KEPT))
    sizes = Sizes(HIDDEN, 4, 2, 8, 40, 1e-5, 10000.0, len(taps))
    torch.manual_seed(3)
    module = MtpHead(sizes, target.embedding, rows_of_head[KEPT], columns, {}, norms)
    with torch.no_grad():
        for parameter in module.parameters():  # what a checkpoint can hold
            spread = torch.randn_like(parameter) * (4 if parameter.dim() == 2 else 0.2)
            spread = spread * 0.05 if parameter.dim() == 2 else spread + 1
            parameter.copy_(spread.bfloat16().float())
    facts = TargetFacts(2, HIDDEN, VOCABULARY, "target")
    about = About(taps, HIDDEN, "target", 4)
    tensors = tensors_of(module) | {DRAFT_IDS: torch.tensor(KEPT)}
    save(tmp_path / "head", describe(module, Options(norms=norms), about, facts), tensors)
    served = open_paceline(tmp_path / "head", target, FLOAT, "target")
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


def target_folder(folder: Path) -> Path:
    """Files of a tiny Llama, as the trainer reads them."""
    folder.mkdir()
    (folder / "config.json").write_text(
        '{"model_type": "llama", "hidden_size": 32, "num_attention_heads": 4,'
        '"num_key_value_heads": 2, "intermediate_size": 48, "num_hidden_layers": 2,'
        '"rms_norm_eps": 1e-5, "vocab_size": 61}'
    )
    (folder / "tokenizer.json").write_text("{}")
    torch.manual_seed(1)
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


def weights(module: torch.nn.Module) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in module.parameters()]


@pytest.mark.parametrize("kind", ["mtp", "draft"])
def test_training_learns_and_a_resumed_run_is_the_same(tmp_path: Path, kind: str) -> None:
    target, shards = target_folder(tmp_path / "target"), stored(tmp_path / "shards", texts=12)
    options = Options(
        kind=kind,  # pyright: ignore[reportArgumentType] - one of its two
        tokens=4000, rows=64, depth=2, rate=2e-2, layers=1, precision="float32",
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
            return fit(target, shards, KEPT, tmp_path / folder, options, tell, checkpoint_steps=7)
        except Enough:
            return torch.nn.Module()

    whole = run_to("whole", float("inf"))
    assert curve[0][0] < 0.6
    assert min(curve[-1]) > 0.95, "it did not learn a function of one token"
    run_to("parts", 1500)
    resumed = run_to("parts", float("inf"))
    for one, other in zip(weights(whole), weights(resumed), strict=True):
        assert torch.equal(one, other)
