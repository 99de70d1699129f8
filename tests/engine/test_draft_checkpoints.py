"""Draft models from folders: what they compute, what they draft, and what is wrong with them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

from engine.decoder import Decoder
from engine.device import Device
from engine.draft_models.checkpoint import check_draft_model, open_draft_model
from engine.draft_models.model import DraftModel
from engine.draft_models.tied import DraftConfig, assemble, open_tied
from engine.errors import StartError
from engine.linear import can_pack, packs
from engine.loading import Loaded, load
from engine.trained import TargetFacts, load_config, load_tensors, save
from engine.vocabulary import fingerprint, ranked
from tests.engine.test_families import SIZES, TEXTS, assert_equal, eager, paged, tiny
from tests.engine.vocabularies import Named, byte_level, letters, sentencepiece

CPU = Device(torch.device("cpu"), torch.float32)
HALF = Device(torch.device("cpu"), torch.bfloat16)
ROWS = 900
IDS = torch.tensor([0, 1, *range(2, ROWS, 3)], dtype=torch.int32)
"""What the trained drafters of these tests draft."""


def folder(path: Path, family: str, tokenizer: Named, **more: Any) -> Path:
    """A model folder as users have them."""
    rows = more.pop("vocab_size", tokenizer.backend_tokenizer.get_vocab_size(True))
    tiny(family, vocab_size=rows, **more).save_pretrained(path)
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer.backend_tokenizer,
        eos_token=tokenizer.eos_token,
        bos_token=tokenizer.bos_token,
        unk_token=tokenizer.unk_token,
    ).save_pretrained(path)
    return path


TARGETS: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {"tie_word_embeddings": True},
    "granite": {},
    "olmo2": {},
}
"""Lean with a head of its own, lean and tied, with a factor of logits; a transformers module."""


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Loaded]:
    made: dict[tuple[str, torch.dtype], Loaded] = {}

    def of(family: str = "llama", device: Device = CPU) -> Loaded:
        key = family, device.dtype
        if key not in made:
            path = tmp_path_factory.mktemp(family)
            made[key] = load(
                folder(path, family, byte_level(), **TARGETS[family]), device, 0, path / "cache"
            )
        return made[key]

    return of


def facts(target: Loaded) -> TargetFacts:
    shape = target.decoder.shape
    tokenizer = fingerprint(target.tokenizer.backend_tokenizer)
    return TargetFacts(shape.layers, shape.hidden, shape.vocabulary, tokenizer)


def config_for(target: Loaded, **more: Any) -> DraftConfig:
    sizes = {"heads": 4, "kv_heads": 2, "head_dim": 12, "intermediate_size": 40, "layers": 2}
    return DraftConfig(
        hidden_size=32, **{**sizes, "rope_theta": 500.0, **more}, target=facts(target)
    )


def weights_for(config: DraftConfig) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(3)
    tensors = {
        name: (torch.randn(shape, generator=generator) * 0.2 + ("norm" in name)).bfloat16()
        for name, shape in config.shapes(len(IDS)).items()
    }
    return tensors | {"draft_ids": IDS.clone()}


# --- trained for a target ------------------------------------------------------------------------


def as_llama(config: DraftConfig, tensors: dict[str, Tensor], target: Loaded) -> Any:
    """The same model as transformers knows it, its ends those of the target's own module."""
    llama = AutoConfig.for_model(
        "llama",
        **{
            **SIZES,
            "vocab_size": ROWS,
            "num_hidden_layers": config.layers,
            "head_dim": config.head_dim,
            "intermediate_size": config.intermediate_size,
            "rms_norm_eps": config.rms_norm_eps,
            "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_theta},
            "tie_word_embeddings": False,
        },
    )
    model: Any = AutoModelForCausalLM.from_config(llama, dtype=torch.float32).eval()
    source: Any = AutoModelForCausalLM.from_pretrained(target.path, dtype=torch.float32)
    state = {
        "lm_head.weight": source.get_output_embeddings().weight,
        "model.embed_tokens.weight": source.get_input_embeddings().weight,
        "model.norm.weight": tensors["norm.weight"],
    }
    names = {"input_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm"}
    for name, tensor in tensors.items():
        if name.startswith("layers."):
            _, index, part, _ = name.split(".")
            module = f"self_attn.{part}" if part[0] in "qkvo" else f"mlp.{part}"
            state[f"model.layers.{index}.{names.get(part, module)}.weight"] = tensor
    model.load_state_dict(state)
    return model


