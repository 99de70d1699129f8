"""Runs the console: the page server of ui/, which talks to the API over HTTP only."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import NoReturn

from app.arguments import server_url
from app.children import Child, spawn
from app.failures import SettingsError
from app.serve import claim_port
from app.settings import load_settings
from ui.launch import command, environment


def main(options: argparse.Namespace) -> NoReturn:
    """Replace this process by the console's server."""
    settings = load_settings({"ui_port": options.port})
    api_url = options.api_url or os.environ.get("PACELINE_API_URL") or server_url()
    public_url = options.public_api_url or os.environ.get("PACELINE_PUBLIC_API_URL")
    claim_port(options.host, settings.ui_port).close()
    try:
        arguments = command(settings.ui_port, api_url, options.host)
        variables = environment(api_url, settings.console_key or None, public_url)
    except ValueError as error:
        raise SettingsError(str(error)) from None
    os.execve(arguments[0], arguments, variables)


def start(port: int, api_url: str, key: str, log: Path) -> Child:
    """The console's server as a child process on loopback, with its key in the environment."""
    return spawn("console", command(port, api_url), environment(api_url, key), log)
