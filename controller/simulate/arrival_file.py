"""Reads when requests came from a CSV with the columns of the Azure LLM inference traces."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
MOST_CONTEXT = 1 << 20
MOST_OUTPUT = 1 << 16


class Came(NamedTuple):
    """A request: when it came, seconds after the first; tokens of its prompt and of its output."""

    second: float
    prompt: int
    output: int


def read_arrivals(path: Path, seconds: float, speed: float, most: int) -> list[Came]:
    """What came within `seconds` when the file is replayed `speed` times as fast, in the order of
    time, whatever that of the rows. Reads all of the file. ValueError with the line for what is no
    arrival, and for more than `most` of them; OSError."""
    window = seconds * speed
    found: list[Came] = []
    begin = math.inf
    for line, row in _rows(path):
        try:
            came = _came(row)
        except (ValueError, OverflowError) as error:
            raise ValueError(f"{path.name}, line {line}: no arrival: {str(error)[:200]}") from None
        begin = min(begin, came.second)
        if came.second - begin <= window:
            found.append(came)
        if len(found) > 2 * most:
            found = _within(found, begin, window, most, path)
    if not found:
        raise ValueError(f"{path.name}: there is no arrival in it")
    found = sorted(_within(found, begin, window, most, path), key=lambda one: one.second)
    return [one._replace(second=(one.second - begin) / speed) for one in found]


def _within(found: list[Came], begin: float, window: float, most: int, path: Path) -> list[Came]:
    """Without those that turned out to be late when an earlier one was read."""
    found = [one for one in found if one.second - begin <= window]
    if len(found) > most:
        raise ValueError(
            f"{path.name}: more than {most:,} requests came in {window:,.0f} s of it; lower "
            "load.seconds"
        )
    return found


def _rows(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """The columns that count, with the number of the line."""
    line = 0
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, restval="")
            missing = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
            if missing:
                raise ValueError(f"{path.name}: there is no column {', '.join(missing)}")
            for row in reader:
                line = reader.line_num
                yield line, {name: row[name].strip() for name in COLUMNS}
    except UnicodeDecodeError:
        raise ValueError(f"{path.name}: it is no UTF-8 text") from None
    except csv.Error as error:  # such as a quotation mark that is never closed
        raise ValueError(f"{path.name}, after line {line}: it is no CSV: {error}") from None


def _came(row: dict[str, str]) -> Came:
    prompt, output = (
        _tokens(name, row[name], most)
        for name, most in (("ContextTokens", MOST_CONTEXT), ("GeneratedTokens", MOST_OUTPUT))
    )
    return Came(_second(row["TIMESTAMP"]), prompt, output)


def _tokens(name: str, text: str, most: int) -> int:
    value = float(text)
    if not 0 <= value <= most:  # nor is NaN
        raise ValueError(f"{name} is {value:g}; it takes 0 to {most:,}")
    return round(value)


def _second(timestamp: str) -> float:
    """Since the epoch; a time without a zone is UTC, so that no clock change is in it."""
    time = datetime.fromisoformat(timestamp)
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
