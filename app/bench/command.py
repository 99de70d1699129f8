"""`paceline bench`: measures arms side by side, writes what was found and prints it."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import msgspec
from rich.console import Console

from app.bench import machine, report
from app.bench.arms import Arm, base_of, check_names, first_model, other_arm, own_arms
from app.bench.client import Run
from app.bench.finish import finish, output_files
from app.bench.options import MODES
from app.bench.prompts import read_prompts
from app.bench.publish import publishable
from app.bench.record import Summary, check_recordable, record
from app.bench.result import Result
from app.bench.running import Measurement
from app.bench.schedule import Group, groups
from app.foreign_json import decode
from app.progress import Bars
from app.remote import api_key, served_model
from app.signals import terminable


def main(options: argparse.Namespace) -> int:
    files = output_files(options)
    recorder = api_key(options.key) if options.record else ""
    limit = None if options.trace else options.limit  # of a trace it counts the requests
    prompts = read_prompts(options.prompts, limit, options.categories, options.pool_below)
    plan = groups(options, prompts)
    arms = [named(arm) for arm in arms_of(options)]
    base = base_of([arm.name for arm in arms], options.base)
    if options.record:
        check_recordable(options.url, recorder)
    measurement = Measurement(
        arms,
        plan,
        options.max_tokens,
        options.temperature,
        options.ignore_eos,
        options.repeat,
        options.warm_up,
        options.stall_s,
        options.all_turns,
        options.positions,
    )
    described = machine.describe()
    started = time.time()
    runs: list[Run] = []
    interrupted = False
    with terminable(), Bars(Console(stderr=True)) as bars:
        try:
            asyncio.run(measurement.run(runs, bars))
        except KeyboardInterrupt:
            interrupted = True
    result = Result(
        kind="bench",
        command=["paceline", *publishable(sys.argv[1:])],
        time=started,
        machine=described,
        server=server_state(next((arm for arm in arms if arm.ours), None)),
        settings=settings(options, arms, plan) | {"interrupted": interrupted},
        base=base,
        rows=report.rows(runs, base, options.tpot_ms),
        runs=runs,
    )
    code = finish(result, files, interrupted)
    if options.record and runs:
        summary = Summary(
            result.kind,
            result.time,
            result.base,
            result.command,
            result.machine,
            result.settings,
            result.rows,
        )
        print(f"Recorded as {record(options.url, recorder, summary)}")
    return code


def arms_of(options: argparse.Namespace) -> list[Arm]:
    """Our modes, then the other servers. With --arm alone only those are measured. Raises
    SettingsError."""
    modes = options.modes or (() if options.arm else MODES)
    key = api_key(options.key) if modes else ""
    arms = [*own_arms(modes, options.url, key), *(other_arm(given) for given in options.arm)]
    check_names(arms)
    return arms


def named(arm: Arm) -> Arm:
    """The arm with the model that its server lists first, unless one was given. Raises
    StartError."""
    if arm.model:
        return arm
    model = served_model(arm.url, arm.key) if arm.ours else first_model(arm)
    return msgspec.structs.replace(arm, model=model)


def server_state(arm: Arm | None) -> dict[str, Any] | None:
    """Model and controller of our server's /api/state, None when it cannot be read."""
    if arm is None:
        return None
    try:
        answer = httpx.get(arm.url + "/api/state", headers=arm.headers, timeout=10, trust_env=False)
        if answer.status_code != 200:
            return None
        state = decode(answer.content, dict[str, Any])
    except (httpx.HTTPError, msgspec.MsgspecError):
        return None
    return {name: state.get(name) for name in ("model", "controller")}


def settings(options: argparse.Namespace, arms: list[Arm], plan: list[Group]) -> dict[str, Any]:
    """The run as it was asked for. prompts_used: different ones, of a trace those made for it."""
    used = {prompt for group in plan for one in group for prompt in one.prompts}
    names = (
        "concurrency", "rate", "repeat", "warm_up", "max_tokens", "temperature", "ignore_eos",
        "categories", "limit", "all_turns", "tpot_ms", "trace_speed", "trace_tokens", "phase",
        "pool_below",
    )  # fmt: skip
    return {name: getattr(options, name) for name in names} | {
        "modes": [arm.name for arm in arms if arm.ours],
        "arms": {arm.name: arm.model for arm in arms if not arm.ours},
        "prompts": Path(options.prompts).name,
        "phases": Path(options.phases).name if options.phases else None,
        "trace": Path(options.trace).name if options.trace else None,
        "prompts_used": len(used),
    }
