"""A GGUF file as a Hugging Face folder: converted once into the cache directory."""

from __future__ import annotations

import hashlib
import re
import tempfile
from pathlib import Path
from typing import Any

from engine.embedded import locked
from engine.errors import StartError
from engine.files import open_regular

CONVERSION = 1
"""Raise when the conversion writes something else, so that old folders are made anew."""
MAGIC = b"GGUF"
PART = re.compile(r"-\d{5}-of-\d{5}$")
STEM_LENGTH = 60
DONE = "converted.json"
"""Written last into a converted folder."""


def ensure_converted(gguf: Path, cache_dir: Path, progress: Any = None) -> Path:
    """The folder that `gguf` was converted to, made now if it is not there yet.

    A file that was replaced (path, size or time differ) is converted anew. Safe to call from
    several processes at once. Raises StartError when the file cannot be converted."""
    report = progress or (lambda fraction, message: None)
    _check(gguf)
    folder = cache_dir / "models" / f"{gguf.stem[:STEM_LENGTH]}-{_mark(gguf)}"
    if (folder / DONE).exists():
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with locked(folder.parent / "lock", report):
            if not (folder / DONE).exists():
                _convert(gguf, folder, report)
    except OSError as error:
        raise StartError(
            "cache_not_writable",
            f"Cannot write the converted {gguf.name} to {folder.parent}: "
            f"{error.strerror or error}. Free space there, or choose another folder with "
            "PACELINE_CACHE_DIR.",
        ) from error
    return folder


def _check(gguf: Path) -> None:
    try:
        with open_regular(gguf) as file:
            magic = file.read(len(MAGIC))
    except OSError as error:
        raise StartError(
            "model_not_found", f"{gguf} cannot be read: {error.strerror or error}."
        ) from error
    if magic != MAGIC:
        raise StartError(
            "model_broken", f"{gguf} does not begin as a GGUF file does; download it again."
        )
    if PART.search(gguf.stem):
        raise StartError(
            "model_incomplete",
            f"{gguf.name} is one part of a split GGUF file; join the parts with "
            "`llama-gguf-split --merge` and give the whole.",
        )


def _mark(gguf: Path) -> str:
    """Changes with the file. Not a hash of its bytes: reading gigabytes at every start is slow."""
    status = gguf.stat()
    told = f"{gguf.resolve()}|{status.st_size}|{status.st_mtime_ns}|{CONVERSION}"
    return hashlib.sha256(told.encode()).hexdigest()[:12]


def _convert(gguf: Path, folder: Path, report: Any) -> None:
    # Imported only here: a file that is already converted needs neither.
    from engine.conversion import convert_gguf, stored_dtype, write_json

    with tempfile.TemporaryDirectory(prefix=".convert-", dir=folder.parent) as scratch:
        made = Path(scratch) / "model"
        made.mkdir()
        try:
            convert_gguf(gguf, made, report, stored_dtype(gguf))
        except OSError:
            raise
        except Exception as error:  # transformers and gguf raise many types for an odd file
            reason = str(error).strip().splitlines()[0][:300] if str(error).strip() else ""
            raise StartError(
                "conversion_failed",
                f"Cannot convert {gguf}: {reason or type(error).__name__}. Check that the file is "
                "complete, or take the model's safetensors release.",
            ) from error
        write_json(made / DONE, {"source": str(gguf), "conversion": CONVERSION})
        if folder.exists():
            folder.rename(Path(scratch) / "old")
        made.rename(folder)
