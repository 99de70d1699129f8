"""Runs the modes interleaved over chunks of prompts, then prints and stores what was measured."""

from __future__ import annotations

import argparse
import asyncio
import secrets
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import msgspec
from rich.console import Console

from app.bench import machine, report
from app.bench.client import Run, Sample, run_chunk
from app.bench.prompts import Prompt, category, chunks, read_prompts
from app.bench.publish import output_file, publishable
from app.failures import Failure
from app.modes import speculation
from app.progress import Bars
from app.remote import api_key, served_model

SMALLEST_CHUNK = 5
CHUNK_WAVES = 4
REQUEST_S = 600.0


def main(options: argparse.Namespace) -> int:
    prompts = read_prompts(options.prompts, options.limit, options.categories)
    for mode in options.modes:
        speculation(mode)
    out = output_file(options.json)
    key = api_key(options.key)
    model = served_model(options.url, key)
    return asyncio.run(bench(options, key, model, prompts, out))


async def bench(
    options: argparse.Namespace, key: str, model: str, prompts: list[Prompt], out: Path | None
) -> int:
    started = time.time()
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(
        base_url=options.url.rstrip("/"),
        headers={"Authorization": f"Bearer {key}"},
        timeout=httpx.Timeout(REQUEST_S, connect=5.0),
        limits=limits,
        trust_env=False,
    ) as client:
        body = {
            "model": model,
            "max_completion_tokens": options.max_tokens,
            "temperature": options.temperature,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if options.temperature:
            body["seed"] = 1
        runs = await measure(client, options, prompts, body)
        state = await server_state(client)
    found = report.rows(runs)
    report.show(found, Console(highlight=False, width=160 if not sys.stdout.isatty() else None))
    samples = [sample for run in runs for sample in run.samples]
    errors = [sample for sample in samples if sample.error]
    if errors:
        print(f"{len(errors)} requests failed; the first: {errors[0].error}", file=sys.stderr)
    if out:
        result = {
            "command": ["paceline", *publishable(sys.argv[1:])],
            "time": started,
            "machine": machine.describe(),
            "server": state,
            "settings": settings(options, len(prompts)),
            "rows": found,
            "runs": runs,
        }
        out.write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=1))
        print(f"Written to {out}")
    return 1 if errors else 0


async def measure(
    client: httpx.AsyncClient,
    options: argparse.Namespace,
    prompts: list[Prompt],
    body: dict[str, Any],
) -> list[Run]:
    """All runs. For each chunk the modes follow one another, so that drift of the machine meets
    all alike; who starts changes from chunk to chunk, since the first meets the cold cache. Each
    mode and repeat has a cache salt of its own: it finds neither prompts nor answers of another."""
    run_id = secrets.token_hex(4)
    bodies = {mode: with_mode(body, mode) for mode in options.modes}
    total = len(prompts) * len(bodies) * options.repeat * len(options.concurrency)
    done = 0
    runs: list[Run] = []
    with Bars(Console(stderr=True)) as bars:
        for mode, request in bodies.items():
            bars.update("bench", 0.0, f"warming up {mode}")
            place = Sample(mode, 1, 0, 0, prompts[0].category, 0)
            short = request | {"max_completion_tokens": 16}
            run = await run_chunk(client, prompts[:1], short, place, lambda: None)
            if error := run.samples[0].error:
                raise Failure(f"Mode {mode} does not work on this server: {error}")

        def count() -> None:
            nonlocal done
            done += 1
            bars.update("bench", done / total, f"{done} of {total} requests")

        for concurrency in options.concurrency:
            size = max(SMALLEST_CHUNK, CHUNK_WAVES * concurrency)
            parts = chunks(prompts, size, concurrency)
            for repeat in range(options.repeat):
                salted = {
                    mode: request | {"cache_salt": f"bench-{run_id}-{mode}-{concurrency}-{repeat}"}
                    for mode, request in bodies.items()
                }
                for number, part in enumerate(parts):
                    for mode in rotated(list(bodies), number + repeat):
                        place = Sample(mode, concurrency, repeat, number, category(part), 0)
                        runs.append(await run_chunk(client, part, salted[mode], place, count))
    return runs


def with_mode(body: dict[str, Any], mode: str) -> dict[str, Any]:
    wish = speculation(mode)
    return body if wish is None else body | {"speculation": wish}


def rotated(modes: list[str], by: int) -> list[str]:
    by %= len(modes)
    return modes[by:] + modes[:by]


async def server_state(client: httpx.AsyncClient) -> dict[str, Any] | None:
    """Model and controller of /api/state, None when the key may not read it."""
    answer = await client.get("/api/state")
    if answer.status_code != 200:
        return None
    state = answer.json()
    return {name: state.get(name) for name in ("model", "controller")}


def settings(options: argparse.Namespace, prompts: int) -> dict[str, Any]:
    names = ("modes", "concurrency", "repeat", "max_tokens", "temperature", "categories", "limit")
    return {name: getattr(options, name) for name in names} | {
        "prompts": Path(options.prompts).name,
        "prompts_used": prompts,
    }