@torch.no_grad()
@pytest.mark.parametrize("family", TARGETS)
def test_a_trained_drafter_is_a_llama_between_the_targets_ends(
    targets: Callable[..., Loaded], family: str, tmp_path: Path
) -> None:
    target = targets(family)
    config = config_for(target)
    tensors = weights_for(config)
    save(tmp_path / "draft", config, tensors)
    found = open_tied(tmp_path / "draft", target, CPU)
    scale = {"granite": 2.0}.get(family, 1.0)
    wanted = [
        rows[:, IDS.long()] / scale for rows in eager(as_llama(config, tensors, target), TEXTS)
    ]
    assert_equal(paged(found.decoder), wanted)
    assert found.vocabulary.to_target.tolist() == IDS.tolist()
    assert torch.equal(found.vocabulary.to_draft, torch.arange(ROWS))
    assert found.vocabulary.kept is None


@torch.no_grad()
@pytest.mark.parametrize("family", ["llama", "qwen2"])
@pytest.mark.skipif(not can_pack(torch.bfloat16), reason="this torch packs no bfloat16 weights")
def test_in_bfloat16_it_shares_the_targets_embedding_and_packs_rows_of_its_head(
    targets: Callable[..., Loaded], family: str, tmp_path: Path
) -> None:
    target = targets(family, HALF)
    config = config_for(target)
    save(tmp_path / "draft", config, weights_for(config))
    found = open_tied(tmp_path / "draft", target, HALF)
    own, other = found.decoder, target.decoder
    assert isinstance(own, Decoder)
    assert isinstance(other, Decoder)
    assert own.embedding.data_ptr() == other.embedding.data_ptr()
    assert (own.compiled is None) == (other.compiled is None)
    hidden = torch.randn(5, 32).bfloat16()
    torch.testing.assert_close(
        own.logits(hidden), other.logits(hidden)[:, IDS.long()], rtol=0.01, atol=0.01
    )
    layers = 2 * (32 * (96 + 48) + 3 * 32 * 40 + 2 * 32) + 32
    angles = 2 * other.shape.context_length * 12
    assert found.weight_bytes == 2 * (layers + len(IDS) * 32 + angles)


def test_a_checkpoint_comes_back_as_it_was_saved(
    targets: Callable[..., Loaded], tmp_path: Path
) -> None:
    config = config_for(targets(), rms_norm_eps=1e-6)
    tensors = weights_for(config)
    trained = {name: each.float() for name, each in tensors.items()} | {"draft_ids": IDS.long()}
    save(tmp_path / "draft", config, trained)
    assert load_config(tmp_path / "draft", DraftConfig) == config
    back = load_tensors(tmp_path / "draft", config)
    assert back.keys() == tensors.keys()
    assert all(torch.equal(back[name], each) for name, each in tensors.items())
    assert back["draft_ids"].dtype == torch.int32


def test_saving_again_replaces_the_checkpoint_and_keeps_what_lies_beside_it(
    targets: Callable[..., Loaded], tmp_path: Path
) -> None:
    place = tmp_path / "runs" / "draft"
    config = config_for(targets())
    tensors = weights_for(config)
    save(place, config, tensors)
    (place / "README.md").write_text("a model card")
    smaller = config_for(targets(), layers=1)
    save(place, smaller, weights_for(smaller))
    assert load_config(place, DraftConfig).layers == 1
    assert load_tensors(place, smaller).keys() == smaller.shapes(1).keys()
    assert (place / "README.md").read_text() == "a model card"
    with pytest.raises(StartError):
        save(place, config, weights_for(smaller))
    assert load_config(place, DraftConfig) == smaller, "a refused one leaves the old one"
    assert [each.name for each in place.parent.iterdir()] == ["draft"]


def drop(name: str) -> Callable[[dict[str, Tensor]], Any]:
    return lambda tensors: tensors.pop(name)


def put(name: str, value: Tensor) -> Callable[[dict[str, Tensor]], Any]:
    return lambda tensors: tensors.update({name: value})


