"""`paceline up`: everything starts, says where it is, and goes down without leaving anything."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil
import pytest

from app import children
from tests.conftest import ARTIFACTS, ROOT, clean_environment, free_port

START_S = 300.0


class Up:
    """A running `paceline up` and what it printed."""

    def __init__(self, data_dir: Path, *options: str) -> None:
        self.port, self.ui_port = free_port(), free_port()
        self.log = ARTIFACTS / "up.log"
        self.log.parent.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "app.cli", "up", "--data-dir", str(data_dir)]
        command += ["--port", str(self.port), "--ui-port", str(self.ui_port), "--dtype", "float32"]
        command += ["--threads", "1"]
        command += options
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(
                command,
                cwd=ROOT,
                env=clean_environment(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        self.family: list[psutil.Process] = []

    def output(self) -> str:
        return self.log.read_text("utf-8")

    def wait_until_announced(self) -> None:
        deadline = time.monotonic() + START_S
        while "Ctrl-C stops everything" not in self.output():
            assert self.process.poll() is None, self.output()
            assert time.monotonic() < deadline, self.output()
            time.sleep(0.2)
        self.family = psutil.Process(self.process.pid).children(recursive=True)

    def left_over(self) -> list[psutil.Process]:
        """Processes of the family that live on after a moment."""
        return psutil.wait_procs(self.family, timeout=10)[1]


Start = Callable[..., Up]


@dataclass(frozen=True)
class Failed:
    data_dir: Path
    status: int
    output: str


@pytest.fixture
def start() -> Generator[Start]:
    """Starts `up` in a data directory, and ends what the test leaves."""
    with ExitStack() as stack:
        yield lambda *arguments: stack.enter_context(running_up(*arguments))


@contextmanager
def running_up(data_dir: Path, *options: str) -> Generator[Up]:
    running = Up(data_dir, *options)
    yield running
    if running.process.poll() is None:
        running.process.send_signal(signal.SIGTERM)
        running.process.wait(60)
    for process in running.left_over():
        process.kill()


def test_up_serves_and_goes_down_on_ctrl_c(start: Start, tmp_path: Path) -> None:
    up = start(tmp_path)
    up.wait_until_announced()
    said = up.output()
    match = re.search(r"Admin key, shown only now: (pl-\S+)", said)
    assert match
    key = match[1]
    assert f"http://127.0.0.1:{up.ui_port}" in said
    answer = httpx.post(
        f"http://127.0.0.1:{up.port}/v1/chat/completions",
        headers={"Authorization": f"Bearer {key}"},
        json={
            "model": "smollm2-135m-instruct",
            "messages": [{"role": "user", "content": "Say hello."}],
            "max_tokens": 8,
        },
        timeout=60,
    )
    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"][0]["message"]["content"]
    assert httpx.get(f"http://127.0.0.1:{up.ui_port}/_stcore/health").status_code == 200
    for process in up.family:
        assert key not in " ".join(process.cmdline())
    assert len(up.family) == 3, [process.cmdline()[:4] for process in up.family]
    up.process.send_signal(signal.SIGINT)
    assert up.process.wait(60) == 0
    assert not up.left_over()
    assert "Traceback" not in up.output()


@pytest.fixture(scope="module")
def failed(tmp_path_factory: pytest.TempPathFactory) -> Failed:
    """The first start in a data directory, which finds no model."""
    data_dir = tmp_path_factory.mktemp("failed")
    running = Up(data_dir, "--model", "./no-model")
    return Failed(data_dir, running.process.wait(60), running.output())


def test_a_start_that_fails_has_shown_the_key_that_it_made(failed: Failed) -> None:
    assert failed.status == 3
    assert failed.output.count("Admin key, shown only now: pl-") == 1
    assert "./no-model" in failed.output
    assert "Traceback" not in failed.output


def test_the_next_start_shows_no_key_and_stops_everything_when_a_child_dies(
    failed: Failed, start: Start
) -> None:
    up = start(failed.data_dir, "--mtp", "off", "--draft-model", "off")
    up.wait_until_announced()
    assert "shown only now" not in up.output()
    console = next(p for p in up.family if "streamlit" in " ".join(p.cmdline()))
    os.kill(console.pid, signal.SIGKILL)
    assert up.process.wait(60) == 1
    assert "The console stopped with status -9" in up.output()
    assert not up.left_over()


COUNTS = """
import signal, sys, time
came = []
def stop(number, frame):
    came.append(number)
    if len(came) == 2:
        sys.exit(7)
signal.signal(signal.SIGTERM, stop)
print("up", flush=True)
time.sleep(60)
"""


def test_a_second_signal_reaches_a_child_that_is_being_stopped(tmp_path: Path) -> None:
    log = tmp_path / "child.log"
    child = children.spawn("child", children.python("-c", COUNTS), os.environ, log)
    while "up" not in log.read_text("utf-8"):
        assert not child.ended()
        time.sleep(0.02)
    threading.Timer(0.5, children.terminate, [[child]]).start()
    started = time.monotonic()
    children.stop([child])
    assert child.process.returncode == 7
    assert time.monotonic() - started < children.STOP_S / 2
