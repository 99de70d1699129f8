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
    """A request: when it came, in seconds; tokens of its prompt and of its output."""

    second: float
    prompt: int
    output: int


def arrivals(path: Path) -> Iterator[Came]:
    """In the order of the rows, in seconds since the epoch. ValueError with the line, not the file,
    for what is no arrival; OSError."""
    for line, row in _rows(path):
        try:
            yield _came(row)
        except (ValueError, OverflowError, OSError) as error:
            raise ValueError(f"line {line}: no arrival: {str(error)[:200]}") from None


def read_arrivals(path: Path, seconds: float, speed: float, most: int) -> list[Came]:
    """What came within `seconds` when the file is replayed `speed` times as fast, in the order of
    time, whatever that of the rows; in seconds after the first. Reads all of the file. ValueError
    with file and line for what is no arrival, and for more than `most` of them; OSError."""
    try:
        found = _read(path, seconds * speed, most)
    except ValueError as error:
        raise ValueError(f"{path.name}: {error}") from None
    begin = found[0].second
    return [one._replace(second=(one.second - begin) / speed) for one in found]


def _read(path: Path, window: float, most: int) -> list[Came]:
    found: list[Came] = []
    begin = math.inf
    for came in arrivals(path):
        begin = min(begin, came.second)
        if came.second - begin <= window:
            found.append(came)
        if len(found) > 2 * most:
            found = _within(found, begin, window, most)
    if not found:
        raise ValueError("there is no arrival in it")
    return sorted(_within(found, begin, window, most), key=lambda one: one.second)


def _within(found: list[Came], begin: float, window: float, most: int) -> list[Came]:
    """Without those that turned out to be late when an earlier one was read."""
    found = [one for one in found if one.second - begin <= window]
    if len(found) > most:
        raise ValueError(
            f"more than {most:,} requests came in {window:,.0f} s of it; lower load.seconds"
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
                raise ValueError(f"there is no column {', '.join(missing)}")
            for row in reader:
                line = reader.line_num
                yield line, {name: row[name].strip() for name in COLUMNS}
    except UnicodeDecodeError:
        raise ValueError("it is no UTF-8 text") from None
    except csv.Error as error:  # such as a quotation mark that is never closed
        raise ValueError(f"after line {line}: it is no CSV: {error}") from None


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
