"""The command line as the files that are made of a benchmark show it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

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
