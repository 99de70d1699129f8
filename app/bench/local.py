"""A server of our own for one benchmark: started on a free port, stopped when it is done."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import NamedTuple

import httpx

from app.bench.options import SERVING
from app.children import Child, python, spawn, stop, terminate
from app.failures import StartError
from app.settings import Settings
from app.signals import ENDINGS, handled, terminable

POLL_S = 0.1
START_S = 900.0
"""A first start may have to fetch and convert a model."""


class Local(NamedTuple):
    """A server that answers. pid: of its API process."""

    url: str
    key: str
    pid: int


@contextlib.contextmanager
def local_server(
    arguments: Sequence[str] = (), show: Callable[[float, str], None] = lambda fraction, text: None
) -> Generator[Local]:
    """`paceline serve` with these options, a database of its own and a key that only the
    environment holds. Raises StartError with the end of its log when it does not come up."""
    with terminable(), tempfile.TemporaryDirectory(prefix="paceline-bench-") as folder:
        key = secrets.token_urlsafe(32)
        port = free_port()
        command = python("-m", "app.cli", "serve", "--port", str(port), "--data-dir", folder)
        kept = {name: value for name, value in os.environ.items() if not unwanted(name)}
        child = spawn(
            "server",
            [*command, *arguments],
            kept | {"PACELINE_ADMIN_KEY": key},
            Path(folder) / "server.log",
        )
        try:
            url = f"http://127.0.0.1:{port}"
            wait_until_ready(child, url, show)
            yield Local(url, key, child.process.pid)
        finally:
            with hurrying(child):
                stop([child])


def serving(settings: Settings) -> list[str]:
    """The options of `paceline serve` that have a benchmark's own server serve as it was asked."""
    given = {name: getattr(settings, name) for name in SERVING}
    return [f"--{name.replace('_', '-')}={value}" for name, value in given.items() if value]


def hurrying(child: Child) -> contextlib.AbstractContextManager[None]:
    """A signal that comes while the child ends hurries it, and leaves no orphan."""
    return handled((signal.SIGINT, *ENDINGS), lambda number, frame: terminate([child]))


def unwanted(name: str) -> bool:
    """Settings of another server; where the models are cached holds for this one too."""
    return name.startswith("PACELINE_") and name != "PACELINE_CACHE_DIR"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_until_ready(child: Child, url: str, show: Callable[[float, str], None]) -> None:
    deadline = time.monotonic() + START_S
    show(0.0, "starting a server")
    with httpx.Client(base_url=url, timeout=2.0, trust_env=False) as client:
        while not child.ended() and time.monotonic() < deadline:
            with contextlib.suppress(httpx.HTTPError, ValueError):
                answer = client.get("/health/ready")
                if answer.status_code == 200:
                    show(1.0, "the server is ready")
                    return
                progress = (answer.json().get("engine") or {}).get("progress")
                if progress:
                    show(progress["fraction"], progress["message"])
            time.sleep(POLL_S)
    how = "ended" if child.ended() else f"was not ready after {START_S:g} s"
    raise StartError(f"The server {how}. Its log ends:\n{child.last_lines(10)}")
