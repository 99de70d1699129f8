"""`paceline simulate replay`: a recording under other policies, without a configuration file."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from app.failures import Failure
from app.progress import Bars
from app.simulate.command import simulate_all
from app.simulate.config import Config
from app.simulate.tables import DrafterTable, MachineTable, RecordedLoad, SettingTable, TextsTable
from app.simulate.texts import recorded
from controller.policies import ADAPTIVE
from controller.simulate.machines import HARDWARE, MODELS
from controller.simulate.recording import Recording
from controller.simulate.texts import LONGEST

POLICIES = (ADAPTIVE, "off")
TEXTS = "live"
ASSUMED_RHO = 0.1
"""What a drafted token of a model takes of a plain step, where the recording has no time of it."""
MOST_RHO, MOST_BATCH = 10.0, 4096
LONGEST_RUN_S = 1e7


def replay(options: argparse.Namespace) -> int:
    """Every policy over the recorded requests, each when it came, on a machine that is described by
    the recording as far as the options do not."""
    path = Path(options.recording).absolute()
    try:
        with Bars() as bars:
            bars.update("read", 0.0, "the recording")
            recording = recorded(path)
            bars.update("read", 1.0, f"{recording.steps:,} steps")
    except ValueError as error:
        raise Failure(str(error)) from None
    except OSError as error:
        raise Failure(f"{options.recording}: {error.strerror or error}") from None
    config = Config(
        machine=_machine(options, recording.head),
        drafters=_drafters(recording),
        texts=(TextsTable(TEXTS, recording=path.name),),
        load=RecordedLoad(TEXTS, path.name, LONGEST_RUN_S, options.speed),
        policies=tuple(options.policy or POLICIES),
        setting=SettingTable(max_draft_length=_longest(recording.head)),
        seed=options.seed,
    )
    return simulate_all(config, path.parent, path.name, options.json, options.plot)


def _machine(options: argparse.Namespace, head: Mapping[str, Any]) -> MachineTable:
    """As the options say, else as the server that was recorded."""
    hardware, model = options.hardware, options.model
    if hardware is None:
        if head.get("device") != "cpu":
            raise Failure(f"give --hardware, one of {', '.join(HARDWARE)}")
        hardware = "CPU"
    if model is None:
        served = str(head.get("model", "")).rpartition("/")[2].lower()
        model = next((name for name in MODELS if served.startswith(name)), None)
        if model is None:
            raise Failure(
                f"the recorded model {served[:64]!r} is none that the simulator knows; give the "
                f"nearest with --model, one of {', '.join(MODELS)}"
            )
    most = head.get("max_batch")
    if not isinstance(most, int) or not 1 <= most <= MOST_BATCH:
        return MachineTable(hardware, model, options.devices)
    return MachineTable(hardware, model, options.devices, max_batch=most)


def _drafters(recording: Recording) -> tuple[DrafterTable, ...]:
    """All that the server had; models as heads that take what was measured."""
    found = [
        DrafterTable(name, "head", rho=_rho(recording, name))
        if kind == "model"
        else DrafterTable(name, "lookup")
        for name, kind in recording.kinds.items()
    ]
    if not found:
        raise Failure("the recorded server had no drafter, so there is nothing to compare")
    return tuple(found)


def _rho(recording: Recording, drafter: str) -> float:
    """What a drafted position took, over a plain step of one request."""
    ms, positions = recording.pass_ms.get(drafter, (0.0, 0))
    plain, steps = recording.plain_ms
    if not (ms and positions and plain):
        return ASSUMED_RHO
    return min(ms / positions / (plain / steps), MOST_RHO)


def _longest(head: Mapping[str, Any]) -> int:
    given = head.get("max_draft_length")
    return min(given, LONGEST) if isinstance(given, int) and given > 0 else LONGEST
