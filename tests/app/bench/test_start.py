"""`paceline bench start`: times of servers that are started for it."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from app.bench import start
from app.bench.local import Local
from app.cli import main
from tests.conftest import Server


def test_a_start_ends_with_the_first_token_and_the_first_start_does_not_count(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Sequence[str]] = []

    @contextmanager
    def running(arguments: Sequence[str]) -> Generator[Local]:
        asked.append(arguments)
        yield Local(server.url, server.admin_key, server.pid)

    monkeypatch.setattr(start, "local_server", running)
    out = tmp_path / "out.json"
    assert main(["bench", "start", "--repeat", "2", "--threads", "1", "--json", str(out)]) == 0
    assert len(asked) == 3
    assert all({"--model=embedded", "--threads=1"} <= set(one) for one in asked)
    found = json.loads(out.read_bytes())
    assert len(found["starts"]) == 2
    for one in found["starts"]:
        assert one["first_token_s"] > 0
        assert one["engine_cpu_s"] > 0
        assert one["api_cpu_s"] > 0


def test_cpu_time_is_what_a_process_used() -> None:
    begin, before = start.cpu_s(os.getpid()), time.process_time()
    while time.process_time() - before < 0.1:
        pass
    end = start.cpu_s(os.getpid())
    assert begin is not None
    assert end is not None
    assert end - begin >= 0.05
    assert start.cpu_s(1 << 30) is None
