"""What client commands need of a server: the key, the model's name, and clear refusals."""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Generator, Iterable
from typing import Any

import httpx

from app.failures import Failure, SettingsError, StartError

TIMEOUT_S = 120.0


def api_key(option: str | None) -> str:
    """The key for client commands. Raises SettingsError."""
    key = option or os.environ.get("PACELINE_API_KEY") or os.environ.get("PACELINE_ADMIN_KEY")
    if not key:
        raise SettingsError("No API key: give --key or set PACELINE_API_KEY.")
    return key


def served_model(url: str, key: str) -> str:
    """The name of the first model that the server lists. Raises StartError."""
    address = url.rstrip("/") + "/v1/models"
    headers = {"Authorization": f"Bearer {key}"}
    try:
        answer = httpx.get(address, headers=headers, timeout=10, trust_env=False)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise StartError(f"Cannot reach {url}: {error}. Is the server running?") from None
    if answer.status_code != 200:
        raise StartError(
            f"{url} answers HTTP {answer.status_code}: {reason(answer)} Check --url and --key."
        )
    return answer.json()["data"][0]["id"]


def reason(answer: httpx.Response) -> str:
    """The message of an error answer, or the start of whatever else came."""
    try:
        body = answer.json()
        return body["error"]["message"] if "error" in body else body["detail"]
    except (ValueError, KeyError, TypeError):
        return answer.text[:200]


@contextlib.contextmanager
def connected(options: argparse.Namespace) -> Generator[httpx.Client]:
    """A client with the command's --url and --key. Raises StartError when nothing answers."""
    headers = {"Authorization": f"Bearer {api_key(options.key)}"}
    try:
        with httpx.Client(
            base_url=options.url, headers=headers, timeout=TIMEOUT_S, trust_env=False
        ) as client:
            yield client
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise StartError(f"Cannot reach {options.url}: {error}. Is the server running?") from None


def call(
    client: httpx.Client,
    method: str,
    path: str,
    content: Iterable[bytes] | None = None,
    headers: dict[str, str] | None = None,
    *,
    body: dict[str, Any] | None = None,
    timeout_s: float = TIMEOUT_S,
) -> dict[str, Any]:
    """The answer; body: sent as JSON. Raises Failure with the server's own words."""
    answer = client.request(
        method, path, content=content, headers=headers, json=body, timeout=timeout_s
    )
    if not answer.is_success:
        raise Failure(f"The server answers HTTP {answer.status_code}: {reason(answer)}")
    return answer.json()
