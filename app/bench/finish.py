"""The end of a benchmark: its files, and then its table, so that no fault of one costs another."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from rich.console import Console

from app.bench import table
from app.bench.page import page
from app.bench.result import Result, csv_of, json_of
from app.failures import SettingsError
from app.output_files import output_file, tell, write_each

INTERRUPTED = 130
FORMS: dict[str, Callable[[Result], bytes]] = {
    "--json": json_of,
    "--csv": lambda result: csv_of(result.rows).encode(),
    "--html": lambda result: page(result).encode(),
}
"""By option, the bytes of a result."""


def output_files(options: argparse.Namespace) -> dict[str, Path]:
    """By option, the files that are wanted. Raises Failure when one cannot be written, and
    SettingsError when one would take the place of another."""
    given = {"--json": options.json, "--csv": options.csv, "--html": options.html}
    found: dict[str, Path] = {}
    for option, name in given.items():
        path = output_file(name, option)
        if path is None:
            continue
        twin = next((other for other, one in found.items() if one == path), None)
        if twin:
            raise SettingsError(f"{twin} and {option} name the same file {path}: give two.")
        found[option] = path
    return found


def finish(result: Result, files: dict[str, Path], interrupted: bool) -> int:
    """Write the result and print it; the exit code. Without a single request nothing is written:
    a file of an earlier run is worth more."""
    if not result.runs:
        kept = " Files of earlier runs are as they were." if files else ""
        print(f"paceline: Nothing was measured, so nothing is stored.{kept}", file=sys.stderr)
        return INTERRUPTED if interrupted else 1
    written = write_each({path: partial(FORMS[option], result) for option, path in files.items()})
    wide = 180 if not sys.stdout.isatty() else None
    table.show(result.rows, result.base, Console(highlight=False, width=wide))
    code = tell(written)
    errors = [sample for run in result.runs for sample in run.samples if sample.error]
    if errors:
        first = errors[0]
        print(
            f"{len(errors)} requests failed; the first ({first.mode}, {first.failure}): "
            f"{first.error}",
            file=sys.stderr,
        )
    if code or not interrupted:
        return code or (1 if errors else 0)
    return INTERRUPTED
