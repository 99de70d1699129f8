"""`paceline bench drafters`: the drafters measured in an engine of their own."""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from rich.console import Console
from rich.table import Table
from rich.text import Text

from app.bench import machine
from app.bench.prompts import read_prompts
from app.bench.publish import publishable
from app.bench.result import json_of
from app.corpora.slices import lines_of
from app.corpus import KINDS, chunks_of, lines
from app.failures import Failure, SettingsError
from app.foreign_json import decode
from app.output_files import output_file, tell, write_each
from app.progress import Bars
from app.settings import settings_of
from app.signals import terminable

TokenId = Annotated[int, Meta(ge=0, le=2**31 - 1)]
COMMAND = (sys.executable, "-m", "engine.bench")
SHOWN_POSITIONS = 8


class Document(msgspec.Struct, frozen=True):
    """A line of a corpus: exactly one of the two."""

    text: str | None = None
    token_ids: tuple[TokenId, ...] | None = None


class Line(msgspec.Struct, frozen=True):
    """What the measuring process prints (engine.bench.job); libraries may print lines of theirs."""

    stage: str
    fraction: float
    result: dict[str, Any] | None
    error: str | None


def main(options: argparse.Namespace) -> int:
    out = output_file(options.json)
    prompts = read_prompts(options.prompts, options.limit, options.categories)
    config = settings_of(options).engine_config()
    job = {
        "config": config,
        "prompts": [{"category": one.category, "text": one.text} for one in prompts],
        "documents": documents(Path(options.corpus)) if options.corpus else [],
        "max_tokens": options.max_tokens,
        "concurrency": options.concurrency,
        "rounds": options.rounds,
        "model_length": options.model_length,
        "modes": options.only,
        "calls": not options.no_calls,
    }
    about = {
        "command": ["paceline", *publishable(sys.argv[1:])],
        "time": time.time(),
        "machine": machine.describe(),
        "prompts": len(prompts),
        "max_tokens": options.max_tokens,
        "concurrency": options.concurrency,
        "max_draft_length": config.max_draft_length,
    }
    with Bars() as bars:
        result = run(job, bars)
    written = write_each({out: lambda: json_of(about | result)} if out else {})
    show(result, Console(highlight=False, width=160 if not sys.stdout.isatty() else None))
    return tell(written)


def documents(path: Path) -> list[Document]:
    """The documents of a corpus file, as `paceline corpus load` takes it. Raises SettingsError."""
    kind = path.suffix.lower()
    if kind not in KINDS:
        raise SettingsError(f"--corpus {path} is none of {', '.join(KINDS)}.")
    content = b"".join(chunk for _, chunk in (lines(path) if kind == ".npz" else chunks_of(path)))
    if kind == ".txt":
        try:
            return [Document(text=content.decode())]
        except UnicodeDecodeError as error:
            raise SettingsError(f"--corpus {path} is not UTF-8: see byte {error.start}.") from None
    found: list[Document] = []
    for number, line in lines_of(content):
        try:
            document = decode(line, Document)
        except msgspec.MsgspecError as error:
            raise SettingsError(f"--corpus {path}, line {number}: {error}.") from None
        if (document.text is None) == (document.token_ids is None):
            raise SettingsError(
                f"--corpus {path}, line {number}: give exactly one of text and token_ids."
            )
        found.append(document)
    return found


def run(job: dict[str, Any], bars: Bars) -> dict[str, Any]:
    """The result of the process that measures. Raises Failure when it has none."""
    with (
        terminable(),
        subprocess.Popen(COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            with contextlib.suppress(BrokenPipeError), process.stdin:
                process.stdin.write(msgspec.json.encode(job))  # why it ended is on its output
            for text in process.stdout:
                line = read_line(text)
                if line is None:  # a library's own words
                    bars.console.print(Text(text.decode(errors="replace").rstrip()))
                elif line.error:
                    raise Failure(line.error)
                elif line.result is not None:
                    return line.result
                else:
                    bars.update(line.stage, line.fraction, "")
        except BaseException:
            process.kill()
            raise
    raise Failure(f"The measuring process ended with status {process.returncode}; see above.")


def read_line(text: bytes) -> Line | None:
    """None for anything else."""
    try:
        return decode(text, Line)
    except msgspec.MsgspecError:
        return None


def show_positions(modes: dict[str, Any], console: Console) -> None:
    """Conditional acceptance by position, of each drafter in each mode."""
    table = Table(title="Accepted, of the drafts accepted up to there, by position", box=None)
    for head in ("mode", "drafter", *(str(k) for k in range(1, SHOWN_POSITIONS + 1))):
        table.add_column(head, justify="left" if head in ("mode", "drafter") else "right")
    for mode, found in modes.items():
        for drafter, positions in found["positions"].items():
            rates = [f"{one['rate']:.2f}" for one in positions[:SHOWN_POSITIONS]]
            table.add_row(*map(Text, (mode, drafter, *rates)))
    console.print(table)


def show(result: dict[str, Any], console: Console) -> None:
    """Names are Text: what a file of prompts calls its categories is no markup."""
    modes = result["tokens_per_step"]
    table = Table(title="Tokens per target step", box=None)
    table.add_column("category")
    for mode in modes:
        table.add_column(Text(mode), justify="right")
    first = next(iter(modes.values()))
    for name in first["categories"]:
        cells = [f"{one['categories'][name]['tokens_per_step']:.2f}" for one in modes.values()]
        table.add_row(Text(name), *cells)
    table.add_row("all", *[f"{one['tokens_per_step']:.3f}" for one in modes.values()], style="bold")
    for key, title in (("drafted_per_step", "drafted"), ("acceptance_rate", "acceptance rate")):
        table.add_row(title, *[f"{one[key]:.2f}" for one in modes.values()], style="dim")
    console.print(table)
    show_positions(modes, console)
    for name, cost in result.get("cost", {}).items():
        if cost:
            console.print(
                f"A token drafted by {name} takes {cost['token_ms']:.2f} ms, "
                f"{cost['rho']:.1%} of a step without drafts ({cost['plain_step_ms']:.2f} ms)"
            )
    if rounds := result.get("rounds"):
        rates = ", ".join(f"{one['acceptance_rate']:.2f}" for one in rounds)
        console.print(f"The same prompts again, acceptance rate of suffix by round: {rates}")
    if drafting := result.get("drafting"):
        console.print(
            f"Drafting at batch {drafting['concurrency']}: {drafting['share']:.2%} of step time"
        )
    for drafter, found in result.get("calls", {}).items():
        table = Table(title=f"Calls of {drafter}", box=None, show_header=False)
        for name, value in found.items():
            table.add_row(name.replace("_", " "), f"{value:,}")
        console.print(table)
