"""What the options of all commands are made of."""

from __future__ import annotations

import argparse
import functools
from collections.abc import Sequence
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec

from app.settings import Settings


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


def positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return value


def names(text: str) -> tuple[str, ...]:
    found = tuple(part.strip() for part in text.split(",") if part.strip())
    if not found:
        raise argparse.ArgumentTypeError("the list is empty")
    return found


def counts(text: str) -> tuple[int, ...]:
    return tuple(positive(part) for part in names(text))
