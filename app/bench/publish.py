"""The file that a benchmark is written to, and the command line shown in it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from app.failures import Failure

HIDDEN: dict[str, Callable[[str], str]] = {
    "--key": lambda value: "KEY",
    **dict.fromkeys(
        (
            "--answers",
            "--cache-dir",
            "--corpus",
            "--draft-model",
            "--exclude",
            "--json",
            "--model",
            "--mtp",
            "--prompts",
            "--test-prompts",
        ),
        lambda value: Path(value).name,
    ),
}
"""What a stored command line shows of these options' values."""


def output_file(path: str | None) -> Path | None:
    """Where --json points. Raises Failure when its folder is missing."""
    out = Path(path) if path else None
    if out and not out.resolve().parent.is_dir():
        raise Failure(f"--json {out}: there is no folder {out.resolve().parent}")
    return out


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
        else:
            shown.append(argument)
        option = argument if option not in HIDDEN else ""
    return shown
