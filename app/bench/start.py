"""`paceline bench start`: from `paceline serve` to the first token, in servers of its own."""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path

import httpx
import msgspec
from rich.console import Console

from app.bench import machine
from app.bench.local import local_server, serving
from app.bench.publish import publishable
from app.bench.result import json_of
from app.failures import StartError
from app.output_files import output_file, tell, write_each
from app.progress import Bars
from app.remote import reason, served_model
from app.settings import settings_of

TICKS_PER_S = 100
"""USER_HZ, in which Linux tells CPU time."""


class Start(msgspec.Struct, frozen=True):
    """Seconds from the start of the process to the first token; CPU seconds up to then of the
    engine's process and of the API's, None where the system does not tell."""

    first_token_s: float
    engine_cpu_s: float | None
    api_cpu_s: float | None


def main(options: argparse.Namespace) -> int:
    out = output_file(options.json)
    arguments = serving(settings_of(options))
    described = machine.describe()
    started = time.time()
    found: list[Start] = []
    with Bars(Console(stderr=True)) as bars:
        for number in range(options.repeat + 1):  # the first one may have to convert and calibrate
            text = f"start {number} of {options.repeat}" if number else "warming up"
            bars.update("start", number / (options.repeat + 1), text)
            found.append(one_start(arguments))
    counted = found[1:]
    result = {
        "kind": "start",
        "command": ["paceline", *publishable(sys.argv[1:])],
        "time": started,
        "machine": described,
        "starts": counted,
        "first": found[0],
    }
    written = write_each({out: lambda: json_of(result)} if out else {})
    times = [one.first_token_s for one in counted]
    print(
        f"First token after {min(times):.2f} to {max(times):.2f} s (median "
        f"{statistics.median(times):.2f}) in {len(times)} starts"
    )
    return tell(written)


def one_start(arguments: list[str]) -> Start:
    """Raises StartError when the server does not come up or does not answer."""
    began = time.monotonic()
    with local_server(arguments) as local:
        headers = {"Authorization": f"Bearer {local.key}"}
        body = {"model": served_model(local.url, local.key), "prompt": "Hello", "max_tokens": 1}
        try:
            with httpx.Client(base_url=local.url, headers=headers, trust_env=False) as client:
                answer = client.post("/v1/completions", json=body, timeout=600.0)
                seconds = time.monotonic() - began
                if answer.status_code != 200:
                    said = f"HTTP {answer.status_code}: {reason(answer)}"
                    raise StartError(f"The server answers {said}")
                engine = client.get("/api/state").json()["engine"]["pid"]
        except httpx.HTTPError as error:
            what = f"{type(error).__name__}: {error}"
            raise StartError(f"The server stopped answering: {what}") from None
        return Start(round(seconds, 3), cpu_s(engine), cpu_s(local.pid))


def cpu_s(process: int) -> float | None:
    """CPU seconds of a process so far."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text("ascii").rpartition(")")[2].split()
    except OSError:
        return None
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S
