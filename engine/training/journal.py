"""Finished texts kept in parts on disk, so that a run that was interrupted goes on."""

from __future__ import annotations

import json
import os
import shutil
import time
import zipfile
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from engine.errors import StartError
from engine.training.undisturbed import undisturbed

PART_TEXTS = 128
PART_S = 60.0
"""A part is written when it holds so many texts, or the last was written so long ago."""

Ids = NDArray[np.int32]

UNREADABLE = (
    OSError, ValueError, TypeError, KeyError, EOFError, AttributeError, NotImplementedError,
    RuntimeError, IndexError, MemoryError, zipfile.BadZipFile, zlib.error,
)  # fmt: skip
"""What numpy raises for a file that is no whole .npz."""


class Journal:
    """Token ids by number, in a folder that belongs to one run: `run` is what its texts depend on.

    Raises StartError when the folder is of another run, and OSError when it cannot be written."""

    def __init__(self, folder: Path, run: str) -> None:
        self.texts: dict[int, Ids] = {}
        self._folder = folder
        self._fresh: list[int] = []
        self._written = time.monotonic()
        folder.mkdir(parents=True, exist_ok=True)
        about = folder / "run.json"
        if not about.exists():
            _replace(about, json.dumps({"run": run}).encode())
        elif _run_of(about) != run:
            raise StartError(
                "other_run",
                f"{folder} holds the beginning of a run with other options, prompts or another "
                "model. Run it with what it was begun with, give another file, or remove it.",
            )
        self._parts = 0
        """Number of the next part: beyond all that there are, for some may have been removed."""
        for path in sorted(folder.glob("part-*.npz")):
            self._read(path)
            self._parts = max(self._parts, _number_of(path) + 1)

    def add(self, number: int, tokens: list[int]) -> None:
        """Keep a text; it is on disk with the next part."""
        self.texts[number] = np.array(tokens, dtype=np.int32)
        self._fresh.append(number)
        if len(self._fresh) >= PART_TEXTS or time.monotonic() - self._written > PART_S:
            self.write()

    def write(self) -> None:
        """Write what is not on disk yet."""
        self._written = time.monotonic()
        if not self._fresh:
            return
        texts = [self.texts[number] for number in self._fresh]
        path = self._folder / f"part-{self._parts:06d}.npz"
        scratch = path.with_suffix(".tmp")
        with undisturbed():
            with scratch.open("wb") as file:
                np.savez(
                    file,
                    numbers=np.array(self._fresh, dtype=np.int64),
                    offsets=offsets_of(texts),
                    tokens=flat(texts),
                )
            os.replace(scratch, path)
            self._parts += 1
            self._fresh = []

    @staticmethod
    def remove(folder: Path) -> None:
        """Remove a folder of journals, when what they hold is kept elsewhere."""
        shutil.rmtree(folder)

    def _read(self, path: Path) -> None:
        try:
            with np.load(path, allow_pickle=False) as part:
                numbers, offsets, tokens = part["numbers"], part["offsets"], part["tokens"]
            for place, number in enumerate(numbers.tolist()):
                self.texts[number] = tokens[offsets[place] : offsets[place + 1]]
        except UNREADABLE as error:
            raise StartError(
                "part_broken", f"{path} cannot be read ({error}). Remove it and run again."
            ) from error


def offsets_of(texts: list[Ids]) -> NDArray[np.int64]:
    """Where each text begins when they stand one after the other, and where the last ends."""
    return np.cumsum([0, *map(len, texts)], dtype=np.int64)


def flat(texts: list[Ids]) -> Ids:
    """The ids of all texts, one after the other."""
    return np.concatenate([np.zeros(0, dtype=np.int32), *texts])


def _number_of(part: Path) -> int:
    """Raises StartError for a file that no journal wrote."""
    digits = part.stem.removeprefix("part-")
    if not digits.isdecimal():
        raise StartError("part_broken", f"{part} is no part of a run. Remove it and run again.")
    return int(digits)


def _run_of(about: Path) -> str:
    try:
        return str(json.loads(about.read_bytes())["run"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StartError(
            "part_broken", f"{about} cannot be read ({error}). Remove {about.parent}."
        ) from error


def _replace(path: Path, content: bytes) -> None:
    scratch = path.with_suffix(".tmp")
    scratch.write_bytes(content)
    os.replace(scratch, path)
