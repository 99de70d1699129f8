"""Documents of a large body found in slices, so that nothing holds the interpreter for long."""

from __future__ import annotations

import re
from codecs import BOM_UTF8
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

SLICE_BYTES = 64 * 1024
_HEAD = re.compile(rb'(?:\xef\xbb\xbf)?\s*\{\s*"documents"\s*:\s*\[')
_TAIL = re.compile(rb"\s*\}\s*")
_QUOTE, _BACKSLASH, _COMMA = b'"\\,'
_CLOSED = 0
"""Depth at the bracket that ends the documents; they are at depth 1."""


def start_of(body: bytes | bytearray) -> int:
    """Where the text of a body begins: after its byte order mark."""
    return len(BOM_UTF8) if body.startswith(BOM_UTF8) else 0


def lines_of(body: bytes | bytearray) -> Iterator[tuple[int, bytes | bytearray]]:
    """Lines that are not blank, with their numbers from 1."""
    start, number = start_of(body), 0
    while start < len(body):
        end = body.find(b"\n", start)
        stop = len(body) if end < 0 else end
        number += 1
        if line := body[start:stop].strip():
            yield number, line
        start = stop + 1


def elements_of(body: bytes | bytearray) -> Iterator[bytes | bytearray] | None:
    """The elements of the list in {"documents": [...]}, as JSON that is still to be decoded, or
    None when the body does not begin so. Raises ValueError where the list or the body ends wrongly.
    """
    head = _HEAD.match(body)
    return None if head is None else _elements(body, head.end())


def _elements(body: bytes | bytearray, start: int) -> Iterator[bytes | bytearray]:
    quoted, escaping, depth = False, False, 1
    count = 0
    for at in range(start, len(body), SLICE_BYTES):
        part = np.frombuffer(body, np.uint8, min(SLICE_BYTES, len(body) - at), at)
        escaped, escaping = _escaped(part, escaping)
        quotes = (part == _QUOTE) & ~escaped
        inside = (np.cumsum(quotes) + quoted) % 2 == 1
        quoted = bool(inside[-1])
        lower = part | 0x20  # [ and {, ] and } are the same then
        steps = (lower == ord("{")).astype(np.int8) - (lower == ord("}"))
        depths = np.cumsum(np.where(inside, 0, steps), dtype=np.int64) + depth
        depth = int(depths[-1])
        ends = ((part == _COMMA) & (depths == 1)) | (depths == _CLOSED)
        for place in np.flatnonzero(ends & ~inside).tolist():
            stop = at + place
            element = body[start:stop].strip()
            start = stop + 1
            if depths[place] == _CLOSED:
                if element or count:
                    yield element
                if body[stop : stop + 1] != b"]" or not _TAIL.fullmatch(body, start):
                    raise ValueError("the list of documents does not end with ]}")
                return
            count += 1
            yield element
    raise ValueError("the list of documents does not end")


def _escaped(part: NDArray[np.uint8], escaping: bool) -> tuple[NDArray[np.bool_], bool]:
    """Which bytes a backslash before them escapes: those after a run of an odd number of them.
    escaping: the last byte before the part was such a backslash."""
    backslash = part == _BACKSLASH
    places = np.arange(len(part) + 1)
    if not escaping and not backslash.any():
        return np.zeros(len(part), np.bool_), False
    others = np.where(backslash, -1 - escaping, places[:-1])
    last = np.maximum.accumulate(np.concatenate(([-1 - escaping], others)))
    odd = (places - 1 - last) % 2 == 1
    return odd[:-1], bool(odd[-1])
