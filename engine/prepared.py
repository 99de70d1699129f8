"""What a load through transformers found out, kept so that the next start goes without it."""

from __future__ import annotations

import contextlib
import hashlib
import os
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor

from engine.dense import Dense, StoredWeights
from engine.folder import Folder

VERSION = 1
"""Raise when a rule changes by which a model is checked, described or refused."""
LIBRARIES = ("transformers", "tokenizers", "safetensors")


class Vocabulary(msgspec.Struct, frozen=True):
    """A tokenizer. definition: the text of a tokenizer.json. special: named special tokens."""

    definition: str
    template: str | None
    special: dict[str, str]


class Prepared(msgspec.Struct, frozen=True):
    """All that serving a dense model takes besides its weights. parameters: their names.
    stop_ids: as its files name them. context_limit: None when its config tells none."""

    key: str
    dense: Dense
    parameters: tuple[str, ...]
    stop_ids: tuple[int, ...]
    context_limit: int | None
    vocabulary: Vocabulary

    def weights(self, folder: Folder) -> StoredWeights:
        return StoredWeights({name: folder.files[name] for name in self.parameters})


def recall(folder: Folder, dtype: torch.dtype, cache_dir: Path) -> Prepared | None:
    """What was kept of exactly these files, read by exactly these libraries."""
    key = _key(folder, dtype)
    try:
        kept = msgspec.msgpack.decode(_path(cache_dir, key).read_bytes(), type=Prepared)
    except (OSError, msgspec.MsgspecError):
        return None
    return kept if kept.key == key else None


def keep(
    folder: Folder,
    dtype: torch.dtype,
    cache_dir: Path,
    model: Any,
    dense: Dense,
    angles: tuple[Tensor, Tensor],
    tokenizer: Any,
    stop_ids: tuple[int, ...],
    context_limit: int | None,
) -> None:
    """Keep it for the next start, when a decoder built from the files has exactly this module's
    weights and angles. Best effort: without it the next start is slower, and nothing else."""
    vocabulary = _vocabulary(tokenizer)
    if vocabulary is None or not _same(folder, dtype, model, dense, angles):
        return
    key = _key(folder, dtype)
    path = _path(cache_dir, key)
    scratch = path.with_suffix(f".{os.getpid()}")
    names = tuple(name for name, _ in model.named_parameters())
    prepared = Prepared(key, dense, names, stop_ids, context_limit, vocabulary)
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch.write_bytes(msgspec.msgpack.encode(prepared))
        scratch.replace(path)


def _key(folder: Folder, dtype: torch.dtype) -> str:
    """Changes with every file of the folder. Not a hash of their bytes: reading gigabytes at every
    start is slow."""
    files = []
    for path in sorted(folder.path.iterdir()):
        status = path.stat()
        files.append((path.name, status.st_size, status.st_mtime_ns))
    libraries = [(name, version(name)) for name in LIBRARIES]
    told = (VERSION, str(folder.path.resolve()), files, libraries, str(dtype), torch.__version__)
    return hashlib.sha256(repr(told).encode()).hexdigest()


def _path(cache_dir: Path, key: str) -> Path:
    return cache_dir / "prepared" / f"{key[:16]}.msgpack"


def _vocabulary(tokenizer: Any) -> Vocabulary | None:
    template = tokenizer.chat_template
    if not isinstance(template, str | None):
        return None
    definition = tokenizer.backend_tokenizer.to_str()
    return Vocabulary(definition, template, dict(tokenizer.special_tokens_map))


def _same(
    folder: Folder,
    dtype: torch.dtype,
    model: Any,
    dense: Dense,
    angles: tuple[Tensor, Tensor],
) -> bool:
    """Whether the files hold the module's parameters by their names."""
    own = dense.angles(len(angles[0]))
    if not all(torch.equal(mine, theirs) for mine, theirs in zip(own, angles, strict=True)):
        return False
    stored = StoredWeights(folder.files)
    for name, parameter in model.named_parameters():
        value = stored.get(name)
        if value is None or not torch.equal(value.to(dtype), parameter):
            return False
    return True
