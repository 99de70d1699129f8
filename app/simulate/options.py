"""The options of `paceline simulate`."""

from __future__ import annotations

import argparse
from typing import Any

from app.arguments import group, leaf, names, positive

MOST_PROCESSES = 64


def add_simulate(commands: Any) -> None:
    actions = group(commands, "simulate", "what policies would do, without a model or a device")
    text = "run the policies of a configuration on its machine and load"
    run = leaf(actions, "run", text, "app.simulate.command:run")
    run.add_argument("config", help="TOML: machine, drafters, texts, load and policies")
    run.add_argument("--json", metavar="OUT", help="write everything to this file")
    run.add_argument("--plot", metavar="OUT", help="write plots over time to this SVG file")
    text = "the figures of the controller over a folder of acceptance traces"
    suite = leaf(actions, "suite", text, "app.simulate.command:suite")
    suite.add_argument("--traces", required=True, metavar="DIR", help="folder with the traces")
    suite.add_argument("--json", metavar="OUT", help="write figures and rows to this file")
    suite.add_argument("--plots", metavar="DIR", help="write plots (SVG) into this folder")
    suite.add_argument(
        "--policies",
        type=names,
        default=("all",),
        help="beside the one that serves: all, none, or some, such as fixed,ucb (default: all)",
    )
    suite.add_argument(
        "--processes", type=_processes, default=2, help="at once (default: %(default)s)"
    )
    suite.add_argument("--seed", type=_seed, default=0, help="(default: %(default)s)")
    suite.add_argument(
        "--scale", type=_scale, default=1.0, help="share of each cell's work, for a quick look"
    )


def _processes(text: str) -> int:
    count = positive(text)
    if count > MOST_PROCESSES:
        raise argparse.ArgumentTypeError(f"at most {MOST_PROCESSES}")
    return count


def _seed(text: str) -> int:
    value = int(text)
    if not 0 <= value < 2**31:
        raise argparse.ArgumentTypeError(f"{text} is not a number from 0 to {2**31 - 1}")
    return value


def _scale(text: str) -> float:
    value = float(text)
    if not 0.0 < value <= 100.0:
        raise argparse.ArgumentTypeError(f"{text} is not above 0 and at most 100")
    return value
