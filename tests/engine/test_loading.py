"""Model folders: what loads, and a clear error for each way one can be broken."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer

from engine.build import Target, open_engine, open_target
from engine.config import EngineConfig
from engine.device import Device
from engine.errors import StartError
from engine.loading import find_model, load
from engine.wire import Sampling, Submit
from tests.engine.scripted import ScriptedController
from tests.engine.test_decoder import tiny

CPU = Device(torch.device("cpu"), torch.float32)


@pytest.fixture
def folder(target: Target, tmp_path: Path) -> Path:
    """A complete tiny qwen2 folder with the embedded model's tokenizer."""
    tokenizer = AutoTokenizer.from_pretrained(target.loaded.path)
    tokenizer.save_pretrained(tmp_path)
    tiny("qwen2", vocab_size=len(tokenizer)).save_pretrained(tmp_path)
    return tmp_path


def test_any_llama_like_folder_serves(folder: Path) -> None:
    config = EngineConfig(model=str(folder), dtype="float32", device="cpu", kv_tokens=1024)
    target = open_target(config, lambda stage, fraction, message: None)
    controller = ScriptedController(lambda step, request, names: ("ngram", 3))
    engine, intake = open_engine(config, target, controller, lambda event: None)
    sampling = Sampling(temperature=0.0, max_tokens=12, ignore_eos=True)
    request = intake.request(Submit(id="a", sampling=sampling, prompt="one two one two"))
    engine.submit(request)
    while engine.step():
        engine.scheduler.pages.check()
    assert request.produced == 12


def test_a_folder_without_config_is_incomplete(folder: Path) -> None:
    (folder / "config.json").unlink()
    with pytest.raises(StartError, match=r"config\.json") as caught:
        load(folder, CPU, 0)
    assert caught.value.code == "model_incomplete"


def test_a_config_that_is_no_json_is_named(folder: Path) -> None:
    (folder / "config.json").write_text("{")
    with pytest.raises(StartError, match="not valid JSON"):
        load(folder, CPU, 0)


def test_an_unsupported_family_is_refused_by_name(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "mamba"}))
    with pytest.raises(StartError, match="'mamba'") as caught:
        load(folder, CPU, 0)
    assert caught.value.code == "model_unsupported"


def test_half_downloaded_weights_are_refused(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[: weights.stat().st_size // 2])
    with pytest.raises(StartError, match="complete") as caught:
        load(folder, CPU, 0)
    assert caught.value.code == "model_broken"


def test_missing_weights_are_refused(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    with pytest.raises(StartError) as caught:
        load(folder, CPU, 0)
    assert caught.value.code == "model_broken"


def test_weights_that_do_not_fit_the_config_are_refused(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    layers = {"num_hidden_layers": 5, "layer_types": ["full_attention"] * 5}
    (folder / "config.json").write_text(json.dumps({**config, **layers}))
    with pytest.raises(StartError, match=r"missing .*layers\.4") as caught:
        load(folder, CPU, 0)
    assert caught.value.code == "model_broken"


def test_a_missing_tokenizer_is_refused(folder: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink()
    with pytest.raises(StartError, match="no tokenizer"):
        load(folder, CPU, 0)


@pytest.mark.parametrize("name", ["/no/such/folder", "./nowhere", "nowhere"])
def test_a_wrong_path_says_what_can_be_given(name: str, tmp_path: Path) -> None:
    with pytest.raises(StartError, match="config") as caught:
        find_model(name, tmp_path)
    assert caught.value.code == "model_not_found"


def test_a_file_is_no_model(tmp_path: Path) -> None:
    file = tmp_path / "weights.bin"
    file.write_bytes(b"x")
    with pytest.raises(StartError, match="is a file"):
        find_model(str(file), tmp_path)


def test_a_pool_that_does_not_fit_names_the_numbers(folder: Path) -> None:
    config = EngineConfig(model=str(folder), dtype="float32", device="cpu", kv_tokens=10**12)
    with pytest.raises(StartError, match="MiB") as caught:
        open_target(config, lambda stage, fraction, message: None)
    assert caught.value.code == "memory_too_small"
    assert "Lower --kv-tokens" in caught.value.message


def test_a_pool_too_small_to_serve_says_to_raise_it(folder: Path) -> None:
    config = EngineConfig(model=str(folder), dtype="float32", device="cpu", kv_tokens=5)
    with pytest.raises(StartError, match="Raise --kv-tokens"):
        open_target(config, lambda stage, fraction, message: None)
