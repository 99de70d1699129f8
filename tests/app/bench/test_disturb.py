"""`paceline bench disturb`: what counts as following, and a run against a server that answers."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import threading
import time
from collections.abc import Generator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from app.bench import disturb
from app.bench.following import Point, Stage, followed, rests
from app.cli import main


def point(at_s: float, stage: Stage, predicted: float, length: float) -> Point:
    return Point("auto", stage, at_s, predicted, 20.0, 4.0, 100.0, length)


def test_a_value_rests_from_when_on_it_stays_near_its_goal() -> None:
    values = [(float(at), value) for at, value in enumerate((10, 14, 18, 20, 20, 21, 19, 20, 20))]
    assert rests(values, 20.0, 1.5) == 3.0
    assert rests(values, 20.0, 2.5) == 2.0
    assert rests([(0.5, 20.0)] * 4, 20.0, 1.0) == 0.5


def test_a_value_that_goes_away_again_does_not_rest_before() -> None:
    values = [(float(at), value) for at, value in enumerate((20, 20, 20, 9, 9, 9, 20, 20, 20, 20))]
    assert rests(values, 20.0, 1.0) is None  # only in the last third
    swinging = [(float(at), 20.0 + 5 * (at % 2)) for at in range(12)]
    assert rests(swinging, 20.0, 1.0) is None


def test_stages_are_measured_from_the_end_of_the_one_before() -> None:
    points = [point(at / 2, "before", 10.0, 4.0) for at in range(1, 11)]
    points += [point(5 + at / 2, "loaded", 20.0 if at > 4 else 12.0, 1.0) for at in range(1, 21)]
    before, loaded = followed(points)
    assert (before.stage, before.predicted_ms, before.table_s) == ("before", 10.0, 0.5)
    assert (loaded.stage, loaded.predicted_ms, loaded.draft_length) == ("loaded", 20.0, 1.0)
    assert (loaded.table_s, loaded.plan_s) == (2.5, 0.5)


def test_the_processes_spin_only_as_long_as_they_are_wanted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started: list[subprocess.Popen[bytes]] = []

    class Kept(subprocess.Popen[bytes]):
        def __init__(self, *given: Any, **named: Any) -> None:
            super().__init__(*given, **named)
            started.append(self)

    def interrupted() -> None:
        with disturb.burning(2):
            assert [one.poll() for one in started] == [None, None]
            raise KeyboardInterrupt

    monkeypatch.setattr(disturb.subprocess, "Popen", Kept)
    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert [one.returncode for one in started] == [-9, -9]


class Fake(BaseHTTPRequestHandler):
    """Answers chats at once; its table says 10 ms, and 30 while it is told to be slow."""

    slow = False
    changed: ClassVar[dict[str, bytes]] = {}
    bodies: ClassVar[list[dict[str, Any]]] = []

    def do_GET(self) -> None:
        ms = 30.0 if Fake.slow else 10.0
        answers: dict[str, Any] = {
            "/v1/models": {"data": [{"id": "fake"}]},
            "/api/state": {
                "live": {
                    "step_ms_p50": ms, "batch_mean": 2.0, "tokens_per_s": 5.0,
                    "draft_length_mean": None,
                }
            },
            "/api/what-if": {
                "candidates": [
                    {"drafter": "ngram", "draft_length": 4.0, "predicted_ms": 99.0},
                    {"drafter": "none", "draft_length": 0.0, "predicted_ms": ms},
                ]
            },
        }  # fmt: skip
        path = self.path.partition("?")[0]
        if Fake.changed.get(path) == b"hang up":
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        self.answer(Fake.changed.get(path) or json.dumps(answers[path]).encode())

    def do_POST(self) -> None:
        given = self.rfile.read(int(self.headers["Content-Length"]))
        if not given:  # the client was cancelled while it sent
            return
        body = json.loads(given)
        Fake.bodies.append(body)
        time.sleep(0.02)
        event = {"choices": [{"delta": {"content": "x"}, "finish_reason": "stop"}]}
        status = 400 if body.get("speculation", {}).get("drafter") == "nonsense" else 200
        self.answer(b"data: " + json.dumps(event).encode() + b"\n\ndata: [DONE]\n\n", status)

    def answer(self, content: bytes, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def url(monkeypatch: pytest.MonkeyPatch) -> Generator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Fake)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    Fake.bodies, Fake.changed = [], {}
    monkeypatch.setattr(disturb, "POLL_S", 0.05)
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_every_arm_is_disturbed_in_its_turn(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Burning:
        def __init__(self, processes: int) -> None:
            self.processes = processes

        def __enter__(self) -> None:
            Fake.slow = self.processes == 3

        def __exit__(self, *_: object) -> None:
            Fake.slow = False

    monkeypatch.setattr(disturb, "burning", Burning)
    out = tmp_path / "out.json"
    arguments = ["bench", "disturb", "--url", url, "--key", "k", "--prompts", "adversarial"]
    arguments += ["--limit", "4", "--concurrency", "2", "--processes", "3", "--json", str(out)]
    assert main([*arguments, "--quiet-s", "1", "--loaded-s", "1"]) == 0
    found = json.loads(out.read_bytes())
    assert list(found["stages"]) == [
        f"{arm}, {stage}" for arm in ("none", "auto") for stage in ("before", "loaded", "after")
    ]
    for name, stage in found["stages"].items():
        assert stage["predicted_ms"] == (30.0 if "loaded" in name else 10.0)
        assert stage["table_s"] is not None
    assert {body["ignore_eos"] for body in Fake.bodies} == {True}
    wishes = {json.dumps(body.get("speculation")) for body in Fake.bodies}
    assert wishes == {"null", '{"enabled": false}'}
    assert "table follows" in capsys.readouterr().out
    assert '"--key", "k"' not in out.read_text("utf-8")


def test_a_mode_that_the_server_refuses_ends_the_run(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["bench", "disturb", "--url", url, "--key", "k", "--prompts", "adversarial"]
    assert main([*arguments, "--modes", "nonsense", "--quiet-s", "1", "--loaded-s", "1"]) == 1
    assert "Mode nonsense does not work on this server" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("path", "body", "code", "says"),
    [
        ("/api/state", b"hang up", 1, "/api/state is not answered any more"),
        ("/api/state", b"<html>", 3, "/api/state does not answer like Paceline"),
        ("/api/state", b'{"live": [1]}', 3, "does not answer like Paceline"),
        ("/api/what-if", b'{"candidates": []}', 3, "/api/what-if.* does not answer like Paceline"),
        ("/api/what-if", b'{"x": ' + b"[" * 100_000, 3, "does not answer like Paceline"),
        ("/api/state", b'{"live": null}', 1, "told of no step all the while: nothing is written"),
    ],
)
def test_a_server_that_does_not_tell_ends_the_run_with_a_word(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    path: str, body: bytes, code: int, says: str,
) -> None:  # fmt: skip
    out = tmp_path / "out.json"
    out.write_text("last night's", "utf-8")
    Fake.changed = {path: body}
    arguments = ["bench", "disturb", "--url", url, "--key", "k", "--prompts", "adversarial"]
    arguments += ["--modes", "none", "--processes", "1", "--json", str(out)]
    assert main([*arguments, "--quiet-s", "1", "--loaded-s", "1"]) == code
    assert re.search(says, capsys.readouterr().err)
    assert out.read_text("utf-8") == "last night's"
