"""`paceline bench disturb`: other processes load the cores mid-run; how fast do table and plan
follow?"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Sequence
from typing import Any

import httpx
import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from app.bench import machine
from app.bench.arms import Arm, own_arms
from app.bench.client import CHAT, ask, drawing
from app.bench.following import Followed, Point, Stage, followed, look
from app.bench.prompts import read_prompts
from app.bench.publish import publishable
from app.bench.result import json_of
from app.bench.running import client_of
from app.bench.stream import Fault
from app.bench.workloads import Prompt
from app.failures import Failure
from app.output_files import output_file, tell, write_each
from app.progress import Bars
from app.remote import api_key, served_model
from app.signals import terminable

BURN = (sys.executable, "-c", "while True: pass")
POLL_S = 0.5
STALL_S = 60.0


def main(options: argparse.Namespace) -> int:
    out = output_file(options.json)
    prompts = read_prompts(options.prompts, options.limit, options.categories)
    key = api_key(options.key)
    name = served_model(options.url, key)
    arms = [
        msgspec.structs.replace(arm, model=name)
        for arm in own_arms(options.modes, options.url, key)
    ]
    described = machine.describe()
    started = time.time()
    points: list[Point] = []
    with Bars(Console(stderr=True)) as bars:
        for number, arm in enumerate(arms):

            def show(fraction: float, text: str, number: int = number) -> None:
                bars.update("disturb", (number + fraction) / len(arms), text)

            points += asyncio.run(disturbed(arm, prompts, options, show))
    if not points:
        raise Failure("The server told of no step all the while: nothing is written.")
    found = followed(points)
    result = {
        "kind": "disturb",
        "command": ["paceline", *publishable(sys.argv[1:])],
        "time": started,
        "machine": described,
        "settings": {
            "concurrency": options.concurrency,
            "processes": options.processes,
            "quiet_s": options.quiet_s,
            "loaded_s": options.loaded_s,
            "max_tokens": options.max_tokens,
        },
        "stages": {f"{one.arm}, {one.stage}": one for one in found},
        "runs": points,
    }
    written = write_each({out: lambda: json_of(result)} if out else {})
    show_stages(found, Console(highlight=False, width=120 if not sys.stdout.isatty() else None))
    return tell(written)


async def disturbed(
    arm: Arm,
    prompts: Sequence[Prompt],
    options: argparse.Namespace,
    show: Callable[[float, str], None],
) -> list[Point]:
    """One arm under a steady load of requests: a quiet stage, one in which `processes` others
    spin, and a quiet one. Raises Failure when a request fails."""
    points: list[Point] = []
    stages: tuple[tuple[Stage, float], ...] = (
        ("before", options.quiet_s), ("loaded", options.loaded_s), ("after", options.quiet_s),
    )  # fmt: skip
    whole = sum(seconds for _, seconds in stages)
    async with client_of(arm) as client:
        streams = [
            asyncio.create_task(keep_asking(client, arm, prompts, first, options))
            for first in range(options.concurrency)
        ]
        began = time.monotonic()
        end = 0.0
        try:
            for stage, seconds in stages:
                with burning(options.processes if stage == "loaded" else 0):
                    end += seconds
                    at = time.monotonic() - began
                    while True:
                        show(min(1.0, at / whole), f"{arm.name}, {stage}")
                        await asyncio.wait(streams, timeout=POLL_S)
                        for stream in streams:
                            if stream.done():
                                stream.result()
                        at = time.monotonic() - began
                        if (point := await look(client, arm.name, stage, at)) is not None:
                            points.append(point)
                        if at >= end:
                            break
        finally:
            for stream in streams:
                stream.cancel()
            await asyncio.gather(*streams, return_exceptions=True)
    return points


async def keep_asking(
    client: httpx.AsyncClient,
    arm: Arm,
    prompts: Sequence[Prompt],
    first: int,
    options: argparse.Namespace,
) -> None:
    """One request after the other for ever, each as long as it may be. Raises Failure."""
    salt = secrets.token_hex(4)
    at = first
    while True:
        body: dict[str, Any] = {
            "model": arm.model,
            "stream": True,
            "messages": [{"role": "user", "content": prompts[at % len(prompts)].text}],
            "max_completion_tokens": options.max_tokens,
            "ignore_eos": True,
            "cache_salt": f"disturb-{salt}",
            **drawing(options.temperature),
        }
        if arm.wish is not None:
            body["speculation"] = arm.wish
        try:
            await ask(client, CHAT, body, STALL_S)
        except Fault as fault:
            raise Failure(f"Mode {arm.name} does not work on this server: {fault}") from None
        at += options.concurrency


@contextlib.contextmanager
def burning(processes: int) -> Generator[None]:
    """So many processes that spin, gone afterwards."""
    with terminable(), contextlib.ExitStack() as stack:
        for _ in range(processes):
            one = stack.enter_context(subprocess.Popen(BURN, stdin=subprocess.DEVNULL))
            stack.callback(one.kill)
        yield


def show_stages(found: Sequence[Followed], screen: Console) -> None:
    table = Table(box=None, header_style="bold")
    heads = ("arm", "stage", "plain step, table ms", "steps took ms", "D", "tokens/s")
    for head in (*heads, "table follows s", "plan follows s"):
        table.add_column(head, justify="left" if head in ("arm", "stage") else "right")
    for one in found:
        numbers = (one.predicted_ms, one.step_ms, one.draft_length, one.tokens_per_s)
        times = ("-" if at is None else f"{at:.1f}" for at in (one.table_s, one.plan_s))
        table.add_row(Text(one.arm), one.stage, *(f"{number:.1f}" for number in numbers), *times)
    screen.print(table)
