"""The files that a benchmark is written to, and the command line shown in them."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from app.failures import Failure

HIDDEN: dict[str, Callable[[str], str]] = {
    "--key": lambda value: "KEY",
    **dict.fromkeys(
        (
            "--answers",
            "--cache-dir",
            "--assistant",
            "--corpus",
            "--csv",
            "--draft-model",
            "--exclude",
            "--gguf",
            "--html",
            "--json",
            "--model",
            "--mtp",
            "--out",
            "--phases",
            "--prompts",
            "--test-prompts",
            "--trace",
        ),
        lambda value: Path(value).name,
    ),
}
"""What a stored command line shows of these options' values."""
CREDENTIALS = re.compile(r"//[^/@\s]+@")
"""Name and password in an address."""


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
        if not in_place(out):
            if not real.parent.is_dir():
                raise Failure(f"{option} {out}: there is no folder {real.parent}")
            part_of(real).touch()
            part_of(real).unlink()
    except OSError as error:
        raise Failure(f"{option} {out}: cannot write there: {error.strerror}.") from None
    return out


def in_place(path: Path) -> bool:
    """Whether it is a device or a pipe: written as it stands, nothing can take its place."""
    return path.exists() and not path.is_file()


def part_of(real: Path) -> Path:
    """What a file is until it is whole."""
    return real.with_name(real.name + ".part")


def write(path: Path, content: bytes) -> None:
    """Whole or not at all: a run that ends while writing leaves what was there before. A link stays
    one. Raises OSError."""
    if in_place(path):
        path.write_bytes(content)
        return
    real = Path(os.path.realpath(path))
    try:
        part_of(real).write_bytes(content)
        os.replace(part_of(real), real)
    except BaseException:
        with contextlib.suppress(OSError):
            part_of(real).unlink(missing_ok=True)
        raise


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


def publishable(arguments: list[str]) -> list[str]:
    """The command line as it can be shown: the key replaced, of files only their names."""
    shown: list[str] = []
    option = ""
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if option in HIDDEN:
            shown.append(HIDDEN[option](argument))
        elif equals and name in HIDDEN:
            shown.append(f"{name}={HIDDEN[name](value)}")
        elif argument.startswith(("/", "~")):
            shown.append(Path(argument).name)
        elif equals and value.startswith(("/", "~")):
            shown.append(f"{name}={Path(value).name}")
        else:
            shown.append(CREDENTIALS.sub("//", argument))
        option = argument if option not in HIDDEN else ""
    return shown
