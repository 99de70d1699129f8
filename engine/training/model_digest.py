"""Which model training data is of: a digest of its weights, and of its chat template."""

from __future__ import annotations

import hashlib
from pathlib import Path

from engine.errors import RequestError, StartError
from engine.folder import read_folder
from engine.text import Text
from engine.wire import Message

BLOCKS = 64
BLOCK_BYTES = 4096
"""Of every file so many blocks of so many bytes are looked at, spread over all of it."""
MOST_HEADER_BYTES = 1 << 20
_MARK = "paceline0users0text"


def weights_digest(path: Path) -> str:
    """SHA-256 over every weight file of a model folder: its name, its size, its header and sampled
    blocks; it takes milliseconds for files of any size. Raises StartError."""
    found = hashlib.sha256()
    try:
        for file in sorted(set(read_folder(path).files.values())):
            size = file.stat().st_size
            found.update(f"{file.name}\0{size}\0".encode())
            with file.open("rb") as stream:
                length = stream.read(8)
                found.update(length)
                found.update(stream.read(min(int.from_bytes(length, "little"), MOST_HEADER_BYTES)))
                for index in range(BLOCKS):
                    stream.seek(max(size - BLOCK_BYTES, 0) * index // (BLOCKS - 1))
                    found.update(stream.read(BLOCK_BYTES))
    except OSError as error:
        raise StartError(
            "model_unreadable", f"cannot read the weights of {path}: {error.strerror or error}."
        ) from error
    return found.hexdigest()


def template_digest(text: Text) -> str:
    """SHA-256 over a user's turn as the chat template writes it; "" where there is no template."""
    try:
        written = text.write((Message("user", _MARK),))
    except RequestError:
        return ""
    return hashlib.sha256(written.encode()).hexdigest()
