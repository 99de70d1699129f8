"""What a load through transformers found out, kept so that the next start goes without it."""

from __future__ import annotations

import contextlib
import hashlib
import secrets
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor

from engine.dense import Dense, StoredWeights
from engine.folder import Folder

VERSION = 2
"""Raise when a rule changes by which a model is checked, described or refused."""
LIBRARIES = ("transformers", "tokenizers", "safetensors")
TEMPLATES = "additional_chat_templates"
"""The one folder in a model's folder that transformers reads."""
HASHED_BYTES = 64 * 1024 * 1024
"""Files that are no weights are hashed up to this size; 10 MB take about 10 ms."""
NOTES = 4
"""Kept of one folder: servers of other types or libraries may share the cache."""
_SUM_BYTES = hashlib.sha256().digest_size


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


def note_key(folder: Folder, dtype: torch.dtype) -> str:
    """Changes with every file of the folder. Weights are told by their inode and times, which no
    program can set back; hashing gigabytes at every start is slow."""
    weights = set(folder.files.values())
    files: list[tuple[object, ...]] = []
    for path in sorted([*folder.path.iterdir(), *folder.path.glob(f"{TEMPLATES}/*")]):
        try:
            status = path.stat()
            small = path.is_file() and status.st_size <= HASHED_BYTES and path not in weights
            content = hashlib.sha256(path.read_bytes()).digest() if small else b""
        except OSError as error:  # nobody's: a link to nowhere, another user's file
            files.append((path.name, error.errno))
            continue
        times = (status.st_mtime_ns, status.st_ctime_ns)
        files.append((path.name, status.st_size, status.st_ino, *times, content))
    libraries = [(name, version(name)) for name in LIBRARIES]
    place = str(folder.path.resolve())
    told = (VERSION, place, files, libraries, str(dtype), torch.__version__)
    return hashlib.sha256(repr(told).encode()).hexdigest()


def recall(folder: Folder, key: str, cache_dir: Path) -> Prepared | None:
    """What was kept under the folder's note_key, or None when nothing was or it is damaged."""
    try:
        note = _path(cache_dir, folder, key).read_bytes()
        if hashlib.sha256(note[_SUM_BYTES:]).digest() != note[:_SUM_BYTES]:
            return None
        kept = msgspec.msgpack.decode(note[_SUM_BYTES:], type=Prepared)
    except (OSError, msgspec.MsgspecError):
        return None
    return kept if kept.key == key else None


def keep(
    folder: Folder,
    key: str,
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
    weights and angles. key: the folder's note_key before the load; a folder that changed during it
    is not noted. Best effort: without it the next start is slower, and nothing else."""
    vocabulary = _vocabulary(tokenizer)
    if vocabulary is None or not _same(folder, dtype, model, dense, angles):
        return
    names = tuple(name for name, _ in model.named_parameters())
    prepared = Prepared(key, dense, names, stop_ids, context_limit, vocabulary)
    with contextlib.suppress(OSError):
        if note_key(folder, dtype) == key:
            _write(_path(cache_dir, folder, key), msgspec.msgpack.encode(prepared))


def _path(cache_dir: Path, folder: Folder, key: str) -> Path:
    place = hashlib.sha256(str(folder.path.resolve()).encode()).hexdigest()
    return cache_dir / "prepared" / f"{place[:16]}-{key[:16]}.msgpack"


def _write(path: Path, content: bytes) -> None:
    """Write a note with its checksum at once, and remove older ones of the same folder. Raises
    OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_suffix(f".{secrets.token_hex(8)}")  # processes of two machines may share it
    try:
        scratch.write_bytes(hashlib.sha256(content).digest() + content)
        scratch.replace(path)
    finally:
        scratch.unlink(missing_ok=True)
    place, _, _ = path.name.partition("-")
    aged = sorted(path.parent.glob(f"{place}-*"), key=lambda note: -note.stat().st_mtime_ns)
    for note in aged[NOTES:]:
        note.unlink(missing_ok=True)


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