NAN = torch.full((32,), float("nan"), dtype=torch.bfloat16)
BROKEN: dict[str, tuple[Callable[[dict[str, Tensor]], Any], str]] = {
    "a missing tensor": (drop("layers.1.up_proj.weight"), "it lacks layers.1.up_proj.weight"),
    "no ids": (drop("draft_ids"), "it lacks draft_ids"),
    "a strange tensor": (put("lm_head.weight", torch.zeros(2, 2)), "holds lm_head.weight, which"),
    "another shape": (put("norm.weight", torch.ones(31)), "norm.weight is [31] instead of [32]"),
    "ids of two dimensions": (put("draft_ids", IDS[None]), "draft_ids is [1, 302] instead of [1]"),
    "not a number": (put("norm.weight", NAN), "norm.weight holds numbers that are not finite"),
    "whole numbers": (
        put("norm.weight", torch.ones(32).int()),
        "norm.weight holds no floating-point",
    ),
    "no whole ids": (put("draft_ids", IDS.float()), "draft_ids are torch.float32, not int32"),
    "ids that fall": (put("draft_ids", IDS.flip(0).clone()), "draft_ids do not ascend"),
    "an id twice": (put("draft_ids", torch.tensor([4, 4, 5])), "draft_ids do not ascend"),
    "an id beyond": (put("draft_ids", torch.tensor([4, ROWS])), "not within the target's"),
    "a negative id": (put("draft_ids", torch.tensor([-1, 4])), "not within the target's"),
    "no ids at all": (put("draft_ids", torch.tensor([], dtype=torch.int32)), "not within"),
}


@pytest.mark.parametrize("how", BROKEN)
def test_a_broken_checkpoint_is_refused_with_what_is_wrong(
    targets: Callable[..., Loaded], how: str, tmp_path: Path
) -> None:
    target = targets()
    config = config_for(target)
    save(tmp_path / "draft", config, weights_for(config))
    change, message = BROKEN[how]
    file = tmp_path / "draft" / "model.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file)
    with pytest.raises(StartError) as raised:
        open_tied(tmp_path / "draft", target, CPU)
    assert raised.value.code == "drafter_broken"
    assert str(file) in str(raised.value)
    assert message in str(raised.value)
    with pytest.raises(StartError) as raised:  # and none like it can be written
        save(tmp_path / "again", config, tensors)
    assert message in str(raised.value)
    assert not (tmp_path / "again").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 2}, "Invalid enum value 2 - at `$.version`"),
        ({"format": "paceline-mtp"}, "at `$.format`"),
        ({"layers": 0}, "Expected `int` >= 1 - at `$.layers`"),
        ({"layers": 257}, "Expected `int` <= 256 - at `$.layers`"),
        ({"head_dim": 13}, "head_dim is odd"),
        ({"kv_heads": 3}, "heads is no multiple of kv_heads"),
        ({"hidden_size": 64}, "hidden_size is not target.hidden_size"),
        ({"rope_theta": 0}, "at `$.rope_theta`"),
        ({"rms_norm_eps": "small"}, "at `$.rms_norm_eps`"),
        ({"tie": True}, "unknown field `tie`"),
        ({"target": {"layers": 1}}, "at `$.target`"),
        ({"head_dim": 10}, "q_proj.weight is [48, 32] instead of [40, 32]"),
    ],
)
def test_a_config_that_is_not_one_is_refused_with_the_field(
    targets: Callable[..., Loaded], change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    target = targets()
    config = config_for(target)
    save(tmp_path, config, weights_for(config))
    told = json.loads(msgspec.json.encode(config)) | change
    (tmp_path / "config.json").write_text(json.dumps(told))
    with pytest.raises(StartError) as raised:
        open_tied(tmp_path, target, CPU)
    assert raised.value.code == "drafter_broken"
    assert message in str(raised.value)
    assert "`paceline train draft`" in str(raised.value)


def test_files_that_are_missing_or_cut_are_told(
    targets: Callable[..., Loaded], tmp_path: Path
) -> None:
    target = targets()
    config = config_for(target)
    save(tmp_path, config, weights_for(config))
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-10])
    with pytest.raises(StartError, match="is not complete"):
        open_tied(tmp_path, target, CPU)
    file.unlink()
    with pytest.raises(StartError, match=r"holds no model\.safetensors"):
        open_tied(tmp_path, target, CPU)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("hidden_size", 64, "its target has a hidden size of 64, this one of 32"),
        ("vocabulary", 1000, "its target embeds 1000 tokens, this one 900"),
        ("tokenizer", "another", "its target has another tokenizer"),
    ],
)
def test_a_drafter_of_another_target_is_refused(
    targets: Callable[..., Loaded], field: str, value: Any, message: str, tmp_path: Path
) -> None:
    target = targets()
    config = config_for(target)
    other = msgspec.structs.replace(config.target, **{field: value})
    sizes = {"hidden_size": other.hidden_size, "target": other}
    config = msgspec.structs.replace(config, **sizes)
    save(tmp_path, config, weights_for(config))
    with pytest.raises(StartError) as raised:
        open_draft_model(tmp_path, target, CPU)
    assert raised.value.code == "drafter_unfit"
    assert message in str(raised.value)


