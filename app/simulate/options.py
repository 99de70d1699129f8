"""The options of `paceline simulate`."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from app.arguments import group, leaf, names, number, whole
from controller.simulate.machines import HARDWARE, MODELS

MOST_PROCESSES = 64
MOST_DEVICES = 4096
MOST_SECONDS, MOST_MEGABYTES = 86_400, 1024
MOST_SEED = 2**31 - 1
LEAST_SCALE = 1e-6


def add_simulate(commands: Any, add_client: Callable[[argparse.ArgumentParser], None]) -> None:
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
        "--processes",
        type=whole(1, MOST_PROCESSES),
        default=2,
        help="at once (default: %(default)s)",
    )
    suite.add_argument("--seed", type=whole(0, MOST_SEED), default=0, help="(default: %(default)s)")
    suite.add_argument(
        "--scale",
        type=number(LEAST_SCALE, 100.0),
        default=1.0,
        help="share of each cell's work, for a quick look",
    )

    text = "replay a recording under other policies"
    replay = leaf(actions, "replay", text, "app.simulate.replay:replay")
    replay.add_argument("recording", metavar="FILE", help="what record wrote, or the console gave")
    replay.add_argument(
        "--policy",
        action="append",
        metavar="TEXT",
        help='NAME or "NAME KEY=VALUE ..."; may be given again (default: adaptive and off)',
    )
    replay.add_argument(
        "--hardware", choices=tuple(HARDWARE), help="of the machine (default: CPU where it ran)"
    )
    replay.add_argument(
        "--model", choices=tuple(MODELS), help="shape of the target (default: by its name)"
    )
    replay.add_argument(
        "--devices",
        type=whole(1, MOST_DEVICES),
        default=1,
        help="of one node (default: %(default)s)",
    )
    replay.add_argument(
        "--speed", type=number(0.01, 100.0), default=1.0, help="requests come so many times as fast"
    )
    replay.add_argument(
        "--seed", type=whole(0, MOST_SEED), default=0, help="(default: %(default)s)"
    )
    replay.add_argument("--json", metavar="OUT", help="write everything to this file")
    replay.add_argument("--plot", metavar="OUT", help="write plots over time to this SVG file")

    text = "record what a running server decodes, to replay it under other policies"
    record = leaf(actions, "record", text, "app.simulate.record:record")
    record.add_argument("out", metavar="OUT", help="the recording (.jsonl); no text is in it")
    record.add_argument(
        "--seconds",
        type=whole(1, MOST_SECONDS),
        default=60,
        help="most seconds (default: %(default)s)",
    )
    record.add_argument(
        "--megabytes",
        type=whole(1, MOST_MEGABYTES),
        default=64,
        help="largest file (default: %(default)s)",
    )
    add_client(record)
