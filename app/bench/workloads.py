"""Files of prompts in the layouts that benchmarks come in: JSONL, Parquet, ShareGPT, plain text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from app.failures import SettingsError
from app.foreign_json import decode

LARGEST_FILE = 1 << 30
"""Bytes. A file is read whole."""
MOST_PROMPTS = 1_000_000
PLACEHOLDER = "FULL BENCHMARK DATA SHOULD BE FETCHED"
"""How SPEED-Bench's own file marks the prompts that its script has yet to fill in."""
HUMAN = ("human", "user")


class Prompt(msgspec.Struct, frozen=True):
    """One conversation's user turns; `text` is the first. max_tokens: of the answer, where the
    workload says so, else 0. temperature: the same, else None."""

    question_id: int | str
    category: str
    turns: tuple[str, ...]
    max_tokens: int = 0
    temperature: float | None = None

    @property
    def text(self) -> str:
        return self.turns[0]


class Line(msgspec.Struct, frozen=True):
    """A line of Spec-Bench, MT-Bench or SPEED-Bench, and of sets that only have `turns`."""

    turns: tuple[str, ...]
    question_id: int | str | None = None
    category: Annotated[str, Meta(max_length=200)] | None = None
    source: Annotated[str, Meta(max_length=200)] | None = None


class Said(msgspec.Struct, frozen=True):
    """One turn of a ShareGPT conversation."""

    speaker: str = msgspec.field(name="from")
    value: str = ""


class Conversation(msgspec.Struct, frozen=True):
    """An entry of a ShareGPT file."""

    conversations: tuple[Said, ...]
    id: int | str | None = None


def read_workload(path: Path) -> list[Prompt]:
    """The prompts of a file, or of all files of a folder. Raises SettingsError with the place."""
    try:
        if path.is_dir():
            files = sorted(file for file in path.iterdir() if file.suffix.lower() in READERS)
            if not files:
                raise SettingsError(f"--prompts {path}: the folder has no file of {kinds()}.")
            return [prompt for file in files for prompt in read_workload(file)]
        reader = READERS.get(path.suffix.lower())
        if reader is None:
            raise SettingsError(f"--prompts {path}: not one of {kinds()}.")
        size = path.stat().st_size
        if size > LARGEST_FILE:
            raise SettingsError(f"--prompts {path}: {size:,} bytes; at most {LARGEST_FILE:,}.")
        prompts = list(reader(path))
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"--prompts {path}: cannot read it: {error}") from None
    if len(prompts) > MOST_PROMPTS:
        raise SettingsError(f"--prompts {path}: {len(prompts):,} prompts; at most {MOST_PROMPTS:,}")
    return prompts


def kinds() -> str:
    return ", ".join(READERS)


def read_lines(path: Path) -> Iterator[Prompt]:
    """JSON lines with `turns`."""
    lines = path.read_text("utf-8").split("\n")  # a text may hold other line separators
    for number, text in enumerate(lines, 1):
        if not text.strip():
            continue
        try:
            line = decode(text, Line)
        except msgspec.MsgspecError as error:
            raise SettingsError(f"--prompts {path}, line {number}: {error}") from None
        yield from prompt_of(line, number, path)


def read_parquet(path: Path) -> Iterator[Prompt]:
    """The rows of a Parquet file that has the columns of SPEED-Bench."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise SettingsError(
            f"--prompts {path}: reading Parquet needs pyarrow (pip install pyarrow)."
        ) from None
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            there = [name for name in Line.__struct_fields__ if name in file.schema_arrow.names]
            rows = file.read(columns=there).to_pylist()
    except (pyarrow.ArrowException, RecursionError) as error:
        raise SettingsError(f"--prompts {path}: {error}") from None
    for number, row in enumerate(rows, 1):
        yield from prompt_of(converted(row, Line, f"{path}, row {number}"), number, path)


def read_sharegpt(path: Path) -> Iterator[Prompt]:
    """A ShareGPT list: what humans said there; entries that no human begins are left out."""
    try:
        entries = decode(path.read_bytes(), list[msgspec.Raw])
    except msgspec.MsgspecError as error:
        raise SettingsError(f"--prompts {path}: {error}") from None
    for number, raw in enumerate(entries, 1):
        try:
            entry = decode(raw, Conversation)
        except msgspec.MsgspecError as error:
            raise SettingsError(f"--prompts {path}, entry {number}: {error}") from None
        said = entry.conversations
        if said and said[0].speaker in HUMAN:
            turns = tuple(one.value for one in said if one.speaker in HUMAN)
            line = Line(turns=turns, question_id=entry.id, category="sharegpt")
            yield from prompt_of(line, number, path)


def read_text(path: Path) -> Iterator[Prompt]:
    """A prompt per line."""
    for number, text in enumerate(path.read_text("utf-8").splitlines(), 1):
        yield from prompt_of(Line(turns=(text.strip(),)), number, path)


def prompt_of(line: Line, number: int, path: Path) -> Sequence[Prompt]:
    """The prompt of an entry, nothing for one without text. A set without categories has its
    sources or its own name for one."""
    if not line.turns or not line.turns[0].strip():
        return ()
    if line.turns[0].startswith(PLACEHOLDER):
        raise SettingsError(
            f"--prompts {path}, entry {number}: the text of this prompt is not in the file. "
            "SPEED-Bench's prepare_data.py fills it in; give the file that it writes."
        )
    name = line.question_id if line.question_id is not None else number
    category = line.category or line.source or path.stem
    return (Prompt(name, category, tuple(turn for turn in line.turns if turn.strip())),)


def converted(row: Any, kind: type[Line], where: str) -> Line:
    try:
        return msgspec.convert(row, kind)
    except msgspec.ValidationError as error:
        raise SettingsError(f"--prompts {where}: {error}") from None


READERS = {
    ".jsonl": read_lines,
    ".json": read_sharegpt,
    ".parquet": read_parquet,
    ".txt": read_text,
}