@torch.no_grad()
def test_a_trained_drafter_can_draft_fewer_tokens_than_it_was_trained_for(
    targets: Callable[..., Loaded], tmp_path: Path
) -> None:
    target = targets()
    config = config_for(target)
    tensors = weights_for(config)
    save(tmp_path, config, tensors)
    whole = assemble(config, tensors, target.decoder, CPU, "memory")
    few = open_draft_model(tmp_path, target, CPU, draft_vocabulary=50)
    assert few.vocabulary.to_target.tolist() == IDS[:50].tolist()
    assert_equal(paged(few.decoder), [rows[:, :50] for rows in paged(whole.decoder)])


# --- any causal language model -------------------------------------------------------------------


def opened(path: Path, target: Loaded, **more: Any) -> DraftModel:
    with torch.no_grad():
        return open_draft_model(path, target, CPU, **more)


def logits_of(path: Path) -> list[Tensor]:
    """Of TEXTS by transformers."""
    with torch.no_grad():
        model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
        return eager(model, TEXTS)


@torch.no_grad()
@pytest.mark.parametrize("family", ["qwen3", "gpt_neox"])
def test_a_model_with_the_targets_tokenizer_drafts_every_token(
    targets: Callable[..., Loaded], family: str, tmp_path: Path
) -> None:
    found = opened(folder(tmp_path, family, byte_level()), targets())
    assert found.vocabulary.whole
    assert found.note == "the target's tokenizer"
    assert_equal(paged(found.decoder), logits_of(tmp_path))


@torch.no_grad()
@pytest.mark.parametrize(
    ("family", "tied"),
    [("llama", False), ("qwen2", True), ("granite", True), ("gpt_neox", False)],
)
def test_a_smaller_draft_vocabulary_takes_columns_of_the_logits(
    targets: Callable[..., Loaded], family: str, tied: bool, tmp_path: Path
) -> None:
    path = folder(tmp_path, family, byte_level(), tie_word_embeddings=tied)
    target = targets()
    text = torch.tensor([700, 700, 700, 55, 55, 300])
    found = opened(path, target, draft_vocabulary=6, ranking=ranked(text, ROWS))
    ids = found.vocabulary.to_target
    assert {0, 1, 55, 300, 700} <= set(ids.tolist()), "special ids and the most frequent ones"
    assert len(ids) == 6
    got = [found.vocabulary.keep(rows) for rows in paged(found.decoder)]
    assert_equal(got, [rows[:, ids] for rows in logits_of(path)])
    lean = isinstance(found.decoder, Decoder)
    assert lean == (family != "gpt_neox")
    assert (found.vocabulary.kept is None) == lean, "a lean head computes what is drafted only"


@torch.no_grad()
def test_a_model_with_another_tokenizer_drafts_the_tokens_that_both_have(
    targets: Callable[..., Loaded], tmp_path: Path
) -> None:
    path = folder(tmp_path, "llama", sentencepiece())
    target = targets()
    found = opened(path, target)
    draft = sentencepiece().backend_tokenizer
    ids = found.vocabulary.to_target.tolist()
    own = target.tokenizer.backend_tokenizer
    columns = [
        draft.token_to_id("</s>")
        if own.id_to_token(token) == "<|end|>"
        else int(found.vocabulary.to_draft[token])
        for token in ids
    ]
    got = [found.vocabulary.keep(rows) for rows in paged(found.decoder)]
    assert_equal(got, [rows[:, columns] for rows in logits_of(path)])
    word = own.token_to_id("Ġthe")
    assert columns[ids.index(word)] == draft.token_to_id("▁the")
    assert "another tokenizer" in found.note
    assert f"{len(ids):,} shared tokens" in found.note


def test_a_model_whose_tokenizer_shares_too_little_is_refused(
    targets: Callable[..., Loaded], tmp_path: Path
) -> None:
    path = folder(tmp_path, "llama", letters())
    with pytest.raises(StartError, match="256 shared tokens") as raised:
        opened(path, targets())
    assert raised.value.code == "drafter_unfit"
    assert str(path) in str(raised.value)


@pytest.mark.parametrize(("own", "context"), [(64, 64), (128, 128), (512, 128)])
def test_its_context_is_the_targets_or_its_own_shorter_one(
    targets: Callable[..., Loaded], own: int, context: int, tmp_path: Path
) -> None:
    path = folder(tmp_path, "qwen2", byte_level(), max_position_embeddings=own)
    assert opened(path, targets()).decoder.shape.context_length == context


