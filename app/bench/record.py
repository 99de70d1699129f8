"""A benchmark's rows given to a running server, whose console shows them."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import httpx
import msgspec

from app.bench.report import Row
from app.failures import Failure, SettingsError
from app.foreign_json import decode
from app.remote import api_key, reason, unlike_ours

TIMEOUT_S = 30.0
LARGEST_FILE = 2 << 30


class Recorded(msgspec.Struct, frozen=True):
    """An answer to rows that were stored."""

    id: str


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
    print(f"Recorded as {record(options.url, key, summary)}")
    return 0


def read_summary(path: Path) -> Summary:
    """The rows of a file that --json wrote. Raises SettingsError."""
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise SettingsError(f"{path} is larger than {LARGEST_FILE:,} bytes.")
        return decode(path.read_bytes(), Summary)
    except OSError as error:
        raise SettingsError(f"Cannot read {path}: {error.strerror}.") from None
    except msgspec.MsgspecError as error:
        raise SettingsError(
            f"{path} is no result of paceline bench or bench compare: {error}"
        ) from None


def check_recordable(url: str, key: str) -> None:
    """Ask before a run whether its rows can be recorded after it, with a body that is refused once
    the key is known to be good. Raises Failure with the server's own words."""
    answer = post(url, key, b"{}")
    if answer.status_code != 400:
        raise Failure(f"The rows could not be recorded at {url}: {said(answer)}")


def record(url: str, key: str, summary: Summary) -> str:
    """Store the rows; their id. Raises Failure with the server's own words."""
    answer = post(url, key, msgspec.json.encode(summary))
    if not answer.is_success:
        raise Failure(f"The rows could not be recorded at {url}: {said(answer)}")
    try:
        return decode(answer.content, Recorded).id
    except msgspec.MsgspecError:
        raise unlike_ours(str(answer.url)) from None


def post(url: str, key: str, content: bytes) -> httpx.Response:
    """Raises Failure when nothing answers."""
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    address = url.rstrip("/") + "/api/benchmarks"
    try:
        return httpx.post(
            address, content=content, headers=headers, timeout=TIMEOUT_S, trust_env=False
        )
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise Failure(f"The rows could not be recorded at {url}: {error}") from None


def said(answer: httpx.Response) -> str:
    return f"HTTP {answer.status_code}: {reason(answer)}"
