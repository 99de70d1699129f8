"""`paceline simulate record`: a recording of a running server, fetched into a file."""

from __future__ import annotations

import argparse
import contextlib
import time
from pathlib import Path
from typing import Any

import httpx

from app.bench.publish import output_file
from app.failures import Failure
from app.progress import Bars
from app.remote import call, connected, reason

POLL_S = 0.5


def record(options: argparse.Namespace) -> int:
    """Record until the time or size is over, or until Ctrl-C, which keeps what there is."""
    out = output_file(options.out, "OUT")
    assert out is not None
    body = {"seconds": options.seconds, "megabytes": options.megabytes}
    with connected(options) as client:
        name = call(client, "POST", "/api/recordings", body=body)["name"]
        try:
            with Bars() as bars:
                found = _follow(client, name, body, bars)
        except KeyboardInterrupt:
            found = _stop(client, name)
        _fetch(client, name, out)
        call(client, "DELETE", f"/api/recordings/{name}")
    size = found["bytes"] / 2**20
    print(
        f"{out}: {found['requests']:,} requests, {found['steps']:,} steps in "
        f"{found['seconds']:,.0f} s, {size:,.2f} MB"
    )
    if found["end"] not in ("duration", "size", "stopped"):
        raise Failure(f"The recording ended early, and is whole until then: {found['reason']}")
    return 0


def _follow(client: httpx.Client, name: str, body: dict[str, Any], bars: Bars) -> dict[str, Any]:
    """The recording once it has ended."""
    while True:
        found = _find(client, name)
        if not found["running"]:
            return found
        share = max(
            found["seconds"] / body["seconds"], found["bytes"] / (body["megabytes"] * 2**20)
        )
        bars.update("record", share, f"{found['steps']:,} steps")
        time.sleep(POLL_S)


def _stop(client: httpx.Client, name: str) -> dict[str, Any]:
    """The recording, ended now unless it had ended by itself."""
    if _find(client, name)["running"]:
        with contextlib.suppress(Failure):  # it ended meanwhile
            call(client, "POST", "/api/recordings/stop")
    return _find(client, name)


def _find(client: httpx.Client, name: str) -> dict[str, Any]:
    every = call(client, "GET", "/api/recordings")["recordings"]
    found = next((one for one in every if one["name"] == name), None)
    if found is None:
        raise Failure(f"The recording {name} was removed meanwhile.")
    return found


def _fetch(client: httpx.Client, name: str, out: Path) -> None:
    """The file as the server has it; OUT is only there once it is whole."""
    part = out.with_name(out.name + ".part")
    try:
        with (
            client.stream("GET", f"/api/recordings/{name}") as answer,
            part.open("wb") as file,
        ):
            if not answer.is_success:
                answer.read()
                raise Failure(f"The server answers HTTP {answer.status_code}: {reason(answer)}")
            for chunk in answer.iter_bytes():
                file.write(chunk)
        part.replace(out)
    except (OSError, httpx.HTTPError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise Failure(f"{out}: {why}. The server keeps the recording as {name}.") from None
    finally:
        part.unlink(missing_ok=True)
