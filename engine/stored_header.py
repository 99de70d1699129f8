"""The header of a safetensors file: what it stores, checked against the file's length."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import NamedTuple, cast

from engine.errors import StartError
from engine.files import open_regular

MAX_HEADER_BYTES = 100_000_000
"""The format's own limit."""
LFS_MARK = b"version https://git-lfs"
METADATA = "__metadata__"
MOST_SIDE = 1 << 40
"""Bounds a side of a tensor: of an empty one the file's length bounds nothing."""

_BITS = {
    "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8,
    "U16": 16, "I16": 16, "F16": 16, "BF16": 16,
    "U32": 32, "I32": 32, "F32": 32,
    "U64": 64, "I64": 64, "F64": 64, "C64": 64,
}  # fmt: skip
FLOATS = frozenset({"BF16", "F16", "F32", "F64"})
INTEGERS = frozenset({"U8", "I8", "U16", "I16", "U32", "I32", "U64", "I64"})


class Stored(NamedTuple):
    """dtype: as the format names it. shape: its number of bytes is what the file holds of it."""

    dtype: str
    shape: list[int]


class _Odd(Exception):
    """What is wrong with a header, as a sentence part."""


def read_header(file: Path) -> dict[str, Stored]:
    """Every tensor of a safetensors file, whose bytes must be all that they add up to. Raises
    StartError."""
    try:
        with open_regular(file) as stream:
            size = stream.seek(0, 2)
            stream.seek(0)
            head = stream.read(len(LFS_MARK))
            if head.startswith(LFS_MARK):
                raise _broken(
                    f"{file} is a Git LFS pointer, not the weights; run `git lfs pull` in its "
                    "folder, or download the file."
                )
            length = int.from_bytes(head[:8], "little")
            if len(head) < 8 or length > min(size - 8, MAX_HEADER_BYTES):
                raise _truncated(file, size, None)
            stream.seek(8)
            header: object = json.loads(stream.read(length))
        tensors, end = _tensors(header)
    except OSError as error:
        raise _broken(f"{file} cannot be read: {error.strerror or error}.") from error
    except RecursionError as error:
        raise _unlike(file, "its header is nested too deeply") from error
    except ValueError as error:  # no JSON, or no UTF-8
        raise _unlike(file, "its header is not JSON") from error
    except _Odd as error:
        raise _unlike(file, str(error)) from error
    if size != 8 + length + end:
        raise _truncated(file, size, 8 + length + end)
    return tensors


def _tensors(header: object) -> tuple[dict[str, Stored], int]:
    """The tensors, and where the last one ends after the header."""
    if not isinstance(header, dict):
        raise _Odd("its header is not a JSON object")
    fields = cast("dict[str, object]", header)
    notes = fields.pop(METADATA, {})
    if not isinstance(notes, dict) or not all(isinstance(note, str) for note in notes.values()):
        raise _Odd(f"its {METADATA} is not an object of texts")
    tensors: dict[str, Stored] = {}
    places: list[tuple[int, int, str]] = []
    for name, entry in fields.items():
        tensors[name], begin, end = _tensor(name, entry)
        places.append((begin, end, name))
    last = 0
    for begin, end, name in sorted(places):
        if begin != last:
            raise _Odd(f"{_shown(name)} begins at byte {begin:,}, not {last:,}")
        last = end
    return tensors, last


def _tensor(name: str, entry: object) -> tuple[Stored, int, int]:
    """The tensor, and where it begins and ends after the header."""
    shown = _shown(name)
    if not isinstance(entry, dict):
        raise _Odd(f"its header describes no tensor under {shown}")
    fields = cast("dict[str, object]", entry)
    dtype, shape, place = fields.get("dtype"), fields.get("shape"), fields.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in _BITS:
        raise _Odd(f"{shown} has no number type that is known ({str(dtype)[:32]!r})")
    sides, ends = _wholes(shape), _wholes(place)
    if sides is None or not all(side <= MOST_SIDE for side in sides):
        raise _Odd(f"{shown} has no shape of whole numbers from 0 to 2^40")
    if ends is None or len(ends) != 2:
        raise _Odd(f"{shown} has no place in the file")
    begin, end = ends
    if 8 * (end - begin) != math.prod(sides) * _BITS[dtype]:
        raise _Odd(f"{shown} has another number of bytes than its shape takes")
    return Stored(dtype, sides), begin, end


def _wholes(value: object) -> list[int] | None:
    """A list of whole numbers from 0 on, None for anything else."""
    if not isinstance(value, list):
        return None
    items = cast("list[object]", value)
    wholes = [item for item in items if type(item) is int and item >= 0]
    return wholes if len(wholes) == len(items) else None


def _shown(name: str) -> str:
    return repr(name[:100])


def _unlike(file: Path, why: str) -> StartError:
    return _broken(f"{file} is not a safetensors file: {why}. Download it again.")


def _truncated(file: Path, size: int, expected: int | None) -> StartError:
    wanted = "" if expected is None else f", and {expected:,} are expected"
    return _broken(f"{file} is not complete: it has {size:,} bytes{wanted}. Download it again.")


def _broken(message: str) -> StartError:
    return StartError("model_broken", message)
