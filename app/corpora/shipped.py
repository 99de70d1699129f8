"""The corpus that ships for the served model: read from the package, shown like a stored one."""

from __future__ import annotations

import itertools
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from app.corpora.upload import Piece, Upload, packed
from app.db.corpora import CorpusRecord
from engine.shipped import ROOT, corpus_for
from engine.wire import Hello

BY = "paceline"
"""Who loaded it, as it is shown."""


class Shipped:
    """Its record and, as of a stored corpus, its parts."""

    def __init__(self, record: CorpusRecord, upload: Upload) -> None:
        self.record = record
        self._upload = upload

    async def part(self, version: str, number: int) -> bytes | None:
        parts = self._upload.parts
        return parts[number] if version == self.record.version and number < len(parts) else None


def find_shipped(hello: Hello, root: Path = ROOT) -> Shipped | None:
    """That of the served model's tokenizer; None when none ships. Takes some 100 ms. Raises OSError
    and ValueError for a damaged file."""
    found = corpus_for(hello.tokenizer, root)
    if found is None:
        return None
    mark, path = found
    try:
        with np.load(path, allow_pickle=False) as arrays:
            tokens, offsets = arrays["tokens"].astype("<i4"), arrays["offsets"]
    except (KeyError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path} is not a file of tokens and offsets: {error}") from error
    if len(tokens) and int(tokens.max()) >= hello.vocabulary:
        raise ValueError(f"{path} has token ids outside the vocabulary of {hello.vocabulary}")
    upload = packed(_pieces(tokens, offsets.tolist()))
    record = CorpusRecord(
        name=f"{mark.name}-answers",
        version=f"shipped {path.stat().st_size}",
        created_at=path.stat().st_mtime,
        created_by=BY,
        documents=upload.documents,
        bytes=upload.bytes,
        token_ids=upload.token_ids,
        tokenizer=hello.tokenizer,
    )
    return Shipped(record, upload)


def _pieces(tokens: NDArray[np.int32], offsets: list[int]) -> Iterator[Piece]:
    for start, end in itertools.pairwise(offsets):
        if end > start:
            yield Piece(False, ids=tokens[start:end].tobytes())
