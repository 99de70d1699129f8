"""What the options of all commands are made of."""

from __future__ import annotations

import argparse
import functools
import math
import os
from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args, get_origin, get_type_hints
from urllib.parse import urlsplit

import msgspec

from app.settings import Settings

PORT = Settings().port


def leaf(
    commands: Any, name: str, text: str, run: str, settings: Sequence[str] = ()
) -> argparse.ArgumentParser:
    """A command that runs something, with the options of these settings."""
    description = text[0].upper() + text[1:] + "."
    parser = commands.add_parser(name, help=text, description=description, allow_abbrev=False)
    parser.set_defaults(run=run)
    for setting in settings:
        add_setting(parser, setting)
    return parser


def group(commands: Any, name: str, text: str) -> Any:
    """A command that only holds further commands."""
    description = text[0].upper() + text[1:] + "."
    parser = commands.add_parser(name, help=text, description=description, allow_abbrev=False)
    return parser.add_subparsers(dest="action", required=True, metavar="ACTION")


def add_setting(parser: argparse.ArgumentParser, name: str) -> None:
    """The option of one settings field. Its value stays text: the settings check it, wherever it
    came from."""
    hint, default = _fields()[name]
    description = next((m.description for m in hint.__metadata__ if m.description), "")
    kind = hint.__origin__
    choices = get_args(kind) if get_origin(kind) is Literal else None
    shown = f" (default: {default})" if default not in ("", None, 0) else ""
    parser.add_argument(
        "--" + name.replace("_", "-"),
        choices=choices,
        metavar=None if choices else name.rsplit("_", 1)[-1].upper(),
        help=(description + shown).replace("%", "%%"),
    )


@functools.cache
def _fields() -> dict[str, tuple[Any, Any]]:
    """(type hint, default) of each setting."""
    hints = get_type_hints(Settings, include_extras=True)
    return {one.name: (hints[one.name], one.default) for one in msgspec.structs.fields(Settings)}


def server_url() -> str:
    """Where a server of this environment's PACELINE_HOST and PACELINE_PORT answers: what clients
    call by default. The type of --url checks it."""
    here = Settings(host=os.environ.get("PACELINE_HOST", "")).url.removesuffix(f":{PORT}")
    return f"{here}:{os.environ.get('PACELINE_PORT') or PORT}"


def address(text: str) -> str:
    """An http address. Raises ArgumentTypeError."""
    try:
        parts = urlsplit(text)
        if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0:
            return text
    except ValueError:  # no number, or above 65535
        pass
    raise argparse.ArgumentTypeError(
        f"{text} is no address such as http://127.0.0.1:8000; check PACELINE_HOST and "
        "PACELINE_PORT if it was not given"
    )


def positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return value


def whole(least: int, most: int) -> Callable[[str], int]:
    """The type of a whole number from `least` to `most`."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(
                f"{text} is not a whole number from {least:,} to {most:,}"
            )
        return value

    return parse


def number(least: float, most: float) -> Callable[[str], float]:
    """The type of a number from `least` to `most`."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not least <= value <= most:  # nor is NaN
            raise argparse.ArgumentTypeError(f"{text} is not a number from {least:g} to {most:,g}")
        return value

    return parse


def names(text: str) -> tuple[str, ...]:
    found = tuple(part.strip() for part in text.split(",") if part.strip())
    if not found:
        raise argparse.ArgumentTypeError("the list is empty")
    return found


def counts(text: str) -> tuple[int, ...]:
    return tuple(positive(part) for part in names(text))
