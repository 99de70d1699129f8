"""What is compared: modes of our own server, and other servers by their address."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Any

import httpx
import msgspec

from app.failures import SettingsError, StartError
from app.foreign_json import decode
from app.modes import speculation
from app.remote import Listing
from app.settings import sendable

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:+-]{0,47}")
KEY_PREFIX = "PACELINE_ARM_KEY_"
BASE = "none"


class Arm(msgspec.Struct, frozen=True):
    """One thing that is measured.

    url: without /v1. ours: it takes our extensions (speculation, cache_salt, provenance); another
    server is asked for nothing that OpenAI does not know. model: "" until the server was asked."""

    name: str
    url: str
    key: str
    ours: bool
    wish: dict[str, Any] | None = None
    model: str = ""

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.key}"} if self.key else {}


def own_arms(modes: Sequence[str], url: str, key: str) -> list[Arm]:
    """The modes of the server at `url`. Raises SettingsError on a mode that is none."""
    return [Arm(mode, address(url), key, True, speculation(mode)) for mode in modes]


def other_arm(given: str) -> Arm:
    """The arm of `NAME=URL` or `NAME=URL,MODEL`. Its key comes from the environment (see
    `key_variable`): ours is never sent to another server. Raises SettingsError."""
    name, equals, rest = given.partition("=")
    url, _, model = rest.partition(",")
    if not equals or not NAME.fullmatch(name) or not re.match(r"https?://[^/\s]", url):
        raise SettingsError(
            f"--arm {given!r}: give NAME=URL or NAME=URL,MODEL, such as vllm=http://127.0.0.1:8001"
        )
    variable = key_variable(name)
    key = os.environ.get(variable, "")
    if not sendable(key):
        raise SettingsError(f"{variable} holds characters that no key has.")
    return Arm(name, address(url), key, False, None, model)


def first_model(arm: Arm) -> str:
    """The first model that another server lists. Raises StartError."""
    where = f"Arm {arm.name} ({arm.url})"
    hint = f"name one, {arm.name}=URL,MODEL. A key goes into {key_variable(arm.name)}."
    try:
        answer = httpx.get(arm.url + "/v1/models", headers=arm.headers, timeout=10, trust_env=False)
        if answer.status_code == 200:
            return decode(answer.content, Listing).data[0].id
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise StartError(f"{where} cannot be reached: {error}. Is the server running?") from None
    except msgspec.MsgspecError:
        raise StartError(f"{where} lists no models: {hint}") from None
    raise StartError(f"{where} lists no models (HTTP {answer.status_code}): {hint}")


def address(url: str) -> str:
    """The server's address without the slash and the /v1 that OpenAI's base URLs end with."""
    return url.rstrip("/").removesuffix("/v1").rstrip("/")


def key_variable(name: str) -> str:
    """The environment variable that an arm's key is read from."""
    return KEY_PREFIX + re.sub(r"[^A-Z0-9]", "_", name.upper())


def check_names(arms: Sequence[Arm]) -> None:
    names = [arm.name for arm in arms]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise SettingsError(f"Two arms are called {', '.join(sorted(twice))}: name them apart.")


def base_of(names: Sequence[str], wanted: str | None) -> str:
    """What the others are compared with: the arm that was named, else `none`, else the first.
    Raises SettingsError."""
    if wanted and wanted not in names:
        raise SettingsError(f"--base {wanted}: there is no such arm, but {', '.join(names)}.")
    return wanted or (BASE if BASE in names else names[0])


def static(name: str) -> bool:
    """Whether an arm's name is a choice made beforehand: plain decoding, or a drafter with D."""
    drafter, colon, length = name.partition(":")
    return (drafter == BASE and not colon) or (bool(drafter) and length.isdecimal())
