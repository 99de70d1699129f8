"""`paceline simulate`: what policies would do on a described machine and load, and the suite."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from app.failures import Failure
from app.output_files import output_file, output_folder, tell, write_each
from app.progress import Bars
from app.simulate.config import Config, read_config
from controller.policies import ADAPTIVE
from controller.simulate.cells import find_traces, labels, make_cells
from controller.simulate.fleet import bounds, simulate
from controller.simulate.plots import course_plots, suite_plots
from controller.simulate.rows import Row, compare
from controller.simulate.suite import COMPARED, figures, judge, make_tasks, run_all

COLUMNS = (
    ("policy", "policy"), ("tokens/s", "tokens_per_s"), ("vs none", "vs_none"),
    ("vs static", "vs_best_static"), ("vs clairvoyant", "vs_clairvoyant"),
    ("AL", "acceptance_length"), ("D", "mean_d"), ("switches/1k", "switches_per_1000_steps"),
)  # fmt: skip
CALIBRATION = (("predicted tokens", "tokens"), ("ms", "ms"))
"""Relative errors of what was predicted."""
LATENCIES = (("TTFT p50", "ttft_ms", "p50"), ("p99 ms", "ttft_ms", "p99"),
             ("TPOT p50", "tpot_ms", "p50"), ("p99 ms", "tpot_ms", "p99"))  # fmt: skip


def run(options: argparse.Namespace) -> int:
    """The policies of a configuration."""
    path = Path(options.config)
    config = read_config(path)
    return simulate_all(config, path.resolve().parent, options.config, options.json, options.plot)


def simulate_all(
    config: Config, folder: Path, source: str, json: str | None, plot: str | None
) -> int:
    """Every policy of the configuration in turn, then a table, JSON and plots. folder: what its
    paths are relative to. Raises Failure naming the source for what does not fit together."""
    out, plots = output_file(json, "--json"), output_file(plot, "--plot")
    try:
        scenario, choices = config.scenario(folder), config.choices
        rows = bounds(scenario)
        with Bars() as bars:
            for choice in choices:
                bars.update("simulate", 0.0, choice.label)
                rows.append(
                    simulate(
                        scenario,
                        choice,
                        lambda done, what=choice.label: bars.update("simulate", done, what),
                    )
                )
    except (ValueError, OSError) as error:
        raise Failure(f"{source}: {error}") from None
    rows = compare(rows)
    files: dict[Path, Callable[[], bytes]] = {}
    if out:
        files[out] = lambda: _json({"config": msgspec.to_builtins(config), "rows": rows})
    if plots:
        files[plots] = lambda: course_plots(rows).encode()
    written = write_each(files)
    _print_table(rows)
    return tell(written)


def suite(options: argparse.Namespace) -> int:
    """The figures of the controller over a folder of acceptance traces."""
    out = output_file(options.json, "--json")
    plots = output_folder(options.plots, "--plots")
    policies = _policies(options.policies)
    begin = time.monotonic()
    try:
        traces = find_traces(Path(options.traces))
        cells = make_cells(traces, options.scale)
        work = make_tasks(cells, policies, options.seed)
        parts: dict[int, list[Row]] = {}
        with Bars() as bars:
            for number, found in run_all(work, options.processes):
                parts[number] = found
                bars.update("suite", len(parts) / len(work), work[number].cell.name)
    except (ValueError, OSError) as error:
        raise Failure(str(error)) from None
    rows = judge(cells, [one for number in sorted(parts) for one in parts[number]])
    found = figures(rows)
    result = {
        **found,
        "seed": options.seed,
        "scale": options.scale,
        "seconds": round(time.monotonic() - begin, 1),
        "traces": list(labels(traces).values()),
        "policies": {name: figures(rows, name) for name in policies},
        "rows": rows,
    }
    files: dict[Path, Callable[[], bytes]] = {out: lambda: _json(result)} if out else {}
    if plots:
        for name, text in suite_plots(rows, ADAPTIVE).items():
            files[plots / name] = text.encode
    written = write_each(files)
    for cell in cells:
        print(f"\n{cell.name}")
        _print_table([one for one in rows if one["cell"] == cell.name])
    print()
    for name, value in _flat(found):
        print(f"{name}: {'-' if value is None else value}")
    return tell(written)


def _policies(given: tuple[str, ...]) -> tuple[str, ...]:
    """The one that serves and those that the option names."""
    if given in (("all",), ("none",)):
        return (ADAPTIVE, *(COMPARED if given == ("all",) else ()))
    for name in given:
        if name not in COMPARED:
            raise Failure(f"--policies: {name!r} is not all, none, or of {', '.join(COMPARED)}")
    return (ADAPTIVE, *given)


def _print_table(rows: Sequence[Row]) -> None:
    """Right-aligned columns, the policy's name first."""
    table = [[head for head, _ in COLUMNS]]
    latencies = any("ttft_ms" in one for one in rows)
    if latencies:
        table[0] += [head for head, _, _ in LATENCIES]
    calibrated = any(one.get("calibration") for one in rows)
    if calibrated:
        table[0] += [head for head, _ in CALIBRATION]
    breaks = sorted({kind for one in rows for kind in one.get("recovery_steps", ())})
    table[0] += [f"steps, {kind}" for kind in breaks]
    for one in rows:
        cells = [_cell(one.get(key)) for _, key in COLUMNS]
        if "static" in one:
            cells[0] += f" ({one['static']})"
        if latencies:
            cells += [_cell(one.get(key, {}).get(level)) for _, key, level in LATENCIES]
        if calibrated:
            cells += [_percent((one.get("calibration") or {}).get(key)) for _, key in CALIBRATION]
        cells += [_cell(one.get("recovery_steps", {}).get(kind)) for kind in breaks]
        table.append(cells)
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for cells in table:
        first = cells[0].ljust(widths[0])
        rest = [cell.rjust(width) for cell, width in zip(cells[1:], widths[1:], strict=True)]
        print("  ".join([first, *rest]).rstrip())


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.0f}" if value >= 100 else f"{value:.3f}"
    return str(value)


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:+.1f} %"


def _flat(found: Row, head: str = "") -> list[tuple[str, object]]:
    """Nested figures as (dotted name, value)."""
    flat: list[tuple[str, object]] = []
    for key, value in found.items():
        name = f"{head}{key}"
        flat += _flat(value, name + ".") if isinstance(value, dict) else [(name, value)]
    return flat


def _json(result: object) -> bytes:
    return msgspec.json.format(msgspec.json.encode(result), indent=1) + b"\n"
