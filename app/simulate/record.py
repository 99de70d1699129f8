"""`paceline simulate record`: a recording of a running server, fetched into a file."""

from __future__ import annotations

import argparse
import contextlib
import shlex
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import httpx

from app.failures import Failure, StartError
from app.output_files import output_file, replacing
from app.progress import Bars
from app.remote import call, connected, reason

POLL_S, POLL_TIMEOUT_S = 0.5, 20.0
AWAY_S = 60.0
"""How long a server may not answer while it records."""


class Interrupted(Failure):
    """Ctrl-C, with what it leaves behind."""

    exit_code = 130


class Removed(Failure):
    """The server has the recording no longer."""


class Away(Exception):
    """The server cannot say now; it may in a while."""


def record(options: argparse.Namespace) -> int:
    """Record until the time or size is over, or until Ctrl-C, which keeps what there is. What goes
    wrong after the start names the recording that the server keeps."""
    out = output_file(options.out, "OUT")
    assert out is not None
    body = {"seconds": options.seconds, "megabytes": options.megabytes}
    with connected(options) as client:
        name = _begin(client, body)
        with _kept(client, name, out):
            try:
                with Bars() as bars:
                    found = _follow(client, name, body, bars)
            except KeyboardInterrupt:
                found = _stop(client, name)
        _fetch(client, name, out)
        size = found["bytes"] / 2**20
        print(
            f"{out}: {found['requests']:,} requests, {found['steps']:,} steps in "
            f"{found['seconds']:,.0f} s, {size:,.2f} MB"
        )
        _remove(client, name, out)
    if found["end"] not in ("duration", "size", "stopped"):
        raise Failure(f"The recording ended early, and is whole until then: {found['reason']}")
    return 0


def _begin(client: httpx.Client, body: dict[str, Any]) -> str:
    """The recording's name."""
    try:
        return call(client, "POST", "/api/recordings", body=body)["name"]
    except KeyboardInterrupt:
        raise Interrupted(
            "Interrupted while the recording began. If it runs, the console's Benchmarks page "
            "shows it and stops it."
        ) from None


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
    """The recording as it is now. A server that does not answer is asked again for a minute."""
    begin = time.monotonic()
    while True:
        try:
            every = _list(client)
            break
        except (Away, httpx.HTTPError):
            if time.monotonic() - begin > AWAY_S:
                raise
            time.sleep(POLL_S)
    found = next((one for one in every if one["name"] == name), None)
    if found is None:
        raise Removed(f"The recording {name} was removed meanwhile.")
    return found


def _list(client: httpx.Client) -> list[dict[str, Any]]:
    answer = client.get("/api/recordings", timeout=POLL_TIMEOUT_S)
    if answer.is_success:
        try:
            return answer.json()["recordings"]
        except (ValueError, KeyError, TypeError):
            raise Away("something else answers there") from None
    said = f"HTTP {answer.status_code}: {reason(answer)}"
    raise Away(said) if answer.is_server_error else Failure(f"The server answers {said}")


def _fetch(client: httpx.Client, name: str, out: Path) -> None:
    """The file as the server has it; OUT is only there once it is whole."""
    with _kept(client, name, out), client.stream("GET", f"/api/recordings/{name}") as answer:
        if not answer.is_success:
            answer.read()
            raise Failure(f"The server answers HTTP {answer.status_code}: {reason(answer)}")
        try:
            with replacing(out) as part, part.open("wb") as file:
                for chunk in answer.iter_bytes():
                    file.write(chunk)
        except OSError as error:
            raise Failure(f"{out}: {error.strerror or error}.") from None


def _remove(client: httpx.Client, name: str, out: Path) -> None:
    """The server's copy."""
    left = f"{out} is whole, but the server still has its copy {name}"
    try:
        call(client, "DELETE", f"/api/recordings/{name}")
    except KeyboardInterrupt:
        raise Interrupted(f"{left}.") from None
    except (Failure, httpx.HTTPError) as error:
        raise Failure(f"{left}: {error}") from None


@contextlib.contextmanager
def _kept(client: httpx.Client, name: str, out: Path) -> Generator[None]:
    """What goes wrong inside says what the server keeps and how to have it."""
    address = f"{str(client.base_url).rstrip('/')}/api/recordings/{name}"
    kept = (
        f"The server keeps the recording as {name}. Once it has ended, fetch it on the console's "
        f'Benchmarks page, or with: curl -f -H "Authorization: Bearer $PACELINE_API_KEY" '
        f"-o {shlex.quote(str(out))} {shlex.quote(address)}"
    )
    try:
        yield
    except Removed:
        raise
    except KeyboardInterrupt:
        raise Interrupted(f"Interrupted. {kept}") from None
    except (Away, httpx.HTTPError) as error:
        why = str(error).rstrip(".")
        raise StartError(f"Cannot reach {client.base_url}: {why}. {kept}") from None
    except Failure as error:
        raise type(error)(f"{error} {kept}") from None
