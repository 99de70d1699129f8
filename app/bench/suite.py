"""`paceline bench suite`: the experiments of docs/performance.md, one after the other."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal

import msgspec
from rich.console import Console
from rich.table import Table

from app.bench import machine
from app.bench.experiments import PROGRAMS, ROOT, Experiment, chosen, shipped, values_of
from app.bench.local import local_server
from app.bench.publish import publishable
from app.bench.result import json_of
from app.bench.summary import summary
from app.failures import SettingsError, StartError
from app.output_files import tell, write_each
from app.signals import terminable

STOP_S = 30.0
LONGEST_ANSWER = 256 << 20
SHOWN_LINES = 40

Status = Literal["done", "failed", "skipped", "timed out", "out of budget"]


class Outcome(msgspec.Struct, frozen=True):
    """What became of an experiment. command: as it can be shown. result: the JSON that it wrote, or
    printed as its last line; None without one. output: the end of what it printed, where there is
    no result. note: why it is not done."""

    name: str
    title: str
    command: str
    status: Status
    seconds: float = 0.0
    note: str = ""
    result: Any = None
    output: list[str] = []


class Report(msgspec.Struct, frozen=True):
    kind: Literal["suite"]
    time: float
    machine: dict[str, Any]
    outcomes: list[Outcome]


def main(options: argparse.Namespace) -> int:
    experiments = chosen(shipped(), options.only)
    values = values_of(options.set)
    screen = Console(highlight=False, markup=False)
    if options.list:
        show(experiments, values, screen)
        return 0
    if not options.out:
        raise SettingsError("--out is missing: give a folder for the results.")
    folder = Path(options.out)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SettingsError(f"--out {folder}: {error.strerror}") from None
    started = time.time()
    deadline = time.monotonic() + 60 * options.budget_min
    described = machine.describe()
    outcomes: list[Outcome] = []
    written: dict[Path, str] = {}
    for number, one in enumerate(experiments, 1):
        screen.print(f"{number}/{len(experiments)} {one.name}: {one.title}")
        outcome = run(one, values, folder.resolve(), deadline)
        outcomes.append(outcome)
        note = f" ({outcome.note})" if outcome.note else ""
        screen.print(f"    {outcome.status}{note}, {outcome.seconds:.0f} s")
        # Written after each one, so that what was measured is there whatever comes.
        report = Report("suite", started, described, outcomes)
        written = write_each(
            {
                folder / "suite.json": partial(json_of, report),
                folder / "suite.md": lambda: document(outcomes, described).encode(),
            }
        )
    failed = tell(written)
    return 1 if failed or any(one.status in ("failed", "timed out") for one in outcomes) else 0


def run(one: Experiment, values: Mapping[str, str], folder: Path, deadline: float) -> Outcome:
    """Run an experiment within its own limit and the budget. NAME.log and NAME.json are its."""
    told = Outcome(one.name, one.title, one.command, "skipped")
    if obstacle := one.obstacle(values):
        return msgspec.structs.replace(told, note=obstacle)
    left = deadline - time.monotonic()
    if left <= 0:
        return msgspec.structs.replace(told, status="out of budget", note="not begun")
    limit = min(60 * one.minutes, left)
    began = time.monotonic()
    log, out = folder / f"{one.name}.log", folder / f"{one.name}.json"
    for left_over in (log, out):
        left_over.unlink(missing_ok=True)
    filled = {**values, "out": str(out)}
    try:
        with contextlib.ExitStack() as stack:
            environment = dict(os.environ)
            if one.serve is not None:
                server = stack.enter_context(local_server(one.serve))
                filled["url"] = server.url
                environment["PACELINE_API_KEY"] = server.key
            arguments = one.arguments(filled)
            status, note = execute(arguments, environment, log, began + limit)
    except StartError as error:
        said = str(error).split("\n")  # a log's end follows its first line
        status, note = "failed", " ".join(dict.fromkeys((said[0], said[-1])))
    if status == "timed out" and limit == left:
        status = "out of budget"
    result = result_of(out, log)
    return msgspec.structs.replace(
        told,
        command=shown(one, values),
        status=status,
        seconds=round(time.monotonic() - began, 1),
        note=note,
        result=result,
        output=last_lines(log, SHOWN_LINES) if result is None else [],
    )


def execute(
    arguments: list[str], environment: Mapping[str, str], log: Path, deadline: float
) -> tuple[Status, str]:
    """Run a command in a session of its own until it ends or its time is up."""
    with terminable(), log.open("wb") as output:
        process = subprocess.Popen(
            arguments,
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            return "timed out", "ended at its limit"
        finally:
            end(process)
    return ("done", "") if code == 0 else ("failed", f"exit code {code}: {last_line(log)}")


def end(process: subprocess.Popen[bytes]) -> None:
    """End the command and all that it started. A benchmark writes what it has measured so far."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_S)