def test_a_model_that_is_not_served_cannot_draft(
    targets: Callable[..., Loaded], tmp_path: Path
) -> None:
    path = folder(tmp_path, "llama", byte_level())
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | {"model_type": "mamba"}))
    with pytest.raises(StartError) as raised:
        opened(path, targets())
    assert raised.value.code == "model_unsupported"


def lose(name: str) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        weights = load_file(path / "model.safetensors")
        del weights[name]
        save_file(weights, path / "model.safetensors", {"format": "pt"})

    return change


def configured(**fields: Any) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        told = json.loads((path / "config.json").read_text()) | fields
        (path / "config.json").write_text(json.dumps(told))

    return change


ROPE = {"rope_parameters": {"rope_type": "bogus", "rope_theta": 1.0}}
UNFIT: dict[str, tuple[Callable[[Path], None], str]] = {
    "a missing tensor": (lose("model.layers.1.mlp.up_proj.weight"), "layers.1.mlp.up_proj.weight"),
    "more layers": (configured(num_hidden_layers=5), "layers.2."),
    "other sizes": (configured(intermediate_size=20), "instead of [20, 32]"),
    "another kind": (configured(model_type="mamba"), "'mamba' model"),
    "the tensors of another kind": (configured(model_type="bert", is_decoder=True), "bert."),
    "an unknown rope": (configured(**ROPE), "transformers does not know 'bogus'"),
    "no tokenizer": (lambda path: (path / "tokenizer.json").unlink(), "tokenizer"),
    "code of its own": (configured(model_type="evil", auto_map={"AutoModel": "e.E"}), "never run"),
}


@pytest.mark.parametrize("how", UNFIT)
def test_what_cannot_draft_is_told_without_its_weights_as_by_loading_it(
    targets: Callable[..., Loaded], how: str, tmp_path: Path
) -> None:
    change, told = UNFIT[how]
    path = folder(tmp_path, "llama", byte_level())
    change(path)
    said: list[tuple[str, str]] = []
    for go in (lambda: check_draft_model(path, targets()), lambda: opened(path, targets())):
        with pytest.raises(StartError) as raised:
            go()
        said.append((raised.value.code, raised.value.message))
    assert said[0] == said[1]
    assert told in said[0][1]


def test_a_tokenizer_that_shares_too_little_is_told_without_the_weights(
    targets: Callable[..., Loaded], tmp_path: Path
) -> None:
    with pytest.raises(StartError, match="256 shared tokens"):
        check_draft_model(folder(tmp_path, "llama", letters()), targets())


@pytest.mark.parametrize("family", TARGETS)
def test_what_can_draft_is_not_refused(
    targets: Callable[..., Loaded], family: str, tmp_path: Path
) -> None:
    path = folder(tmp_path, family, byte_level(), **TARGETS[family])
    check_draft_model(path, targets())
    if family == "qwen2":  # tied, so that all of it is in the model without its head
        weights = load_file(path / "model.safetensors")
        bare = {name.removeprefix("model."): tensor for name, tensor in weights.items()}
        save_file(bare, path / "model.safetensors", {"format": "pt"})
        check_draft_model(path, targets())
        assert opened(path, targets()).vocabulary.whole


def test_what_is_kept_of_a_draft_model_loads_the_same(
    targets: Callable[..., Loaded], tmp_path: Path
) -> None:
    path = folder(tmp_path / "model", "llama", sentencepiece())
    first, second = (
        opened(path, targets(), cache_dir=tmp_path / "cache").vocabulary for _ in range(2)
    )
    assert torch.equal(first.to_draft, second.to_draft)
    assert torch.equal(first.to_target, second.to_target)


def test_memory_of_weights_counts_what_is_shared_once(
    targets: Callable[..., Loaded], tmp_path: Path
) -> None:
    path = folder(tmp_path, "qwen2", byte_level(), tie_word_embeddings=True)
    found = opened(path, targets())
    shapes = {name: each.shape for name, each in load_file(path / "model.safetensors").items()}
    matrices = sum(shape.numel() for shape in shapes.values() if len(shape) == 2)
    assert isinstance(found.decoder, Decoder)
    embedding = found.decoder.embedding
    if packs(embedding.device, embedding.dtype):  # the tied head is a copy in another order
        matrices += embedding.numel()
        assert 4 * (matrices + 2 * 128 * 8) <= found.weight_bytes < 6 * (matrices + 2 * 128 * 8)
    else:
        assert found.weight_bytes == 4 * (matrices + 2 * 128 * 8)
