"""A model folder on disk: what it holds, and what is wrong with it, before anything is loaded."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.errors import StartError

CONFIG = "config.json"
SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json")
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")
MAX_HEADER_BYTES = 100_000_000
"""The safetensors format's own limit."""
LFS_MARK = b"version https://git-lfs"


@dataclass(frozen=True)
class Folder:
    """A folder whose files are all there. family: its model_type. parameters: stored weights,
    counted from the safetensors headers. config: config.json as it stands. files: where each
    tensor is stored."""

    path: Path
    family: str
    config: dict[str, Any]
    parameters: int
    files: dict[str, Path]


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
    headers = read_shapes(path, names)
    if not any(name in names for name in TOKENIZER_FILES):
        raise _incomplete(
            f"{path} holds no tokenizer ({' or '.join(TOKENIZER_FILES)}); "
            "download those files of the model too."
        )
    shapes = [shape for header in headers.values() for shape in header.values()]
    files = {name: path / file for file, header in headers.items() for name in header}
    return Folder(path, family, config, sum(map(math.prod, shapes)), files)


def read_shapes(path: Path, names: set[str]) -> dict[str, dict[str, list[int]]]:
    """Shapes of the tensors in each file, from the headers of the single file or of all shards."""
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


def read_header(file: Path) -> dict[str, list[int]]:
    """Shape of every tensor of a safetensors file, whose length must be what they add up to."""
    try:
        size = file.stat().st_size
        with file.open("rb") as stream:
            head = stream.read(8)
            if (head + stream.read(len(LFS_MARK) - 8)).startswith(LFS_MARK):
                raise _broken(
                    f"{file} is a Git LFS pointer, not the weights; run `git lfs pull` in its "
                    "folder, or download the file."
                )
            length = int.from_bytes(head, "little")
            if len(head) < 8 or length > min(size - 8, MAX_HEADER_BYTES):
                raise _truncated(file, size, None)
            stream.seek(8)
            header = json.loads(stream.read(length))
        tensors = {name: entry for name, entry in header.items() if name != "__metadata__"}
        end = max((entry["data_offsets"][1] for entry in tensors.values()), default=0)
        shapes = {name: [int(side) for side in entry["shape"]] for name, entry in tensors.items()}
    except OSError as error:
        raise _broken(f"{file} cannot be read: {error.strerror or error}.") from error
    except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
        raise _broken(
            f"{file} is not a safetensors file ({type(error).__name__}); download it again."
        ) from error
    if size != 8 + length + end:
        raise _truncated(file, size, 8 + length + end)
    return shapes


def read_json(file: Path) -> dict[str, Any]:
    try:
        value = json.loads(file.read_text("utf-8"))
    except OSError as error:
        raise _broken(f"{file} cannot be read: {error.strerror or error}.") from error
    except ValueError as error:
        raise _broken(f"{file} is not valid JSON: {error}. Download it again.") from error
    if not isinstance(value, dict):
        raise _broken(f"{file} is not a JSON object. Download it again.")
    return value


def _truncated(file: Path, size: int, expected: int | None) -> StartError:
    wanted = "" if expected is None else f", and {expected:,} are expected"
    return _broken(f"{file} is not complete: it has {size:,} bytes{wanted}. Download it again.")


def _broken(message: str) -> StartError:
    return StartError("model_broken", message)


def _incomplete(message: str) -> StartError:
    return StartError("model_incomplete", message)