def result_of(out: Path, log: Path) -> Any:
    """The JSON of an experiment: its file, else the last line that it printed, if that is JSON. A
    file's requests stay in the file."""
    try:
        text = out.read_bytes() if out.exists() else last_line(log).encode()
        found = msgspec.json.decode(text[:LONGEST_ANSWER])
    except (OSError, msgspec.MsgspecError, RecursionError):
        return None
    if isinstance(found, dict):
        found.pop("runs", None)
        return found
    return None


def last_line(log: Path) -> str:
    return next(iter(last_lines(log, 1)), "no output")


def last_lines(log: Path, count: int) -> list[str]:
    """The last lines of a log that say something; none when nothing was run."""
    if not log.exists():
        return []
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - (1 << 20)))
        said = file.read().decode("utf-8", "replace").split("\n")
    return [line.rstrip() for line in said if line.strip()][-count:]


def shown(one: Experiment, values: Mapping[str, str]) -> str:
    """The command with the names of its files, not their folders."""
    names = {name: name.upper() for name in one.placeholders} | {
        name: Path(value).name for name, value in values.items()
    }
    program = one.command.split()[0]
    arguments = one.arguments(names)[len(PROGRAMS[program]) :]
    return " ".join([program, *publishable(arguments)])


def show(experiments: list[Experiment], values: Mapping[str, str], screen: Console) -> None:
    """What would run, and how long it takes."""
    table = Table(box=None, header_style="bold", show_footer=True)
    run = [one for one in experiments if not one.obstacle(values)]
    table.add_column("name", "together")
    table.add_column("what", f"{len(run)} of {len(experiments)} run here")
    table.add_column("about min", f"{sum(one.about for one in run):g}", justify="right")
    table.add_column("at most", f"{sum(one.minutes for one in run):g}", justify="right")
    table.add_column("here")
    for one in experiments:
        here = one.obstacle(values) or "runs"
        table.add_row(one.name, one.title, f"{one.about:g}", f"{one.minutes:g}", here)
    screen.print(table)


def document(outcomes: list[Outcome], described: Mapping[str, Any]) -> str:
    """The Markdown page: an overview, then each experiment with its command and numbers."""
    lines = [
        "# Benchmark suite",
        "",
        f"{described.get('processor')}, {described.get('cores')} cores, "
        f"{described.get('memory_gb')} GB; {described.get('system')}; "
        f"revision {described.get('git') or 'unknown'}.",
        "",
        "| experiment | status | seconds | note |",
        "|---|---|---:|---|",
    ]
    for one in outcomes:
        note = one.note.replace("|", "\\|").replace("\n", " ")
        lines.append(f"| {one.name} | {one.status} | {one.seconds:.0f} | {note} |")
    for one in outcomes:
        if one.result is not None or one.output:
            lines += ["", f"## {one.title}", "", "```", one.command, "```", ""]
        if one.result is not None:
            lines.append(summary(one.result).rstrip())
        elif one.output:
            lines += ["```", *one.output, "```"]
    return "\n".join(lines) + "\n"
