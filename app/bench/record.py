"""A benchmark's rows given to a running server, whose console shows them."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import msgspec

from app.bench.report import Row
from app.bench.stream import message_of
from app.failures import Failure, SettingsError
from app.remote import api_key

TIMEOUT_S = 30.0
LARGEST_FILE = 2 << 30


class Summary(msgspec.Struct, frozen=True):
    """A result without its requests."""

    kind: str
    time: float
    base: str
    command: list[str]
    machine: dict[str, Any]
    settings: dict[str, Any]
    rows: list[Row]


def main(options: argparse.Namespace) -> int:
    key = api_key(options.key)
    summary = read_summary(Path(options.file))
    name = record(options.url, {"Authorization": f"Bearer {key}"}, summary)
    print(f"Recorded as {name}")
    return 0


def read_summary(path: Path) -> Summary:
    """The rows of a file that --json wrote. Raises SettingsError."""
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise SettingsError(f"{path} is larger than {LARGEST_FILE:,} bytes.")
        return msgspec.json.decode(path.read_bytes(), type=Summary)
    except OSError as error:
        raise SettingsError(f"Cannot read {path}: {error.strerror}.") from None
    except msgspec.MsgspecError as error:
        raise SettingsError(
            f"{path} is no result of paceline bench or bench compare: {error}"
        ) from None


def record(url: str, headers: Mapping[str, str], summary: Summary) -> str:
    """Store the rows; their id. Raises Failure with the server's own words."""
    address = url.rstrip("/") + "/api/benchmarks"
    try:
        answer = httpx.post(
            address,
            content=msgspec.json.encode(summary),
            headers={**headers, "Content-Type": "application/json"},
            timeout=TIMEOUT_S,
            trust_env=False,
        )
        if answer.is_success:
            return str(answer.json()["id"])
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, KeyError, TypeError) as error:
        raise Failure(f"The rows could not be recorded at {url}: {error}") from None
    said = message_of(answer.content)
    raise Failure(f"The rows could not be recorded: HTTP {answer.status_code}: {said}")
