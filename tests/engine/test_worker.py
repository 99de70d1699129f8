"""The engine process itself, over its socket."""

from __future__ import annotations

import functools
import socket
import stat
import struct
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Generator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine import worker
from engine.config import EngineConfig
from engine.frames import Connection
from engine.outbox import Outbox, Pulse
from engine.traffic import Errand, Inbox
from engine.wire import Deltas, Finished, FromEngine, Heartbeat, Progress, Snapshot, StartFailed
from tests.engine.scripted import Harness

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def process(tmp_path: Path) -> Generator[tuple[subprocess.Popen[bytes], Path]]:
    """A worker told to serve a model that does not exist, listening on a socket."""
    path = tmp_path / "s"
    config = msgspec.json.encode(EngineConfig(model="/no/such/model")).decode()
    command = [sys.executable, "-m", "engine.worker", "--socket", str(path), "--config", config]
    child = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE)
    deadline = time.monotonic() + 60
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    try:
        yield child, path
    finally:
        child.kill()
        child.communicate()


def receive(sock: socket.socket) -> FromEngine:
    (length,) = struct.unpack(">I", sock.recv(4, socket.MSG_WAITALL))
    frame = sock.recv(length, socket.MSG_WAITALL)
    message: FromEngine = msgspec.msgpack.decode(frame, type=FromEngine)
    return message


def test_the_socket_is_for_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "s"
    accepted: list[Connection] = []
    listener = threading.Thread(target=lambda: accepted.append(worker._accept(str(path))))
    listener.start()
    deadline = time.monotonic() + 30
    with socket.socket(socket.AF_UNIX) as sock:
        while sock.connect_ex(str(path)):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        listener.join(30)
    accepted[0].close()


def test_the_loop_keeps_nothing_of_an_errand_that_is_done() -> None:
    """A drafter that is unloaded must be gone with its weights before the loop waits again."""

    class Weights:
        pass

    weights = Weights()
    gone = weakref.ref(weights)
    done = threading.Event()

    def errand(held: Weights) -> None:
        done.set()

    harness = Harness(5, lambda token, position: [0.0, 1.0, 0.0, 0.0, 0.0])
    outbox, inbox, pulse = Outbox(2_000), Inbox(8), Pulse()
    text: Any = None
    loop = threading.Thread(target=worker._loop, args=(harness.engine, text, inbox, outbox, pulse))
    loop.start()
    inbox.put(Errand(functools.partial(errand, weights)))
    del weights
    assert done.wait(30)
    deadline = time.monotonic() + 30
    while gone() is not None:
        assert time.monotonic() < deadline, "the loop holds on to what it ran"
        time.sleep(0.01)
    inbox.close()
    loop.join(30)
    assert not loop.is_alive()


def test_an_errand_that_fails_does_not_end_the_loop() -> None:
    def fail() -> None:
        raise ValueError("its own fault")

    harness = Harness(5, lambda token, position: [0.0, 1.0, 0.0, 0.0, 0.0])
    outbox, inbox, pulse = Outbox(2_000), Inbox(8), Pulse()
    text: Any = None
    loop = threading.Thread(target=worker._loop, args=(harness.engine, text, inbox, outbox, pulse))
    loop.start()
    done = threading.Event()
    inbox.put(Errand(fail))
    inbox.put(Errand(done.set))
    assert done.wait(30)
    inbox.close()
    loop.join(30)
    assert not loop.is_alive()


def test_a_wrong_model_path_is_said_over_the_socket_and_ends_the_process(
    process: tuple[subprocess.Popen[bytes], Path],
) -> None:
    child, path = process
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(str(path))
        message = receive(sock)
        while isinstance(message, Progress | Heartbeat):
            message = receive(sock)
        assert isinstance(message, StartFailed)
        assert message.code == "model_not_found"
        assert "/no/such/model" in message.message
        assert sock.recv(1) == b"", "the worker went on"
    assert child.wait(30) == 3


def test_the_loop_makes_no_step_while_the_client_does_not_read() -> None:
    harness = Harness(5, lambda token, position: [0.0, 1.0, 0.0, 0.0, 0.0])
    outbox, inbox, pulse = Outbox(2_000), Inbox(8), Pulse()
    harness.engine._emit = outbox.put
    harness.add([1], 400)
    started = time.monotonic()
    text: Any = None
    loop = threading.Thread(target=worker._loop, args=(harness.engine, text, inbox, outbox, pulse))
    loop.start()
    deadline = time.monotonic() + 30
    while not outbox.full or pulse.read().step_ms is not None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    steps, size = harness.engine.steps, outbox.size
    time.sleep(0.1)
    assert (harness.engine.steps, outbox.size) == (steps, size)
    assert steps < 100
    assert size < 4_000
    messages: list[FromEngine] = []
    while not messages or not isinstance(messages[-1], Finished):
        frame = outbox.take(30)
        assert frame
        messages.append(msgspec.msgpack.decode(frame[4:], type=FromEngine))
    inbox.close()
    loop.join(30)
    assert not loop.is_alive()
    deltas = [item for m in messages if isinstance(m, Deltas) for item in m.items]
    assert sum(len(delta.pieces) for delta in deltas) == 400
    most = 1 + (time.monotonic() - started) / worker.SNAPSHOT_SECONDS
    assert sum(isinstance(m, Snapshot) for m in messages) <= most


def test_the_process_ends_when_nobody_reads_its_refusal(
    process: tuple[subprocess.Popen[bytes], Path],
) -> None:
    child, path = process
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(str(path))
    assert child.wait(60) == 3


def test_snapshots_count_what_happened_since_the_last_one() -> None:
    harness = Harness(5, lambda token, position: [0.0, 1.0, 0.0, 0.0, 0.0])
    harness.engine.scheduler.prefix_queried_tokens = 100
    harness.engine.scheduler.prefix_hit_tokens = 40
    harness.engine.scheduler.preemptions = 3
    before = worker._counts(harness.engine)
    harness.engine.scheduler.prefix_hit_tokens = 41
    now = worker._counts(harness.engine)
    first = worker._snapshot(harness.engine, 1.0, now - before)
    assert (first.preemptions, first.prefix_queried_tokens, first.prefix_hit_tokens) == (0, 0, 1)
    idle = worker._snapshot(harness.engine, 1.0, worker._counts(harness.engine) - now)
    assert (idle.forwards, idle.prefix_queried_tokens, idle.prefix_hit_tokens) == (0, 0, 0)
