"""What client commands need of a server: the key, the model's name, and clear refusals."""

from __future__ import annotations

import os

import httpx

from app.failures import SettingsError, StartError


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
