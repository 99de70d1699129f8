"""Starts the console: the Streamlit command line, its settings and the environment it reads."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from ui import palette

MAIN = Path(__file__).resolve().parent / "main.py"

SECRETS = ("PACELINE_ADMIN_KEY", "PACELINE_DATABASE_URL", "PACELINE_CONSOLE_KEY")
"""Variables of the server, also as <NAME>_FILE: the console's process does not inherit them."""

SETTINGS: dict[str, str] = {
    "server.headless": "true",
    "server.enableXsrfProtection": "true",
    "server.enableCORS": "true",
    "server.fileWatcherType": "none",
    "server.enableStaticServing": "false",
    "server.enableAgentApi": "false",
    "server.websocketPingInterval": "20",
    "server.disconnectedSessionTTL": "120",
    "browser.gatherUsageStats": "false",
    "client.toolbarMode": "minimal",
    "client.showErrorDetails": "none",
    "runner.magicEnabled": "false",
    "logger.level": "warning",
    "theme.base": "light",
    "theme.primaryColor": palette.ACCENT,
    "theme.backgroundColor": "#ffffff",
    "theme.secondaryBackgroundColor": "#f4f6fa",
    "theme.textColor": palette.INK,
    "theme.borderColor": palette.LINE,
    "theme.linkColor": palette.ACCENT,
    "theme.baseRadius": "0.55rem",
    "theme.baseFontSize": "15",
    "theme.metricValueFontSize": "1.75rem",
    "theme.metricValueFontWeight": "600",
    "theme.paddingTop": "3.25rem",
    "theme.showWidgetBorder": "true",
    "theme.sidebar.backgroundColor": "#121a2b",
    "theme.sidebar.secondaryBackgroundColor": "#1f2a42",
    "theme.sidebar.textColor": "#e8ecf5",
    "theme.sidebar.borderColor": "#2a3550",
    "theme.sidebar.primaryColor": "#7fa6ff",
    "theme.sidebar.linkColor": "#9dbcff",
}


def command(port: int, api_url: str, host: str = "127.0.0.1") -> list[str]:
    """Arguments of the process that serves the console on host:port.

    Only loopback names and `host` are accepted in the Host header, so that a foreign site cannot
    reach the console by rebinding its name; on a wildcard address every name is. The API's
    address travels in the environment (see `environment`); it is here so that a missing scheme
    is refused before a process starts. Raises ValueError."""
    _checked(api_url)
    flags = {**SETTINGS, "server.address": host, "server.port": str(port)}
    arguments = [sys.executable, "-m", "streamlit", "run", str(MAIN)]
    arguments += [f"--{name}={value}" for name, value in flags.items()]
    if host not in ("0.0.0.0", "::"):
        names = dict.fromkeys(("127.0.0.1", "localhost", host))
        arguments += [f"--server.allowedHosts={name}" for name in names]
    return arguments


def environment(
    api_url: str,
    console_key: str | None = None,
    public_api_url: str | None = None,
    base: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Environment of the console's process: `base` (default: this process's) without the server's
    secrets, and its settings.

    public_api_url is the API's address as browsers reach it; without one it is api_url. The key
    is passed here and nowhere else: never as an argument, in a URL or in a file."""
    inherited = os.environ if base is None else base
    dropped = {*SECRETS, *(f"{name}_FILE" for name in SECRETS)}
    result = {name: value for name, value in inherited.items() if name not in dropped}
    result["PACELINE_API_URL"] = _checked(api_url)
    if public_api_url:
        result["PACELINE_PUBLIC_API_URL"] = _checked(public_api_url)
    if console_key:
        result["PACELINE_CONSOLE_KEY"] = console_key
    root = str(MAIN.parent.parent)
    paths = [root, *filter(None, result.get("PYTHONPATH", "").split(os.pathsep))]
    result["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))
    return result


def _checked(url: str) -> str:
    url = url.rstrip("/")
    if not url.startswith(("http://", "https://")):
        raise ValueError(f"API address {url!r}: must start with http:// or https://")
    return url
