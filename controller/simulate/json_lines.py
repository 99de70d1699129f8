"""Reads files of JSON lines from outside: one object a line, bounded, errors with file and line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

MOST_LINE_BYTES = 16_000_000


def objects(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """(number of the line from 1 on, its object), blank lines passed over. ValueError with file and
    line for anything else, OSError where the file cannot be read."""
    with path.open("rb") as file:
        lines = iter(partial(file.readline, MOST_LINE_BYTES + 1), b"")
        for number, line in enumerate(lines, 1):
            if len(line) > MOST_LINE_BYTES:
                raise ValueError(f"{path.name}, line {number}: it is longer than 16 MB")
            if line.isspace():
                continue
            try:
                found = _object(line)
            except ValueError as error:
                raise ValueError(f"{path.name}, line {number}: {error}") from None
            yield number, found


def first_object(path: Path) -> dict[str, Any]:
    """The first of a file; empty where there is none to read."""
    try:
        return next((found for _, found in objects(path)), {})
    except (OSError, ValueError):
        return {}


def _object(line: bytes) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"it is no JSON: {error.msg}, column {error.colno}") from None
    except UnicodeDecodeError:
        raise ValueError("it is no UTF-8 text") from None
    except RecursionError:
        raise ValueError("its values are nested too deeply") from None
    if not isinstance(found, dict):
        raise ValueError("it is no JSON object")
    return found
