"""Output of `paceline simulate` beside single small files: a folder of plots, a file that comes in
parts."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator
from pathlib import Path
from typing import BinaryIO

from app.bench.publish import in_place, part_of
from app.failures import Failure


def output_folder(path: str | None, option: str) -> Path | None:
    """The folder that the option names, made where there is none. Raises Failure when no file can
    be written there, which is better known before a run than after it."""
    if not path:
        return None
    folder = Path(path)
    part = part_of(folder / "plots")
    try:
        if folder.exists() and not folder.is_dir():
            raise Failure(f"{option} {folder} is a file: give the name of a folder.")
        folder.mkdir(parents=True, exist_ok=True)
        part.touch()
        part.unlink()
    except OSError as error:
        why = error.strerror or error
        raise Failure(f"{option} {folder}: cannot write there: {why}.") from None
    return folder


@contextlib.contextmanager
def replacing(out: Path) -> Generator[BinaryIO]:
    """A file to write that is under its name once it is whole; until then, and where writing fails,
    what was there stays. A link stays one. Raises OSError."""
    if in_place(out):
        with out.open("wb") as file:
            yield file
        return
    real = Path(os.path.realpath(out))
    part = part_of(real)
    try:
        with part.open("wb") as file:
            yield file
        part.replace(real)
    finally:
        part.unlink(missing_ok=True)
