"""Files and folders that a command writes: looked at before its work, whole or not at all."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Generator, Mapping
from pathlib import Path

from app.failures import Failure


def output_file(path: str | None, option: str = "--json") -> Path | None:
    """Where the option points. Raises Failure when no file can be written there, which is better
    known before a run than after it."""
    if not path:
        return None
    out = Path(path)
    real = Path(os.path.realpath(out))
    try:
        if out.is_dir():
            raise Failure(f"{option} {out} is a folder: give the name of a file.")
        if out.exists() and not os.access(out, os.W_OK):
            raise Failure(f"{option} {out} is write-protected: give another file.")
        if not _in_place(out):
            if not real.parent.is_dir():
                raise Failure(f"{option} {out}: there is no folder {real.parent}")
            _try(real)
    except OSError as error:
        raise _unwritable(option, out, error) from None
    return out


def output_folder(path: str | None, option: str) -> Path | None:
    """The folder that the option names, made where there is none. Raises Failure as `output_file`
    does."""
    if not path:
        return None
    folder = Path(path)
    try:
        if folder.exists() and not folder.is_dir():
            raise Failure(f"{option} {folder} is a file: give the name of a folder.")
        folder.mkdir(parents=True, exist_ok=True)
        _try(folder / "file")
    except OSError as error:
        raise _unwritable(option, folder, error) from None
    return folder


@contextlib.contextmanager
def replacing(out: Path) -> Generator[Path]:
    """Where to write what shall be under this name once it is whole; until then, and where writing
    fails, what was there stays. A link stays one. Raises OSError."""
    if _in_place(out):
        yield out
        return
    real = Path(os.path.realpath(out))
    part = _part_of(real)
    try:
        yield part
        part.replace(real)
    except BaseException:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        raise


def write(out: Path, content: bytes) -> None:
    """Whole or not at all. Raises OSError."""
    with replacing(out) as part:
        part.write_bytes(content)


def write_each(contents: Mapping[Path, Callable[[], bytes]]) -> dict[Path, str]:
    """Write these files; one that cannot be costs no other. By file why it could not, "" for those
    that are written."""
    found: dict[Path, str] = {}
    for path, content in contents.items():
        try:
            write(path, content())
            found[path] = ""
        except OSError as error:
            found[path] = str(error.strerror or error)
    return found


def tell(written: Mapping[Path, str]) -> int:
    """Say what `write_each` did; the exit code."""
    for path, why in written.items():
        if why:
            print(f"paceline: {path} could not be written: {why}.", file=sys.stderr)
        else:
            print(f"Written to {path}")
    return 1 if any(written.values()) else 0


def _in_place(path: Path) -> bool:
    """Whether it is a device or a pipe: written as it stands, nothing can take its place."""
    return path.exists() and not path.is_file()


def _part_of(real: Path) -> Path:
    """What a file is until it is whole."""
    return real.with_name(real.name + ".part")


def _try(real: Path) -> None:
    """Raises OSError where no such file can be written."""
    _part_of(real).touch()
    _part_of(real).unlink()


def _unwritable(option: str, path: Path, error: OSError) -> Failure:
    return Failure(f"{option} {path}: cannot write there: {error.strerror or error}.")
