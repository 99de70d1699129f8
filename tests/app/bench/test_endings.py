"""What a benchmark started ends with it, and a machine that does not answer costs nothing."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

from app.bench import drafters, local, machine
from app.bench.local import hurrying, local_server
from app.bench.peers import process
from app.bench.peers.process import Peer, PeerError, Setup, Wanted
from app.children import Child
from app.failures import Failure
from app.progress import Bars
from app.signals import handled, terminable

BEFORE = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)


@pytest.fixture(autouse=True)
def kept() -> Generator[None]:
    """The handlers of the tests' own process."""
    before = {number: signal.getsignal(number) for number in BEFORE}
    yield
    assert {number: signal.getsignal(number) for number in BEFORE} == before


def gone(pid: int) -> bool:
    """Whether a process has ended; one that nobody has reaped has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def within(seconds: float, condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return condition()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_the_end_of_a_session_interrupts_once(number: signal.Signals):
    def work() -> None:
        with terminable():
            try:
                signal.raise_signal(number)
            finally:
                signal.raise_signal(signal.SIGHUP)  # shell and system send one each
                ended.append("in order")

    ended: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        work()
    assert ended == ["in order"]


def test_a_hang_up_that_nohup_ignores_stays_ignored():
    with handled([signal.SIGHUP], lambda *_: None):  # put back what the tests had
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        with terminable():
            signal.raise_signal(signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


def test_a_signal_while_a_server_ends_hurries_it(tmp_path: Path):
    code = "import signal, time\nsignal.signal(15, lambda *_: print(1, flush=True))\n"
    code += "print(0, flush=True)\ntime.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as running:
        child = Child("server", running, tmp_path / "log")
        assert running.stdout is not None
        assert running.stdout.readline() == b"0\n"
        with hurrying(child):
            signal.raise_signal(signal.SIGHUP)
        assert running.stdout.readline() == b"1\n"
        running.kill()


def test_a_hang_up_ends_the_server_that_was_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    started: list[subprocess.Popen[bytes]] = []

    def spawn(name: str, command: list[str], environment: Any, log: Path) -> Child:
        started.append(subprocess.Popen(["sleep", "60"], start_new_session=True))
        return Child(name, started[0], log)

    def hung_up() -> None:
        with local_server():
            signal.raise_signal(signal.SIGHUP)

    monkeypatch.setattr(local, "spawn", spawn)
    monkeypatch.setattr(local, "wait_until_ready", lambda *_: None)
    with pytest.raises(KeyboardInterrupt):
        hung_up()
    assert started[0].returncode == -signal.SIGTERM


@pytest.mark.parametrize("how", ["dies", "hangs"])
def test_the_workers_of_a_peer_end_with_it(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    script = tmp_path / "peer.py"
    script.write_text(
        "import os, subprocess, sys, time\n"
        "worker = subprocess.Popen(['sleep', '60'])\n"
        "sys.stdin.readline()\n"
        'print(\'@@ {"ready": "%d"}\' % worker.pid, flush=True)\n'
        "sys.stdin.readline()\n"
        + ("os._exit(9)\n" if how == "dies" else "print('@@ {', flush=True); time.sleep(60)\n"),
        "utf-8",
    )
    monkeypatch.setattr(process, "SCRIPTS", {"fake": (str(script), ("",))})
    monkeypatch.setattr(process, "STOP_S", 0.2)

    async def go() -> int:
        peer = await Peer.start(Wanted("fake", sys.executable), Setup("m", "float32", 1, ""))
        try:
            with pytest.raises(PeerError):
                await peer.generate([[1]], 1)
        finally:
            await peer.stop()
        return int(peer.described)

    worker = asyncio.run(go())
    assert within(10, lambda: gone(worker))


def test_a_program_that_does_not_answer_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for name, does in (("nvidia-smi", "exec sleep 60"), ("git", "printf '\\377'")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{does}\n", "utf-8")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(machine, "ANSWER_S", 0.5)
    found = machine.describe()
    assert found["gpu"] is None
    assert found["git"] == "\ufffd+"
    assert found["cores"] == os.cpu_count()


def measured(monkeypatch: pytest.MonkeyPatch, *lines: str) -> dict[str, Any]:
    code = f"import sys; sys.stdin.read(); print({chr(10).join(lines)!r})"
    monkeypatch.setattr(drafters, "COMMAND", (sys.executable, "-c", code))
    with Bars() as bars:
        return drafters.run({}, bars)


def test_what_a_library_prints_is_passed_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    said = ["Loading [/weights]", '{"stage": "theirs"}', "5", "[" * 5000]
    progress = '{"stage": "texts", "fraction": 0.5, "result": null, "error": null}'
    end = '{"stage": "", "fraction": 0, "result": {"a": 1}, "error": null}'
    assert measured(monkeypatch, *said, progress, end) == {"a": 1}
    shown = capsys.readouterr().out
    assert "Loading [/weights]" in shown
    assert '{"stage": "theirs"}' in shown
    assert "texts:  (50%)" in shown


def test_a_measuring_process_that_fails_says_why(monkeypatch: pytest.MonkeyPatch):
    error = '{"stage": "", "fraction": 0, "result": null, "error": "no such model"}'
    with pytest.raises(Failure, match="no such model"):
        measured(monkeypatch, error)
    with pytest.raises(Failure, match="ended with status 0; see above"):
        measured(monkeypatch, "a banner")
