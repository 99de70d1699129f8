"""A model folder on disk: what it holds, and what is wrong with it, before anything is loaded."""

from __future__ import annotations

import json
import math
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from engine.errors import StartError
from engine.files import read_regular
from engine.stored_header import Stored, read_header

CONFIG = "config.json"
SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json")
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")
READ_BY_LIBRARIES = (".json", ".jinja", ".model", ".txt", ".safetensors")
"""Of the files of these endings some are opened by transformers and its kind."""
MAX_JSON_BYTES = 128 << 20
"""The largest of such a file that is known is a tokenizer.json of some 35 MB."""
MOST = {
    "vocab_size": 1 << 24,
    "hidden_size": 1 << 20,
    "n_embd": 1 << 20,
    "intermediate_size": 1 << 24,
    "head_dim": 1 << 16,
    "num_attention_heads": 1 << 16,
    "n_head": 1 << 16,
    "num_key_value_heads": 1 << 16,
    "num_hidden_layers": 1 << 14,
    "n_layer": 1 << 14,
}
"""Bounds the sizes of a transformers config, far above any model that is known."""
LAYERS = ("num_hidden_layers", "n_layer")


@dataclass(frozen=True)
class Folder:
    """A folder whose files are all there. family: its model_type. parameters: stored weights,
    counted from the safetensors headers. config: config.json as it stands, its sizes within
    bounds. files: where each tensor is stored; stored: as what."""

    path: Path
    family: str
    config: dict[str, Any]
    parameters: int
    files: dict[str, Path]
    stored: dict[str, Stored]


def read_folder(path: Path) -> Folder:
    """Check a Hugging Face folder's files. Raises StartError with what is wrong and what to do."""
    if path.exists() and not path.is_dir():
        raise StartError(
            "model_not_a_folder",
            f"{path} is a file; give the folder that holds {CONFIG} and the weights.",
        )
    try:
        names = {entry.name for entry in path.iterdir()}
    except OSError as error:
        raise StartError(
            "model_not_found", f"{path} cannot be read: {error.strerror or error}."
        ) from error
    if not names:
        raise _incomplete(f"{path} is empty; give a complete Hugging Face model folder.")
    if CONFIG not in names:
        raise _incomplete(f"{path} holds no {CONFIG}; give a complete Hugging Face model folder.")
    config = read_json(path / CONFIG)
    family = config.get("model_type")
    if not isinstance(family, str) or not family:
        raise _broken(f"{path / CONFIG} names no model_type; it is not a transformers model.")
    headers = read_headers(path, names)
    check_sizes(path / CONFIG, config, sum(map(len, headers.values())))
    _check_files(path)
    if not any(name in names for name in TOKENIZER_FILES):
        raise _incomplete(
            f"{path} holds no tokenizer ({' or '.join(TOKENIZER_FILES)}); "
            "download those files of the model too."
        )
    stored = {name: one for header in headers.values() for name, one in header.items()}
    files = {name: path / file for file, header in headers.items() for name in header}
    parameters = sum(math.prod(one.shape) for one in stored.values())
    return Folder(path, family, config, parameters, files, stored)


def check_sizes(file: Path, config: Mapping[str, Any], tensors: int) -> None:
    """Raise StartError when a size of a transformers config is one that no model has, before
    anything is made of that size. file: where it stands. tensors: how many are stored."""
    for name, most in MOST.items():
        value = config.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and not 1 <= value <= most:
            raise _broken(
                f"{file}: {name} is {str(value)[:24]}, and can be 1 to {most:,}. Take the file of "
                "the model itself."
            )
    for name in LAYERS:
        layers = config.get(name)
        if isinstance(layers, int) and layers > tensors:
            raise _broken(
                f"{file} tells {layers:,} layers, and weights are missing: {tensors:,} tensors are "
                "stored. Take all files from the same model."
            )


def _check_files(path: Path) -> None:
    """Raise StartError when a library that reads the folder's files would wait or never end."""
    for file in [*path.iterdir(), *path.glob("*/*.jinja")]:
        try:
            status = file.stat()
        except OSError:  # a link to nowhere, which they take for no file
            continue
        if file.suffix not in READ_BY_LIBRARIES or stat.S_ISDIR(status.st_mode):
            continue
        if not stat.S_ISREG(status.st_mode):
            raise _broken(f"{file} is not a regular file. Put the file itself there.")
        if file.suffix != ".safetensors" and status.st_size > MAX_JSON_BYTES:
            raise _broken(
                f"{file} has {status.st_size:,} bytes, more than the {MAX_JSON_BYTES:,} that are "
                "read. Take the file of the model itself."
            )


def read_headers(path: Path, names: set[str]) -> dict[str, dict[str, Stored]]:
    """The tensors in each file, from the headers of the single file or of all shards."""
    if SINGLE in names and INDEX not in names:
        return {SINGLE: read_header(path / SINGLE)}
    if INDEX not in names:
        raise _no_weights(path)
    index = read_json(path / INDEX).get("weight_map")
    if not isinstance(index, dict) or not index:
        raise _broken(f"{path / INDEX} has no weight_map; download it again.")
    shards = sorted({str(shard) for shard in index.values()})
    strange = [shard for shard in shards if Path(shard).name != shard]
    if strange:
        raise _broken(f"{path / INDEX} names {strange[0]!r}, which lies outside the folder.")
    missing = [shard for shard in shards if shard not in names]
    if missing:
        raise _incomplete(
            f"{path} lacks {len(missing)} of {len(shards)} weight files that {INDEX} names "
            f"({', '.join(missing[:3])}); download them again."
        )
    headers = {shard: read_header(path / shard) for shard in shards}
    for name, shard in index.items():
        if name not in headers[str(shard)]:
            raise _broken(
                f"{path / str(shard)} does not hold {name}, which {INDEX} expects there. "
                "The files are of different downloads; download all of them again."
            )
    return headers


def _no_weights(path: Path) -> StartError:
    pickles = sorted(file.name for pattern in PICKLES for file in path.glob(pattern))
    if pickles:
        return StartError(
            "model_pickled",
            f"{path} holds its weights as {pickles[0]}, a pickle, which can run code when it is "
            "loaded, so it is never read. Take the model's safetensors files, or convert it once "
            "on a machine where you trust it: AutoModelForCausalLM.from_pretrained(folder)"
            ".save_pretrained(new_folder).",
        )
    return _incomplete(
        f"{path} holds no weights ({SINGLE}, or shards with {INDEX}); download them too."
    )


def read_json(file: Path) -> dict[str, Any]:
    """The object in a file of at most MAX_JSON_BYTES. Raises StartError."""
    try:
        value: object = json.loads(read_regular(file, MAX_JSON_BYTES).decode("utf-8"))
    except OSError as error:
        raise _broken(f"{file} cannot be read: {error.strerror or error}.") from error
    except ValueError as error:
        raise _broken(f"{file} is not valid JSON: {error}. Download it again.") from error
    except RecursionError as error:
        raise _broken(f"{file} is nested too deeply. Download it again.") from error
    if not isinstance(value, dict):
        raise _broken(f"{file} is not a JSON object. Download it again.")
    return cast("dict[str, Any]", value)


def _broken(message: str) -> StartError:
    return StartError("model_broken", message)


def _incomplete(message: str) -> StartError:
    return StartError("model_incomplete", message)
