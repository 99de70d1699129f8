"""Fixtures for all tests: one real server on the real model, in float32, shared by the session."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import settings

from tests.workers import Groups

ROOT = Path(__file__).resolve().parent.parent
ARTIFACTS = ROOT / "tests" / "artifacts"
START_S = 600.0
STOP_S = 30.0


# How long an example takes says something of the machine and its other workers only.
settings.register_profile("suite", deadline=None)
settings.load_profile("suite")


def _usual_signals() -> None:
    """As in a terminal, also where a job in the background, or nohup, has them ignored: processes
    that tests start would ignore them too."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


_usual_signals()

FIRST = ("e2e", "packaging", "db", "engine")
"""Folders whose tests come first, the longest, so that no worker is left with them at the end."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=_turn)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Groups:
    return Groups(config, log)


def _turn(item: pytest.Item) -> int:
    folder = item.path.parent.name
    return FIRST.index(folder) if folder in FIRST else len(FIRST)


@dataclass(frozen=True)
class Server:
    """A running `paceline serve`. log: its output; pid: of the API process."""

    url: str
    port: int
    admin_key: str
    inference_key: str
    data_dir: Path
    log: Path
    pid: int

    @property
    def admin(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.admin_key}"}

    @property
    def inference(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.inference_key}"}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def clean_environment(**more: str) -> dict[str, str]:
    """This environment without PACELINE_ variables, so that a developer's do not leak in."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PACELINE_")}
    return kept | more


def start_server(
    data_dir: Path, log: Path, *options: str, admin_key: str
) -> tuple[subprocess.Popen[bytes], int]:
    """Start `paceline serve` on a free port; the process and the port."""
    port = free_port()
    command = [sys.executable, "-m", "app.cli", "serve", "--port", str(port)]
    command += ["--data-dir", str(data_dir), "--dtype", "float32"]
    # One thread: with more, a busy neighbour (here the tests' browser) slows every step.
    # Without the trained drafters that ship: tests of these load them.
    command += ["--threads", "1", "--mtp", "off", "--draft-model", "off", *options]
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=clean_environment(PACELINE_ADMIN_KEY=admin_key),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    return process, port


def wait_ready(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    """Wait for /health/ready. Fails the test with the log's end when the server cannot start."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        try:
            if httpx.get(f"{url}/health/ready", timeout=2, trust_env=False).status_code == 200:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.2)
    tail = "\n".join(log.read_text("utf-8", errors="replace").splitlines()[-30:])
    pytest.fail(f"the server is not ready (exit code {process.poll()}); its log ends:\n{tail}")


def stop_server(process: subprocess.Popen[bytes]) -> int:
    """SIGTERM, then SIGKILL if that does not end it; the exit code."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    try:
        return process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Generator[Server]:
    """The session's server. Tests that change its controller or drafters put them back."""
    data_dir = tmp_path_factory.mktemp("server")
    log = ARTIFACTS / "server.log"
    admin_key = f"admin-{secrets.token_urlsafe(32)}"
    process, port = start_server(data_dir, log, admin_key=admin_key)
    url = f"http://127.0.0.1:{port}"
    try:
        wait_ready(process, url, log)
        made = httpx.post(
            f"{url}/api/keys",
            headers={"Authorization": f"Bearer {admin_key}"},
            json={"name": "tests", "scopes": ["inference"]},
            trust_env=False,
        )
        assert made.status_code == 201, made.text
        yield Server(url, port, admin_key, made.json()["secret"], data_dir, log, process.pid)
    finally:
        stop_server(process)
        engine_log = data_dir / "logs" / "engine.log"
        if engine_log.exists():
            (ARTIFACTS / "engine.log").write_bytes(engine_log.read_bytes())
