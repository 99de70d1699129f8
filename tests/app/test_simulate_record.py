"""`paceline simulate record` while its server is away: it waits, and names what is kept there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import httpx
import pytest

from app.cli import main
from app.simulate import record as record_command

NAME = "20260101-000000-abcd"
FILE = b'{"recording":2}\n'
KEPT = f"The server keeps the recording as {NAME}."

Answer = Callable[[], httpx.Response]


def listed(running: bool = False, name: str = NAME) -> Answer:
    one = {"name": name, "running": running, "seconds": 9.0, "steps": 3, "requests": 2,
           "bytes": 2**20, "end": "" if running else "duration", "reason": ""}  # fmt: skip
    return lambda: httpx.Response(200, json={"recordings": [one]})


def away() -> httpx.Response:
    raise httpx.ConnectError("connection refused")


def interrupt() -> httpx.Response:
    raise KeyboardInterrupt


def html() -> httpx.Response:
    return httpx.Response(200, text="<html>")


def status(code: int) -> Answer:
    return lambda: httpx.Response(code, json={"error": {"message": "said so."}})


def file() -> httpx.Response:
    return httpx.Response(200, content=FILE)


class Scripted:
    """Answers the polls one by one, the last again and again."""

    def __init__(self, *polls: Answer, **others: Answer) -> None:
        self.polls, self.others = list(polls), others
        self.asked: list[str] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path.removeprefix("/api/recordings").removeprefix("/")
        what = {"GET": "get", "DELETE": "delete"}.get(request.method, path or "start")
        if what == "get" and not path:
            self.asked.append("list")
            return (self.polls.pop(0) if len(self.polls) > 1 else self.polls[0])()
        self.asked.append(what)
        usual = {"start": listed_one, "get": file}.get(what, lambda: httpx.Response(200, json={}))
        return self.others.get(what, usual)()


def listed_one() -> httpx.Response:
    return httpx.Response(201, json={"name": NAME})


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "my run.jsonl"


class Ran(NamedTuple):
    """A command that has ended: its exit code, what it printed and what it complained of."""

    code: int
    shown: str
    said: str


Run = Callable[[Scripted], Ran]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, out: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """The command against a server; a second passes with each look at the clock."""
    now = [0.0]

    def clock() -> float:
        now[0] += 1.0
        return now[0]

    instant = SimpleNamespace(sleep=lambda seconds: None, monotonic=clock)
    monkeypatch.setattr(record_command, "time", instant)
    inner = httpx.Client

    def start(server: Scripted) -> Ran:
        def client(**given: Any) -> httpx.Client:
            return inner(**given, transport=httpx.MockTransport(server))

        monkeypatch.setattr(httpx, "Client", client)
        code = main(["simulate", "record", str(out), "--url", "http://server:1", "--key", "k"])
        written = capsys.readouterr()
        return Ran(code, written.out, written.err)

    return start


def kept(why: str, ran: Ran, out: Path) -> bool:
    """Whether it says why, that the server keeps the recording, and how to fetch that."""
    fetch = f"-o '{out}' http://server:1/api/recordings/{NAME}"
    return all(part in ran.said for part in (why, KEPT, fetch))


@pytest.mark.parametrize("fault", [away, html, status(500), status(503)])
def test_a_server_that_is_away_for_less_than_a_minute_costs_nothing(
    fault: Answer, run: Run, out: Path
) -> None:
    server = Scripted(listed(True), *[fault] * 50, listed(True), *[fault] * 50, listed())
    ran = run(server)
    assert ran.code == 0
    assert out.read_bytes() == FILE
    assert server.asked[-2:] == ["get", "delete"]
    assert "2 requests, 3 steps in 9 s, 1.00 MB" in ran.shown


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        (away, "Cannot reach http://server:1: connection refused. The"),
        (html, "Cannot reach http://server:1: something else answers there. The"),
        (status(503), "Cannot reach http://server:1: HTTP 503: said so. The"),
        (status(401), "The server answers HTTP 401: said so. The"),
    ],
)
def test_one_that_stays_away_is_named_with_what_it_keeps(
    fault: Answer, why: str, run: Run, out: Path
) -> None:
    server = Scripted(listed(True), fault)
    ran = run(server)
    assert ran.code in (1, 3)
    assert kept(why, ran, out)
    asked = server.asked.count("list")
    assert asked == 2 if "401" in why else 50 < asked < 70
    assert not out.exists()


def test_ctrl_c_ends_the_recording_and_keeps_what_there_is(run: Run, out: Path) -> None:
    server = Scripted(listed(True), interrupt, listed(True), listed())
    assert run(server).code == 0
    assert server.asked == ["start", "list", "list", "list", "stop", "list", "get", "delete"]
    assert out.read_bytes() == FILE


@pytest.mark.parametrize("where", ["stop", "get"])
def test_ctrl_c_once_more_says_what_the_server_keeps(where: str, run: Run, out: Path) -> None:
    server = Scripted(interrupt, listed(True), listed(), **{where: interrupt})
    ran = run(server)
    assert ran.code == 130
    assert ran.said.startswith("paceline: Interrupted. ")
    assert kept("", ran, out)
    assert "delete" not in server.asked
    assert list(out.parent.iterdir()) == []


@pytest.mark.parametrize(
    ("fault", "why"),
    [(away, "Cannot reach"), (status(404), "HTTP 404: said so."), (status(500), "HTTP 500")],
)
def test_a_file_that_cannot_be_fetched_stays_on_the_server(
    fault: Answer, why: str, run: Run, out: Path
) -> None:
    server = Scripted(listed(), get=fault)
    ran = run(server)
    assert ran.code in (1, 3)
    assert kept(why, ran, out)
    assert "delete" not in server.asked


@pytest.mark.parametrize(
    ("fault", "code", "why"),
    [(away, 1, ": connection refused"), (status(500), 1, "HTTP 500"), (interrupt, 130, ".")],
)
def test_a_copy_that_the_server_keeps_is_said_and_the_file_is_whole(
    fault: Answer, code: int, why: str, run: Run, out: Path
) -> None:
    ran = run(Scripted(listed(), delete=fault))
    assert ran.code == code
    assert "3 steps" in ran.shown
    said, _, rest = ran.said.partition(NAME)
    assert said == f"paceline: {out} is whole, but the server still has its copy "
    assert why in rest
    assert out.read_bytes() == FILE


def test_one_that_was_removed_is_not_said_to_be_kept(run: Run) -> None:
    ran = run(Scripted(listed(name="another")))
    assert ran.code == 1
    assert f"The recording {NAME} was removed meanwhile." in ran.said
    assert "keeps" not in ran.said


def test_ctrl_c_at_the_start_says_where_to_look(run: Run) -> None:
    ran = run(Scripted(listed(), start=interrupt))
    assert ran.code == 130
    assert "Benchmarks page shows it" in ran.said


def test_where_the_file_cannot_be_written_nothing_is_begun(run: Run, out: Path) -> None:
    out.mkdir()
    server = Scripted(listed())
    ran = run(server)
    assert ran.code == 1
    assert "is a folder" in ran.said
    assert server.asked == []
