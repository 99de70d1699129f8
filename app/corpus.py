"""`paceline corpus`: corpora loaded into a running server, listed and removed."""

from __future__ import annotations

import argparse
import itertools
import json
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import numpy as np

from app.failures import Failure, SettingsError
from app.keys import date
from app.progress import Bars
from app.remote import call, connected

CHUNK_BYTES = 256 * 1024
POLL_S = 0.3
LINES = "application/x-ndjson"
HEADS = ("name", "state", "documents", "tokens", "MiB", "loaded", "by")
NUMBERS = ("documents", "tokens", "MiB")
KINDS = {".txt": "text/plain", ".jsonl": LINES, ".ndjson": LINES, ".npz": LINES}


def load(options: argparse.Namespace) -> int:
    """Upload a file and wait until its tokens are indexed."""
    path = Path(options.file)
    if not path.exists():
        raise SettingsError(f"No such file: {path}.")
    kind = KINDS.get(path.suffix.lower())
    if kind is None:
        raise SettingsError(
            f"{path} is none of {', '.join(KINDS)}. Give plain text, JSON lines with text or "
            "token_ids, or arrays tokens and offsets."
        )
    with Bars() as bars, connected(options) as client:

        def content() -> Iterator[bytes]:
            chunks = lines(path) if path.suffix.lower() == ".npz" else chunks_of(path)
            for done, chunk in chunks:
                yield chunk
                bars.update("upload", done, path.name)

        answer = call(client, "PUT", address(options.name), content(), {"Content-Type": kind})
        bars.update("upload", 1.0, path.name)
        if not answer:
            raise _gone(options.name)
        corpus = follow(client, answer, bars)
    if corpus["state"] == "loading":
        print(f"Stored {options.name}. {corpus['reason']} It is indexed then by itself.")
    else:
        documents, tokens = (
            counted(corpus["documents"], "document"),
            counted(corpus["tokens"], "token"),
        )
        print(f"Loaded {options.name}: {documents}, {tokens}")
    return 0


def show(options: argparse.Namespace) -> int:
    """A row for each corpus, and below it the reason of one that failed or waits. Nothing is cut,
    however narrow the terminal is."""
    with connected(options) as client:
        corpora = call(client, "GET", "/api/corpora")["corpora"]
    rows = [HEADS, *map(_row, corpora)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row, corpus in zip(rows, [None, *corpora], strict=True):
        cells = [
            cell.rjust(width) if head in NUMBERS else cell.ljust(width)
            for head, cell, width in zip(HEADS, row, widths, strict=True)
        ]
        print("  ".join(cells).rstrip())
        if corpus and corpus["reason"]:
            print(f"    {corpus['reason']}")
    return 0


def _row(corpus: dict[str, Any]) -> tuple[str, ...]:
    """Under HEADS."""
    state = corpus["state"]
    return (
        corpus["name"],
        f"{state} {corpus['progress']:.0%}" if state == "loading" else state,
        f"{corpus['documents']:,}",
        "-" if corpus["tokens"] is None else f"{corpus['tokens']:,}",
        f"{max(0.01, corpus['bytes'] / 2**20):,.2f}",
        date(corpus["created_at"]),
        corpus["created_by"],
    )


def remove(options: argparse.Namespace) -> int:
    with connected(options) as client:
        call(client, "DELETE", address(options.name))
    print(f"Removed {options.name}")
    return 0


def follow(client: httpx.Client, loaded: dict[str, Any], bars: Bars) -> dict[str, Any]:
    """The corpus once it is ready, or waits for an engine that is away. Raises Failure."""
    name = loaded["name"]
    while True:
        found = call(client, "GET", "/api/corpora")["corpora"]
        corpus = next((one for one in found if one["name"] == name), None)
        if corpus is None or corpus["created_at"] != loaded["created_at"]:
            raise _gone(name)
        if corpus["state"] == "failed":
            raise Failure(f"The corpus {name} is stored but cannot be used: {corpus['reason']}")
        bars.update("index", corpus["progress"], counted(corpus["indexed_tokens"], "token"))
        if corpus["state"] == "ready" or corpus["reason"]:
            return corpus
        time.sleep(POLL_S)


def counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _gone(name: str) -> Failure:
    return Failure(f"The corpus {name} was removed or replaced meanwhile. Load it again.")


def chunks_of(path: Path) -> Iterator[tuple[float, bytes]]:
    """The file in chunks, each with the share that is done after it."""
    try:
        size, done = max(1, path.stat().st_size), 0
        with path.open("rb") as file:
            while chunk := file.read(CHUNK_BYTES):
                done += len(chunk)
                yield done / size, chunk
    except OSError as error:
        raise SettingsError(f"Cannot read {path}: {error.strerror}.") from None


def lines(path: Path) -> Iterator[tuple[float, bytes]]:
    """Likewise the sequences of an .npz as JSON lines: sequence i is tokens[offsets[i] :
    offsets[i + 1]]."""
    try:
        with np.load(path, allow_pickle=False) as arrays:
            tokens, offsets = arrays["tokens"], arrays["offsets"].astype(np.int64)
    except OSError as error:
        raise SettingsError(f"Cannot read {path}: {error.strerror or error}.") from None
    except KeyError:
        raise SettingsError(f"{path} lacks one of the arrays tokens and offsets.") from None
    except (ValueError, TypeError, AttributeError, zipfile.BadZipFile) as error:
        raise SettingsError(f"{path} is not an .npz file of numbers: {error}.") from None
    if (
        tokens.ndim != 1
        or tokens.dtype.kind not in "iu"
        or offsets.ndim != 1
        or len(offsets) < 2
        or (np.diff(offsets) < 0).any()
        or not 0 <= offsets[0] <= offsets[-1] <= len(tokens)
    ):
        raise SettingsError(
            f"{path}: tokens must be a row of integers, and offsets rise from 0 to their number."
        )
    for batch in range(0, len(offsets) - 1, 256):
        starts = offsets[batch : batch + 257]
        text = "".join(
            json.dumps({"token_ids": tokens[start:end].tolist()}) + "\n"
            for start, end in itertools.pairwise(starts)
        )
        yield (batch + len(starts) - 1) / (len(offsets) - 1), text.encode()


def address(name: str) -> str:
    return f"/api/corpora/{quote(name, safe='')}"
