"""The embedded model from the command line: fetched in a process of its own, with progress."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable

import msgspec

from app.failures import StartError
from app.progress import Bars
from app.settings import Settings, settings_of


class Line(msgspec.Struct):
    """What `python -m engine.embedded` prints, one JSON object a line."""

    fraction: float = 0.0
    message: str = ""
    path: str = ""
    error: str = ""


def fetch(settings: Settings, progress: Callable[[float, str], None]) -> str:
    """The folder of the embedded model, downloaded and converted if need be. Raises StartError.

    A process of its own, so that the caller never loads torch."""
    command = [sys.executable, "-m", "engine.embedded", settings.cache_dir]
    last = Line()
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            for text in process.stdout:
                last = msgspec.json.decode(text, type=Line)
                if not last.error:
                    progress(last.fraction, last.message or "The embedded model is ready")
        except BaseException:
            process.terminate()
            raise
    if last.error:
        raise StartError(last.message)
    if process.returncode != 0 or not last.path:
        raise StartError(
            f"Preparing the embedded model ended with status {process.returncode}. "
            f"See what it says: python -m engine.embedded '{settings.cache_dir}'"
        )
    return last.path


def main_fetch(options: argparse.Namespace) -> int:
    with Bars() as bars:
        folder = fetch(settings_of(options), lambda done, text: bars.update("model", done, text))
    print(folder)
    return 0


def main_show(options: argparse.Namespace) -> int:
    settings = settings_of(options)
    print(f"model       {settings.model}")
    print(f"served as   {settings.served_name}")
    print(f"cache       {settings.cache_dir}")
    return 0
