"""`paceline bench disturb`: other processes load the cores mid-run; how fast do table and plan
follow?"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import secrets
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Sequence
from typing import Any, Literal

import httpx
import msgspec
from rich.console import Console
from rich.table import Table

from app.bench import machine
from app.bench.arms import Arm, own_arms
from app.bench.client import CHAT, ask, drawing
from app.bench.local import terminable
from app.bench.prompts import read_prompts
from app.bench.publish import output_file, publishable
from app.bench.result import write_json
from app.bench.running import client_of
from app.bench.stream import Fault
from app.bench.workloads import Prompt
from app.failures import Failure
from app.progress import Bars
from app.remote import api_key, reason, served_model

BURN = (sys.executable, "-c", "while True: pass")
POLL_S = 0.5
CONTEXT = 256
"""Tokens of context at which the price of a step is asked."""
NEAR = 0.15
NEAR_LENGTH = 0.3
"""Tokens: mean draft lengths closer than this are the same plan."""
STALL_S = 60.0

Stage = Literal["before", "loaded", "after"]


class Point(msgspec.Struct, frozen=True):
    """A second of the server, at_s from the arm's start. predicted_ms: what the live table says
    that a plain step of `batch` requests takes; step_ms: what steps took (median of the second),
    drafts included. draft_length: mean of the requests' steps."""

    arm: str
    stage: Stage
    at_s: float
    predicted_ms: float
    step_ms: float
    batch: float
    tokens_per_s: float
    draft_length: float


class Followed(msgspec.Struct, frozen=True):
    """A stage of an arm. Medians of its last third; table_s and plan_s: seconds from its beginning
    until the predicted milliseconds, and the mean draft length, are where they stay; None when they
    do not come to rest."""

    arm: str
    stage: Stage
    predicted_ms: float
    step_ms: float
    draft_length: float
    tokens_per_s: float
    table_s: float | None
    plan_s: float | None


def main(options: argparse.Namespace) -> int:
    out = output_file(options.json)
    prompts = read_prompts(options.prompts, options.limit, options.categories)
    key = api_key(options.key)
    name = served_model(options.url, key)
    arms = [
        msgspec.structs.replace(arm, model=name)
        for arm in own_arms(options.modes, options.url, key)
    ]
    started = time.time()
    points: list[Point] = []
    with Bars(Console(stderr=True)) as bars:
        for number, arm in enumerate(arms):

            def show(fraction: float, text: str, number: int = number) -> None:
                bars.update("disturb", (number + fraction) / len(arms), text)

            points += asyncio.run(disturbed(arm, prompts, options, show))
    found = followed(points)
    show_stages(found, Console(highlight=False, width=120 if not sys.stdout.isatty() else None))
    if out:
        result = {
            "kind": "disturb",
            "command": ["paceline", *publishable(sys.argv[1:])],
            "time": started,
            "machine": machine.describe(),
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
        write_json(out, result)
        print(f"Written to {out}")
    return 0


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


async def look(client: httpx.AsyncClient, arm: str, stage: Stage, at_s: float) -> Point | None:
    """The server's last second beside what its table says; None while nothing decodes. Raises
    Failure when the key may not look."""
    live = (await got(client, "/api/state"))["live"] or {}
    if not live.get("step_ms_p50") or live["batch_mean"] < 0.5:
        return None
    batch = round(live["batch_mean"])
    asked = await got(client, f"/api/what-if?batch_size={batch}&context_len={CONTEXT}")
    plain = next(one for one in asked["candidates"] if not one["draft_length"])
    return Point(
        arm=arm,
        stage=stage,
        at_s=round(at_s, 2),
        predicted_ms=plain["predicted_ms"],
        step_ms=live["step_ms_p50"],
        batch=live["batch_mean"],
        tokens_per_s=live["tokens_per_s"],
        draft_length=live["draft_length_mean"] or 0.0,
    )


async def got(client: httpx.AsyncClient, path: str) -> dict[str, Any]:
    answer = await client.get(path, timeout=STALL_S)
    if answer.status_code != 200:
        raise Failure(f"{path} answers HTTP {answer.status_code}: {reason(answer)}")
    return answer.json()


@contextlib.contextmanager
def burning(processes: int) -> Generator[None]:
    """So many processes that spin, gone afterwards."""
    with terminable(), contextlib.ExitStack() as stack:
        for _ in range(processes):
            one = stack.enter_context(subprocess.Popen(BURN, stdin=subprocess.DEVNULL))
            stack.callback(one.kill)
        yield


def followed(points: Sequence[Point]) -> list[Followed]:
    """What each stage of each arm came to, in order. The first stage's beginning is the start."""
    found: list[Followed] = []
    places: list[tuple[str, Stage]] = [(point.arm, point.stage) for point in points]
    for arm, stage in dict.fromkeys(places):
        mine = [one for one in points if (one.arm, one.stage) == (arm, stage)]
        before = [one for one in points if one.arm == arm and one.at_s < mine[0].at_s]
        begin = before[-1].at_s if before else 0.0
        last = mine[-max(1, len(mine) // 3) :]
        table = statistics.median(one.predicted_ms for one in last)
        length = statistics.median(one.draft_length for one in last)
        found.append(
            Followed(
                arm=arm,
                stage=stage,
                predicted_ms=round(table, 3),
                step_ms=round(statistics.median(one.step_ms for one in last), 3),
                draft_length=round(length, 3),
                tokens_per_s=round(statistics.median(one.tokens_per_s for one in last), 2),
                table_s=rests(
                    [(p.at_s - begin, p.predicted_ms) for p in mine], table, NEAR * table
                ),
                plan_s=rests(
                    [(p.at_s - begin, p.draft_length) for p in mine],
                    length,
                    max(NEAR_LENGTH, NEAR * length),
                ),
            )
        )
    return found


def rests(values: Sequence[tuple[float, float]], goal: float, band: float) -> float | None:
    """The time of the first of (time, value) from which on all but one in ten are within `band` of
    the goal; None when there is no such before the last third."""
    inside = [abs(value - goal) <= band for _, value in values]
    for place, (at, _) in enumerate(values[: max(1, 2 * len(values) // 3)]):
        rest = inside[place:]
        if inside[place] and sum(rest) >= 0.9 * len(rest):
            return round(at, 2)
    return None


def show_stages(found: Sequence[Followed], screen: Console) -> None:
    table = Table(box=None, header_style="bold")
    heads = ("arm", "stage", "plain step, table ms", "steps took ms", "D", "tokens/s")
    for head in (*heads, "table follows s", "plan follows s"):
        table.add_column(head, justify="left" if head in ("arm", "stage") else "right")
    for one in found:
        numbers = (one.predicted_ms, one.step_ms, one.draft_length, one.tokens_per_s)
        times = ("-" if at is None else f"{at:.1f}" for at in (one.table_s, one.plan_s))
        table.add_row(one.arm, one.stage, *(f"{number:.1f}" for number in numbers), *times)
    screen.print(table)
