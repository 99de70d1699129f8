"""A second start without transformers' modules: the same model, tokenizer, errors and warnings."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from functools import cache
from pathlib import Path

import msgspec
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer

from engine.build import Target
from engine.decoder import Decoder
from engine.device import Device
from engine.errors import RequestError, StartError
from engine.loading import Loaded, load
from engine.prepared import NOTES
from engine.stored_tokenizer import StoredTokenizer
from engine.text import Text
from engine.wire import Message
from tests.engine.test_families import paged, tiny

CPU = Device(torch.device("cpu"), torch.float32)
FAMILIES = ("llama", "qwen2", "qwen3", "smollm3", "granite")
CHAT = (Message("system", "Be brief."), Message("user", "Why is 1 234,50 € naïve? <|im_end|>"))


SIZE = 1000
"""Tokens that are kept of the embedded model's 49,152: the tokenizer is read some hundred times."""


@pytest.fixture(scope="module")
def whole(target: Target) -> list[Path]:
    """The files of the embedded model's tokenizer."""
    names = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
    return [target.loaded.path / name for name in names]


@pytest.fixture(scope="module")
def tokenizer_files(whole: list[Path], tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The same with its first tokens only."""
    folder = tmp_path_factory.mktemp("tokenizer")
    definition = json.loads(whole[0].read_text("utf-8"))
    model = definition["model"]
    model["vocab"] = {text: token for text, token in model["vocab"].items() if token < SIZE}
    model["merges"] = [pair for pair in model["merges"] if "".join(pair) in model["vocab"]]
    (folder / whole[0].name).write_text(json.dumps(definition), "utf-8")
    return [folder / whole[0].name, *(Path(shutil.copy(file, folder)) for file in whole[1:])]


@pytest.fixture(scope="module")
def llama(tokenizer_files: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return store("llama", tokenizer_files, tmp_path_factory.mktemp("llama") / "model")


@pytest.fixture
def folder(llama: Path, tmp_path: Path) -> Path:
    """A tiny llama model with the small tokenizer."""
    return Path(shutil.copytree(llama, tmp_path / "model", copy_function=shutil.copy))


@cache
def vocabulary(tokenizer: Path) -> int:
    return len(AutoTokenizer.from_pretrained(tokenizer))


def store(family: str, tokenizer_files: list[Path], folder: Path) -> Path:
    folder.mkdir()
    for file in tokenizer_files:
        shutil.copy(file, folder)
    tiny(family, vocab_size=vocabulary(tokenizer_files[0].parent)).save_pretrained(folder)
    return folder


def load_twice(folder: Path, device: Device = CPU) -> tuple[Loaded, Loaded]:
    cache = folder.parent / "cache"
    first, second = (load(folder, device, 0, cache) for _ in range(2))
    return first, second


def kept(folder: Path) -> list[Path]:
    return sorted((folder.parent / "cache").glob("prepared/*"))


def was_recalled(loaded: Loaded) -> bool:
    return isinstance(loaded.tokenizer, StoredTokenizer)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_second_load_computes_exactly_what_the_first_did(
    family: str, tokenizer_files: list[Path], tmp_path: Path
) -> None:
    first, second = load_twice(store(family, tokenizer_files, tmp_path / "model"))
    assert not was_recalled(first)
    assert was_recalled(second)
    assert second.decoder.shape == first.decoder.shape
    for mine, theirs in zip(paged(second.decoder), paged(first.decoder), strict=True):
        assert torch.equal(mine, theirs)
    assert second.stop_ids == first.stop_ids
    assert second.architecture == first.architecture == family


def test_packed_bfloat16_weights_are_the_same_too(folder: Path) -> None:
    first, second = load_twice(folder, Device(torch.device("cpu"), torch.bfloat16))
    assert was_recalled(second)
    ids, places = torch.arange(12), torch.arange(12)
    mine, theirs = (
        each.decoder.logits(
            each.decoder.forward(ids, places, lambda layer, q, k, v, *_: q.flatten(1))
        )
        for each in (second, first)
    )
    assert torch.equal(mine, theirs)


def test_the_second_tokenizer_writes_and_reads_as_the_first(
    whole: list[Path], tmp_path: Path
) -> None:
    loads = load_twice(store("llama", whole, tmp_path / "model"))
    first, second = (Text(each.tokenizer) for each in loads)
    assert second.write(CHAT) == first.write(CHAT)
    assert second.render(CHAT) == first.render(CHAT)
    assert second.encode_whole("Wörter\n\t 12345") == first.encode_whole("Wörter\n\t 12345")
    assert second.definition() == first.definition()
    ids = list(range(0, 49000, 97))
    assert second.decode(ids) == first.decode(ids)


def test_a_template_refuses_as_it_did(folder: Path) -> None:
    template = folder / "chat_template.jinja"
    template.write_text("{{ bos_token }}{{ raise_exception('no system role') }}")
    first, second = (Text(each.tokenizer) for each in load_twice(folder))
    for text in (first, second):
        with pytest.raises(RequestError, match="no system role"):
            text.write(CHAT)


def test_a_model_without_a_template_still_has_none(folder: Path) -> None:
    (folder / "chat_template.jinja").unlink()
    _, second = load_twice(folder)
    assert was_recalled(second)
    with pytest.raises(RequestError, match="no chat template"):
        Text(second.tokenizer).write(CHAT)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_file_that_changed_is_read_anew(folder: Path, name: str) -> None:
    load_twice(folder)
    status = (folder / name).stat()
    os.utime(folder / name, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    assert not was_recalled(load(folder, CPU, 0, folder.parent / "cache"))


def test_a_tokenizer_of_the_same_size_and_time_is_read_anew(folder: Path) -> None:
    load_twice(folder)
    file = folder / "tokenizer.json"
    status, definition = file.stat(), json.loads(file.read_text("utf-8"))
    vocabulary = definition["model"]["vocab"]
    one, other = "Ġto", "Ġof"
    vocabulary[one], vocabulary[other] = vocabulary[other], vocabulary[one]
    file.write_text(json.dumps(definition), "utf-8")
    load_twice(folder)
    size = file.stat().st_size
    vocabulary[one], vocabulary[other] = vocabulary[other], vocabulary[one]
    file.write_text(json.dumps(definition), "utf-8")
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert file.stat().st_size == size
    loaded = load(folder, CPU, 0, folder.parent / "cache")
    assert not was_recalled(loaded)
    assert loaded.tokenizer.convert_tokens_to_ids(one) == vocabulary[one]


def test_weights_that_are_replaced_at_the_same_size_and_time_are_read_anew(folder: Path) -> None:
    load_twice(folder)
    file = folder / "model.safetensors"
    status = file.stat()
    with file.open("r+b") as stream:
        stream.seek(-4, os.SEEK_END)
        stream.write(bytes(4))
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert not was_recalled(load(folder, CPU, 0, folder.parent / "cache"))


def test_a_folder_that_changes_while_it_is_loaded_is_not_noted(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = AutoTokenizer.from_pretrained

    def changed_after(path: Path, **more: object) -> object:
        tokenizer = read(path, **more)
        (folder / "chat_template.jinja").write_text("another", "utf-8")
        return tokenizer

    monkeypatch.setattr(AutoTokenizer, "from_pretrained", changed_after)
    load(folder, CPU, 0, folder.parent / "cache")
    assert not kept(folder)


def test_a_link_to_nowhere_in_the_folder_does_not_matter(folder: Path) -> None:
    (folder / "extra.txt").symlink_to(folder / "missing")
    assert was_recalled(load_twice(folder)[1])


def test_another_dtype_is_read_anew(folder: Path) -> None:
    load_twice(folder)
    half = Device(torch.device("cpu"), torch.bfloat16)
    assert not was_recalled(load(folder, half, 0, folder.parent / "cache"))


def test_a_damaged_note_costs_a_slow_start_and_is_written_again(folder: Path) -> None:
    load_twice(folder)
    (note,) = kept(folder)
    note.write_bytes(note.read_bytes()[:100])
    first, second = load_twice(folder)
    assert not was_recalled(first)
    assert was_recalled(second)


def test_a_note_with_one_wrong_byte_is_not_believed(folder: Path) -> None:
    load_twice(folder)
    (note,) = kept(folder)
    content = bytearray(note.read_bytes())
    content[-100] ^= 1  # inside a text, so that it still decodes
    note.write_bytes(content)
    assert not was_recalled(load(folder, CPU, 0, folder.parent / "cache"))


@pytest.mark.parametrize("name", ["parameters", "vocabulary"])
def test_a_note_that_does_not_fit_the_files_costs_a_slow_start(
    folder: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    load_twice(folder)
    (note,) = kept(folder)
    found = msgspec.msgpack.decode(note.read_bytes()[32:])
    if name == "parameters":
        found["parameters"] = ["model.missing.weight"]
    else:
        found["vocabulary"]["definition"] = "{}"
    content = msgspec.msgpack.encode(found)
    note.write_bytes(hashlib.sha256(content).digest() + content)
    first, second = load_twice(folder)
    assert not was_recalled(first)
    assert was_recalled(second)
    assert "does not fit" in caplog.text


def test_notes_of_a_folder_that_changed_often_do_not_pile_up(folder: Path) -> None:
    for number in range(NOTES + 2):
        (folder / "README.md").write_text(f"{number}", "utf-8")
        latest = load_twice(folder)
        assert was_recalled(latest[1])
    assert len(kept(folder)) == NOTES


def test_a_cache_that_cannot_be_written_costs_a_slow_start(folder: Path) -> None:
    (folder.parent / "cache").write_text("a file is in the way")
    first, second = load_twice(folder)
    assert not was_recalled(second)
    assert torch.equal(paged(second.decoder)[0], paged(first.decoder)[0])


def test_weights_that_transformers_renames_are_never_read_directly(folder: Path) -> None:
    stored = load_file(folder / "model.safetensors")
    renamed = {name.removeprefix("model."): value for name, value in stored.items()}
    save_file(renamed, folder / "model.safetensors", {"format": "pt"})
    first, second = load_twice(folder)
    assert not was_recalled(second)
    assert not kept(folder)
    assert torch.equal(paged(second.decoder)[0], paged(first.decoder)[0])


def test_tensors_that_the_config_does_not_use_stay_unused(folder: Path) -> None:
    stored = load_file(folder / "model.safetensors")
    odd = "model.layers.0.self_attn.q_proj"
    stored[f"{odd}.bias"] = torch.ones(len(stored[f"{odd}.weight"]))
    save_file(stored, folder / "model.safetensors", {"format": "pt"})
    first, second = load_twice(folder)
    assert was_recalled(second)
    assert torch.equal(paged(second.decoder)[0], paged(first.decoder)[0])


def test_a_family_outside_the_lean_decoder_goes_through_transformers_every_time(
    tokenizer_files: list[Path], tmp_path: Path
) -> None:
    folder = store("gpt_oss", tokenizer_files, tmp_path / "model")
    _, second = load_twice(folder)
    assert not isinstance(second.decoder, Decoder)
    assert not kept(folder)


def test_the_second_start_refuses_a_context_that_is_too_long(folder: Path) -> None:
    load_twice(folder)
    with pytest.raises(StartError) as caught:
        load(folder, CPU, 100_000, folder.parent / "cache")
    assert caught.value.code == "context_too_long"


def test_a_shorter_context_is_served_from_the_same_note(folder: Path) -> None:
    load_twice(folder)
    cache = folder.parent / "cache"
    short = load(folder, CPU, 64, cache)
    assert was_recalled(short)
    assert short.decoder.shape.context_length == 64
    assert torch.equal(paged(short.decoder)[0], paged(load(folder, CPU, 64).decoder)[0])


def test_ignored_end_ids_are_named_at_every_start(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [3, 10**6]}))
    load_twice(folder)
    assert caplog.text.count("ignored end-of-sequence ids [1000000]") == 2


def test_the_weights_can_be_replaced_while_they_are_served(folder: Path) -> None:
    _, second = load_twice(folder)
    before = paged(second.decoder)[0]
    with (folder / "model.safetensors").open("r+b") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(0)
        file.write(bytes(size))
    assert torch.equal(paged(second.decoder)[0], before)
