"""The engine process itself, over its socket."""

from __future__ import annotations

import socket
import stat
import struct
import subprocess
import sys
import time
from collections.abc import Generator
from pathlib import Path

import msgspec
import pytest

from engine.config import EngineConfig
from engine.wire import FromEngine, Progress, StartFailed

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def worker(tmp_path: Path) -> Generator[tuple[subprocess.Popen[bytes], Path]]:
    """A worker told to serve a model that does not exist, listening on a socket."""
    path = tmp_path / "s"
    config = msgspec.json.encode(EngineConfig(model="/no/such/model")).decode()
    command = [sys.executable, "-m", "engine.worker", "--socket", str(path), "--config", config]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE)
    deadline = time.monotonic() + 60
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    try:
        yield process, path
    finally:
        process.kill()
        process.communicate()


def receive(sock: socket.socket) -> FromEngine:
    (length,) = struct.unpack(">I", sock.recv(4, socket.MSG_WAITALL))
    frame = sock.recv(length, socket.MSG_WAITALL)
    message: FromEngine = msgspec.msgpack.decode(frame, type=FromEngine)
    return message


def test_the_socket_is_for_its_owner_only(
    worker: tuple[subprocess.Popen[bytes], Path],
) -> None:
    _, path = worker
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_wrong_model_path_is_said_over_the_socket_and_ends_the_process(
    worker: tuple[subprocess.Popen[bytes], Path],
) -> None:
    process, path = worker
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(str(path))
        message = receive(sock)
        while isinstance(message, Progress):
            message = receive(sock)
        assert isinstance(message, StartFailed)
        assert message.code == "model_not_found"
        assert "/no/such/model" in message.message
        assert sock.recv(1) == b"", "the worker went on"
    assert process.wait(30) == 3


def test_the_process_ends_when_nobody_reads_its_refusal(
    worker: tuple[subprocess.Popen[bytes], Path],
) -> None:
    process, path = worker
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(str(path))
    assert process.wait(60) == 3
