"""Files that somebody else named: only regular ones are read, and headers are checked."""

from __future__ import annotations

import json
import os
import socket
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from engine import folder as folders
from engine.errors import StartError
from engine.files import open_regular, read_regular
from engine.folder import read_folder, read_json
from engine.locate import find_model
from engine.stored_header import Stored, read_header


def pipe(path: Path) -> None:
    os.mkfifo(path)


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def listener(path: Path) -> None:
    here = os.open(path.parent, os.O_RDONLY)  # its whole path is too long for a socket's
    try:
        with socket.socket(socket.AF_UNIX) as sock:
            sock.bind(f"/proc/self/fd/{here}/{path.name}")
    finally:
        os.close(here)


def directory(path: Path) -> None:
    path.mkdir()


ODD: dict[str, Callable[[Path], None]] = {
    "it is a pipe": pipe,
    "it is a device": device,
    "it is a socket": listener,
    "it is a folder": directory,
}


@pytest.mark.parametrize("told", ODD)
def test_what_is_no_regular_file_is_told_and_nobody_waits_for_it(told: str, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    ODD[told](path)
    with pytest.raises(OSError, match=told):
        open_regular(path)
    with pytest.raises(StartError, match=rf"x\.json cannot be read: {told}"):
        read_json(path)
    with pytest.raises(StartError, match=rf"x\.json cannot be read: {told}"):
        read_header(path)


def test_a_link_to_a_file_is_read_and_a_longer_one_is_not(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    (tmp_path / "link").symlink_to("file")
    assert read_regular(tmp_path / "link", 5) == b"12345"
    with pytest.raises(OSError, match="more than 4 bytes"):
        read_regular(tmp_path / "link", 4)


def test_json_has_a_largest_size_and_depth(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "config.json"
    file.write_text("[" * 200_000)
    with pytest.raises(StartError, match="nested too deeply"):
        read_json(file)
    monkeypatch.setattr(folders, "MAX_JSON_BYTES", 1000)
    with pytest.raises(StartError, match="more than 1,000 bytes"):
        read_json(file)


@pytest.mark.parametrize(
    "name", ["tokenizer.json", "generation_config.json", "chat_template.jinja"]
)
def test_a_pipe_that_a_library_would_open_is_refused_before(name: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    (tmp_path / "vocab.json").write_text("{}")
    save_file({"a": torch.zeros(1)}, tmp_path / "model.safetensors")
    read_folder(tmp_path)
    os.mkfifo(tmp_path / name)
    with pytest.raises(StartError, match=f"{name} is not a regular file"):
        read_folder(tmp_path)


def test_a_pipe_named_as_a_gguf_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x.gguf")
    with pytest.raises(StartError, match="it is a pipe"):
        find_model(str(tmp_path / "x.gguf"), tmp_path / "cache")


@pytest.mark.parametrize(
    ("sizes", "told"),
    [
        ({"hidden_size": 10**15}, "hidden_size is 1000000000000000, and can be 1 to"),
        ({"num_hidden_layers": 10**15}, "num_hidden_layers is 1000000000000000,"),
        ({"num_hidden_layers": 10**400}, "num_hidden_layers is 1000"),
        ({"num_hidden_layers": 9}, "tells 9 layers, and weights are missing: 1 tensors"),
        ({"num_key_value_heads": -3}, "num_key_value_heads is -3"),
        ({"head_dim": 0}, "head_dim is 0"),
    ],
)
def test_sizes_that_no_model_has_are_refused(
    sizes: dict[str, Any], told: str, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", **sizes}))
    (tmp_path / "vocab.json").write_text("{}")
    save_file({"a": torch.zeros(1)}, tmp_path / "model.safetensors")
    with pytest.raises(StartError, match=told) as caught:
        read_folder(tmp_path)
    assert caught.value.code == "model_broken"


# --- headers --------------------------------------------------------------------------------------


def stored(path: Path, header: object, data: bytes = b"\0" * 8) -> Path:
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def entry(**other: Any) -> dict[str, Any]:
    return {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], **other}


HUGE = 1 << 40
WRONG: dict[str, object] = {
    "is not a JSON object": [],
    "describes no tensor under 'a'": {"a": 3},
    "'a' has no number type that is known": {"a": entry(dtype="X9")},
    "'a' has no shape of whole": {"a": entry(shape=[-2])},
    "'a' has no shape of whole numbers": {"a": entry(shape="2")},
    "'a' has no shape of whole numbers from": {"a": entry(shape=[2.0])},
    "'a' has no shape of whole numbers from 0": {"a": entry(shape=[1 << 41, 0])},
    "'a' has no place": {"a": entry(data_offsets=[-8, 0])},
    "'a' has no place in": {"a": entry(data_offsets=8)},
    "'a' has another number of bytes": {"a": entry(shape=[HUGE, HUGE])},
    "'a' begins at byte 10, not 0": {"a": entry(data_offsets=[10, 18])},
    "'b' begins at byte 0, not 8": {"a": entry(), "b": entry()},
    "__metadata__ is not an object of texts": {"__metadata__": {"a": 1}, "b": entry()},
}


@pytest.mark.parametrize("told", WRONG)
def test_a_header_that_does_not_fit_its_file_is_refused_in_words(told: str, tmp_path: Path) -> None:
    file = stored(tmp_path / "model.safetensors", WRONG[told])
    with pytest.raises(StartError) as caught:
        read_header(file)
    assert caught.value.code == "model_broken"
    assert f"{file} is not a safetensors file: " in caught.value.message
    assert told in caught.value.message
    if "whole numbers from 0" not in told:  # a side of an empty tensor is no matter to the library
        with pytest.raises(SafetensorError):
            safe_open(file, "pt")


def test_a_header_that_is_not_json_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    for text in (b"\xff" * 40, b"[" * 100_000, b"{"):
        file.write_bytes(struct.pack("<Q", len(text)) + text)
        with pytest.raises(StartError, match="is not a safetensors file: its header is n"):
            read_header(file)


def test_a_header_tells_types_and_shapes(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    tensors = {
        "a": torch.zeros(2, 3, dtype=torch.bfloat16), "b": torch.zeros(0, 5), "c": torch.tensor(1),
        "d": torch.zeros(7, dtype=torch.float8_e4m3fn), "e": torch.zeros(3, dtype=torch.bool),
    }  # fmt: skip
    save_file(tensors, file, {"format": "pt"})
    assert read_header(file) == {
        "a": Stored("BF16", [2, 3]), "b": Stored("F32", [0, 5]), "c": Stored("I64", []),
        "d": Stored("F8_E4M3", [7]), "e": Stored("BOOL", [3]),
    }  # fmt: skip
