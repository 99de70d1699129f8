"""Why a body is no JSON that this API takes, in the words of its sender."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator

_PLAIN_NAME = re.compile(r"[A-Za-z_]\w{0,63}")
_SUSPECTS = ("invalid character", "surrogate", "truncated", "Number out of range")
"""In the decoder's messages about what `explain` looks for."""


def explain(detail: str, body: bytes | str) -> tuple[str, str | None]:
    """A sentence without a full stop, and the path of the value at fault or None. detail: what
    the decoder said of the body, which names no field. Numbers that are not finite and texts with
    half a surrogate pair are found and named."""
    if any(suspect in detail for suspect in _SUSPECTS):
        try:
            # Unlike the API's decoder this one takes both, so that they can be found.
            document = json.loads(body)
        except (ValueError, RecursionError):
            document = None
        for path, value in _values(document):
            if isinstance(value, float) and not math.isfinite(value):
                return f"{_where(path)}numbers must be finite and fit a 64-bit float", path or None
            if isinstance(value, str) and _broken(value):
                return (
                    f"{_where(path)}invalid Unicode: half of a surrogate pair (\\ud800 to "
                    "\\udfff without its other half)",
                    path or None,
                )
    if "surrogate" in detail:
        return f"{detail}: invalid Unicode, a \\u escape without its other half", None
    return detail.replace("$[...]", "$"), None


def _where(path: str) -> str:
    return f"{path}: " if path else ""


def _broken(text: str) -> bool:
    return not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text)


def _values(document: object) -> Iterator[tuple[str, object]]:
    """Every number and text with its path, in the order of the document; a key that is broken
    itself with the path of its object."""
    waiting: list[tuple[str, object]] = [("", document)]
    while waiting:
        path, value = waiting.pop()
        if isinstance(value, dict):
            inside: list[tuple[str, object]] = []
            for key, one in value.items():
                if _broken(str(key)):
                    yield path, key
                inside.append((_inner(path, str(key)), one))
            waiting.extend(reversed(inside))
        elif isinstance(value, list):
            waiting.extend((f"{path}[{i}]", value[i]) for i in range(len(value) - 1, -1, -1))
        else:
            yield path, value


def _inner(path: str, key: str) -> str:
    if _PLAIN_NAME.fullmatch(key):
        return f"{path}.{key}" if path else key
    shown = json.dumps(key[:32])
    return f"{path}[{shown}]"
