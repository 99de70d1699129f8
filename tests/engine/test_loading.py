"""Model folders: what loads, and a clear error for each way one can be broken."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer

from engine.build import Target, open_engine, open_target
from engine.config import EngineConfig
from engine.device import Device
from engine.errors import StartError
from engine.fallback import Fallback
from engine.folder import read_folder
from engine.host_memory import available_bytes
from engine.kv import bytes_per_token, open_pool
from engine.loading import load
from engine.locate import find_model
from engine.shape import AttentionKind, Shape
from engine.wire import Sampling, Submit
from tests.engine.scripted import ScriptedController
from tests.engine.test_families import tiny

CPU = Device(torch.device("cpu"), torch.float32)


@pytest.fixture(scope="module")
def complete(target: Target, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A complete tiny qwen2 folder with the embedded model's tokenizer."""
    folder = tmp_path_factory.mktemp("complete")
    tokenizer = AutoTokenizer.from_pretrained(target.loaded.path)
    tokenizer.save_pretrained(folder)
    tiny("qwen2", vocab_size=len(tokenizer)).save_pretrained(folder)
    return folder


@pytest.fixture
def folder(complete: Path, tmp_path: Path) -> Path:
    """A copy of it to break."""
    return Path(shutil.copytree(complete, tmp_path / "model"))


def shard(folder: Path) -> dict[str, str]:
    """Split the single weights file in two, as large models come. The index's weight_map."""
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(weights)
    halves = {"model-00001-of-00002.safetensors": names[:9]}
    halves["model-00002-of-00002.safetensors"] = names[9:]
    for file, held in halves.items():
        save_file({name: weights[name] for name in held}, folder / file, {"format": "pt"})
    where = {name: file for file, held in halves.items() for name in held}
    index = {"metadata": {"total_size": 1}, "weight_map": where}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return where


def change_config(folder: Path, **changes: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))


def serve(path: Path) -> list[int]:
    """Twelve greedy tokens, speculated, through the whole engine."""
    config = EngineConfig(model=str(path), dtype="float32", device="cpu", threads=1, kv_tokens=1024)
    target = open_target(config, lambda stage, fraction, message: None)
    controller = ScriptedController(lambda step, request, names: ("ngram", 3))
    engine, intake = open_engine(config, target, controller, lambda event: None)
    sampling = Sampling(temperature=0.0, max_tokens=12, ignore_eos=True)
    request = intake.request(Submit(id="a", sampling=sampling, prompt="one two one two"))
    engine.submit(request)
    while engine.step():
        engine.scheduler.pages.check()
    assert request.produced == 12
    return request.tokens


def test_a_folder_serves_whether_its_weights_are_one_file_or_shards(folder: Path) -> None:
    whole = serve(folder)
    shard(folder)
    assert serve(folder) == whole


def test_end_ids_that_the_model_has_no_logits_for_are_left_out_and_named(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = json.loads((folder / "config.json").read_text())
    size = config["vocab_size"]
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [3, size, -1]}))
    change_config(folder, eos_token_id=size + 5)
    stop_ids = load(folder, CPU, 0).stop_ids
    assert 3 in stop_ids
    assert all(0 <= token < size for token in stop_ids)
    assert f"ignored end-of-sequence ids [-1, {size}, {size + 5}]" in caplog.text


def test_a_family_outside_the_lean_decoder_serves(folder: Path) -> None:
    vocabulary = json.loads((folder / "config.json").read_text())["vocab_size"]
    tiny("gpt_oss", vocab_size=vocabulary).save_pretrained(folder)
    assert isinstance(load(folder, CPU, 0).decoder, Fallback)
    serve(folder)


