"""`paceline up`: model, database, keys, API and console from nothing to running, and down again."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import secrets
import signal
import time
from collections.abc import Callable, Generator
from types import FrameType
from typing import NoReturn

import httpx
from rich.console import Console
from rich.text import Text

from app import children, console, keys, model
from app.children import Child
from app.failures import Failure, StartError
from app.progress import Bars
from app.schema import migrate_to_newest
from app.serve import claim_port
from app.settings import PREFIX, Settings, settings_of

POLL_S = 0.25
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stopped(Exception):
    """SIGINT or SIGTERM came."""


def main(options: argparse.Namespace) -> int:
    settings = settings_of(options)
    for number in SIGNALS:
        signal.signal(number, stop)
    running: list[Child] = []
    screen = Console(highlight=False, markup=False)
    try:
        start(settings, screen, running)
        watch(running)
    except Stopped:
        screen.print("\nStopping …")
        return 0
    finally:
        for number in SIGNALS:  # a second Ctrl-C hurries the children and leaves no orphans
            signal.signal(number, lambda number, frame: children.terminate(running))
        children.stop(running)


def stop(number: int, frame: FrameType | None) -> None:
    raise Stopped


@contextlib.contextmanager
def uninterrupted() -> Generator[None]:
    """A signal that comes inside the block counts at its end. Raises Stopped."""
    came: list[int] = []
    for number in SIGNALS:
        signal.signal(number, lambda number, frame: came.append(number))
    try:
        yield
    finally:
        for number in SIGNALS:
            signal.signal(number, stop)
    if came:
        raise Stopped


def start(settings: Settings, screen: Console, running: list[Child]) -> None:
    """Everything up to the printed addresses; children are put on `running` as they start."""
    claim_port(settings.host, settings.port).close()
    claim_port("127.0.0.1", settings.ui_port, "--ui-port").close()
    with Bars(screen) as bars:
        if settings.model == "embedded":
            model.fetch(settings, lambda done, text: bars.update("model", done, text))
        bars.update("database", 0.0, "migrating")
        migrate_to_newest(settings)
        admin_key = None if settings.admin_key else show_first_key(settings, screen)
        bars.update("database", 1.0, "ready")
        console_key = secrets.token_urlsafe(32)
        running.append(start_server(settings, console_key))
        log = settings.data_path / "logs" / "console.log"
        running.append(console.start(settings.ui_port, settings.url, console_key, log))
        wait_until_ready(settings, running, lambda *now: bars.update("engine", *now))
        wait_for_console(settings, running, lambda *now: bars.update("console", *now))
    announce(settings, screen, admin_key)


def show_first_key(settings: Settings, screen: Console) -> str | None:
    """The first admin key, made and printed in one go: a start that ends later does not lose it.
    None when there are keys already."""
    with uninterrupted():
        key = keys.first_admin_key(settings)
        if key:
            text = Text.assemble("Admin key, shown only now: ", (key, "bold"))
            screen.print(text, soft_wrap=True)
    return key


def start_server(settings: Settings, console_key: str) -> Child:
    """`paceline serve` with exactly these settings: all of them travel in its environment, so no
    key shows in the process list."""
    variables = {name: getattr(settings, name) for name in settings.__struct_fields__}
    variables["console_key"] = console_key
    environment = dict(os.environ) | {
        PREFIX + name.upper(): str(value)
        for name, value in variables.items()
        if value not in (None, "")
    }
    log = settings.data_path / "logs" / "server.log"
    return children.spawn("server", children.python("-m", "app.cli", "serve"), environment, log)


def wait_until_ready(
    settings: Settings, running: list[Child], show: Callable[[float, str], None]
) -> None:
    """Poll /health/ready, which tells how far loading and calibration are."""
    show(0.0, "starting")
    with httpx.Client(base_url=settings.url, timeout=2.0, trust_env=False) as client:
        while True:
            check(running)
            try:
                answer = client.get("/health/ready")
                state = answer.json()
            except (httpx.HTTPError, json.JSONDecodeError):
                time.sleep(POLL_S)
                continue
            if answer.status_code == 200:
                show(1.0, "ready")
                return
            progress = (state.get("engine") or {}).get("progress")
            if progress:
                show(progress["fraction"], f"{progress['stage']}: {progress['message']}")
            time.sleep(POLL_S)


def wait_for_console(
    settings: Settings, running: list[Child], show: Callable[[float, str], None]
) -> None:
    show(0.0, "starting")
    url = f"http://127.0.0.1:{settings.ui_port}/_stcore/health"
    with httpx.Client(timeout=2.0, trust_env=False) as client:
        while True:
            check(running)
            try:
                if client.get(url).status_code == 200:
                    show(1.0, "ready")
                    return
            except httpx.HTTPError:
                pass
            time.sleep(POLL_S)


def check(running: list[Child]) -> None:
    """Raise when a child has ended: StartError when it said why with exit code 3, else Failure."""
    for child in running:
        status = child.process.poll()
        if status is not None:
            kind = StartError if status == StartError.exit_code else Failure
            raise kind(
                f"The {child.name} stopped with status {status}. Its log is {child.log}:\n"
                f"{child.last_lines()}"
            )


def watch(running: list[Child]) -> NoReturn:
    """Raises what `check` raises, or Stopped."""
    while True:
        check(running)
        time.sleep(POLL_S)


def announce(settings: Settings, screen: Console, admin_key: str | None) -> None:
    key = admin_key or "$PACELINE_API_KEY"
    body = json.dumps(
        {
            "model": settings.served_name,
            "messages": [{"role": "user", "content": "Say hello."}],
        }
    )
    screen.print(f"\nAPI      {settings.url}   (OpenAI base URL: {settings.url}/v1)")
    screen.print(f"Console  http://127.0.0.1:{settings.ui_port}")
    if admin_key is None:
        screen.print("Admin key: as before. A new one: paceline keys create NAME --role admin")
    print(
        f"\ncurl {settings.url}/v1/chat/completions \\\n"
        f"  -H \"Authorization: Bearer {key}\" -H 'Content-Type: application/json' \\\n"
        f"  -d '{body}'\n"
        "\nCtrl-C stops everything.",
        flush=True,
    )
