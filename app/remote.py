"""What client commands need of a server: the key, the model's name, and clear refusals."""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Generator, Iterable
from typing import Annotated, Any

import httpx
import msgspec
from msgspec import Meta

from app.failures import Failure, SettingsError, StartError
from app.foreign_json import decode
from app.settings import sendable

TIMEOUT_S = 120.0
LONGEST_REASON = 300


class Listed(msgspec.Struct, frozen=True):
    id: str


class Listing(msgspec.Struct, frozen=True):
    """An answer of /v1/models."""

    data: Annotated[list[Listed], Meta(min_length=1)]


class Told(dict[str, Any]):
    """The fields of an answer. One that is asked for and not there raises StartError: it was not
    our server that answered."""

    def __init__(self, fields: dict[str, Any], url: str) -> None:
        super().__init__(fields)
        self._url = url

    def __missing__(self, name: str) -> Any:
        raise unlike_ours(self._url)


def api_key(option: str | None) -> str:
    """The key for client commands. Raises SettingsError."""
    variables = ("PACELINE_API_KEY", "PACELINE_ADMIN_KEY")
    given = {"--key": option} | {name: os.environ.get(name) for name in variables}
    where, key = next(((name, key) for name, key in given.items() if key), ("", ""))
    if not key:
        raise SettingsError("No API key: give --key or set PACELINE_API_KEY.")
    if not sendable(key):
        raise SettingsError(
            f"{where} holds characters that no key has. Give the whole key, as it was shown when "
            "it was made; a new one: paceline keys create NAME."
        )
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
    try:
        return decode(answer.content, Listing).data[0].id
    except msgspec.MsgspecError:
        raise unlike_ours(address) from None


def unlike_ours(url: str) -> StartError:
    return StartError(f"{url} does not answer like Paceline. Check --url.")


def reason(answer: httpx.Response) -> str:
    """The message of an error answer, or the start of whatever else came."""
    return message_of(answer.content)


def message_of(body: bytes) -> str:
    """The words of an error object ({"error": {"message"}}, {"detail"}, …), else what came."""
    try:
        found = decode(body, object)
    except msgspec.MsgspecError:
        found = None
    for name in ("error", "message", "detail"):
        while isinstance(found, dict) and name in found:
            found = found[name]
    words = found if isinstance(found, str) else body.decode("utf-8", "replace")
    return words[:LONGEST_REASON]


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
) -> Told:
    """The answer's fields, none where it is null; body: sent as JSON. Raises Failure with the
    server's own words, and StartError when the answer is none of ours."""
    answer = client.request(
        method, path, content=content, headers=headers, json=body, timeout=timeout_s
    )
    if not answer.is_success:
        raise Failure(f"The server answers HTTP {answer.status_code}: {reason(answer)}")
    try:
        found = {} if answer.content == b"null" else decode(answer.content, dict[str, Any])
    except msgspec.MsgspecError:
        raise unlike_ours(str(answer.url)) from None
    return Told(found, str(answer.url))