def truncate(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[: weights.stat().st_size // 2])


def lose_shard(folder: Path) -> None:
    shard(folder)
    (folder / "model-00002-of-00002.safetensors").unlink()


def mix_shards(folder: Path) -> None:
    where = shard(folder)
    names = sorted(where)
    where[names[0]] = where[names[-1]]
    index = {"weight_map": where}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def point_outside(folder: Path) -> None:
    where = dict.fromkeys(shard(folder), "../model.safetensors")
    index = {"weight_map": where}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def pickle(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def lose_tokenizer(folder: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink()


def drop_key(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def reshape_key(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    weights["model.layers.1.mlp.up_proj.weight"] = torch.zeros(40, 32)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def shrink_embedding(folder: Path) -> None:
    tiny("qwen2", vocab_size=97).save_pretrained(folder)


def write(name: str, content: str | bytes) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)

    return damage


def change(**changes: Any) -> Callable[[Path], None]:
    return lambda folder: change_config(folder, **changes)


def remove(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def empty(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.mkdir()


LFS = "version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 1\n"
NO_TENSORS = struct.pack("<Q", 2) + b"{}"
ODD_HEADER = struct.pack("<Q", 14) + b'{"a": {"b": 1}}'[:14]
MAMBA = '{"model_type": "mamba"}'
QUANTISED: list[dict[str, Any]] = [
    {"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm"},
    {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False},
    {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]},
    {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {}},
]
CODE = {"AutoModelForCausalLM": "modeling_mine.Mine"}


@pytest.mark.parametrize(
    ("damage", "code", "told"),
    [
        (empty, "model_incomplete", "is empty"),
        (remove("config.json"), "model_incomplete", r"holds no config\.json"),
        (write("config.json", "{"), "model_broken", "not valid JSON"),
        (write("config.json", "[1]"), "model_broken", "not a JSON object"),
        (write("config.json", b"\xff\xfe"), "model_broken", "not valid JSON"),
        (write("config.json", "{}"), "model_broken", "names no model_type"),
        (change(model_type="mine"), "model_unsupported", "'mine' model.*does not have"),
        (change(model_type="mine", auto_map=CODE), "model_unsupported", "never run"),
        (write("config.json", MAMBA), "model_unsupported", "'mamba' model"),
        (change(model_type="t5"), "model_unsupported", "encoder-decoder"),
        (change(model_type="llava"), "model_unsupported", "multimodal"),
        *[
            (
                change(quantization_config=settings),
                "model_unsupported",
                rf"quantised \({settings['quant_method']}\); take the bfloat16 or the GGUF release",
            )
            for settings in QUANTISED
        ],
        (change(num_hidden_layers="many"), "model_broken", "cannot be loaded"),
        (remove("model.safetensors"), "model_incomplete", "holds no weights"),
        (pickle, "model_pickled", "pickle.*save_pretrained"),
        (truncate, "model_broken", "not complete.*Download it again"),
        (write("model.safetensors", ""), "model_broken", "not complete"),
        (write("model.safetensors", b"\xff" * 64), "model_broken", "not complete"),
        (write("model.safetensors", LFS), "model_broken", "git lfs pull"),
        (write("model.safetensors", ODD_HEADER), "model_broken", "not a safetensors file"),
        (write("model.safetensors", NO_TENSORS), "model_broken", "weights are missing"),
        (lose_shard, "model_incomplete", r"lacks 1 of 2 weight files.*00002-of-00002"),
        (mix_shards, "model_broken", "different downloads"),
        (point_outside, "model_broken", "outside the folder"),
        (write("model.safetensors.index.json", "{}"), "model_broken", "no weight_map"),
        (drop_key, "model_broken", r"missing .*layers\.1\.mlp\.up_proj"),
        (reshape_key, "model_broken", r"up_proj\.weight \[40, 32\] instead of \[48, 32\]"),
        (lose_tokenizer, "model_incomplete", "no tokenizer"),
        (write("tokenizer.json", "{"), "model_broken", "[Tt]okenizer"),
        (shrink_embedding, "model_broken", "tokenizer has 49152 tokens.*embeds 97"),
    ],
)
def test_a_broken_folder_is_refused_with_what_is_wrong(
    damage: Callable[[Path], None], code: str, told: str, folder: Path
) -> None:
    damage(folder)
    with pytest.raises(StartError, match=f"(?s){told}") as caught:
        load(folder, CPU, 0)
    assert caught.value.code == code
    assert str(folder) in caught.value.message


def test_code_of_a_built_in_family_is_not_needed_and_not_run(folder: Path) -> None:
    (folder / "modeling_mine.py").write_text("raise SystemExit('ran')")
    change_config(folder, auto_map={"AutoModelForCausalLM": "modeling_mine.Mine"})
    assert load(folder, CPU, 0).architecture == "qwen2"


def test_layers_that_the_weights_lack_are_named(folder: Path) -> None:
    layers = {"num_hidden_layers": 5, "layer_types": ["full_attention"] * 5}
    change_config(folder, **layers)
    with pytest.raises(StartError, match=r"missing .*layers\.2"):
        load(folder, CPU, 0)


def test_a_context_beyond_the_models_is_refused_with_the_number_to_set(folder: Path) -> None:
    with pytest.raises(StartError, match=r"--context-length 129.*set 128 or less") as caught:
        load(folder, CPU, 129)
    assert caught.value.code == "context_too_long"
    assert load(folder, CPU, 100).decoder.shape.context_length == 100


@pytest.mark.parametrize("name", ["/no/such/folder", "./nowhere", "nowhere"])
def test_a_wrong_path_says_what_can_be_given(name: str, tmp_path: Path) -> None:
    with pytest.raises(StartError, match="config") as caught:
        find_model(name, tmp_path)
    assert caught.value.code == "model_not_found"


def test_a_file_is_no_model(tmp_path: Path) -> None:
    file = tmp_path / "weights.bin"
    file.write_bytes(b"x")
    with pytest.raises(StartError, match="is a file") as caught:
        find_model(str(file), tmp_path)
    assert caught.value.code == "model_not_a_folder"
    with pytest.raises(StartError, match="is a file"):
        read_folder(file)


class SmallDevice(Device):
    """A CPU with `free` bytes left."""

    free = 0

    def free_bytes(self) -> int:
        return self.free


def small(free: int) -> Device:
    device = SmallDevice(CPU.torch_device, CPU.dtype)
    SmallDevice.free = free
    return device


def test_weights_that_do_not_fit_are_refused_with_the_numbers_before_they_are_read(
    folder: Path,
) -> None:
    counted = sum(weight.numel() for weight in load_file(folder / "model.safetensors").values())
    assert read_folder(folder).parameters == counted
    numbers = rf"needs {4 * counted / 2**20:.2f} MiB for its {counted:,} .* MiB are free.*bfloat16"
    with pytest.raises(StartError, match=numbers) as caught:
        load(folder, small(4 * counted - 1), 0)
    assert caught.value.code == "memory_too_small"


WINDOWED = AttentionKind(4, 2, 8, 6, 0.3, window=4)
SHAPE = Shape(2, 4, 2, 8, 32, 97, 100, (AttentionKind(4, 4, 16, 16, 0.3), WINDOWED))
TOKEN_BYTES = 4 * (4 * (16 + 16) + 2 * (8 + 6))


def test_the_pool_takes_the_asked_fraction_of_the_memory_left() -> None:
    assert bytes_per_token(SHAPE, torch.float32) == TOKEN_BYTES
    pool = open_pool(SHAPE, small(1000 * TOKEN_BYTES), 16, 0, 0.5)
    assert pool.pages == 500 // 16
    assert [tuple(storage.shape) for storage in pool.keys] == [(496, 4, 16), (496, 2, 8)]
    assert [tuple(storage.shape) for storage in pool.values] == [(496, 4, 16), (496, 2, 6)]
    assert open_pool(SHAPE, small(10**9), 16, 0, 0.9).pages == 64 * 100 // 16


def test_a_pool_smaller_than_one_full_context_is_refused_with_the_number_to_set() -> None:
    with pytest.raises(StartError, match=r"--context-length 80 or less.*--memory-fraction"):
        open_pool(SHAPE, small(180 * TOKEN_BYTES), 16, 0, 0.5)
    with pytest.raises(StartError, match=r"--kv-tokens 50 is too few.*--context-length 64 or less"):
        open_pool(SHAPE, small(10**6 * TOKEN_BYTES), 16, 50, 0.5)


def test_more_kv_tokens_than_fit_are_refused_with_the_number_to_set() -> None:
    with pytest.raises(StartError, match="Set --kv-tokens 496 or less") as caught:
        open_pool(SHAPE, small(1000 * TOKEN_BYTES), 16, 600, 0.5)
    assert caught.value.code == "memory_too_small"


@pytest.mark.parametrize(
    ("files", "room"),
    [
        ({}, 2048),
        ({"proc/self/cgroup": "0::/box"}, 2048),
        (
            {
                "proc/self/cgroup": "0::/box/inner",
                "sys/fs/cgroup/box/memory.max": "700",
                "sys/fs/cgroup/box/memory.current": "500",
                "sys/fs/cgroup/box/memory.stat": "anon 400\ninactive_file 100",
                "sys/fs/cgroup/box/inner/memory.max": "max",
                "sys/fs/cgroup/box/inner/memory.current": "500",
                "sys/fs/cgroup/box/inner/memory.stat": "inactive_file 100",
            },
            300,
        ),
        (
            {
                "proc/self/cgroup": "4:memory:/box\n1:cpu:/\n0::/",
                "sys/fs/cgroup/memory/box/memory.limit_in_bytes": "600",
                "sys/fs/cgroup/memory/box/memory.usage_in_bytes": "400",
                "sys/fs/cgroup/memory/box/memory.stat": "total_inactive_file 50",
            },
            250,
        ),
    ],
)
def test_free_memory_is_what_the_machine_and_its_control_groups_leave(
    files: dict[str, str], room: int, tmp_path: Path
) -> None:
    machine = "MemTotal: 9 kB\nMemAvailable: 2 kB\n"
    for name, text in {"proc/meminfo": machine, **files}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert available_bytes(tmp_path) == room
