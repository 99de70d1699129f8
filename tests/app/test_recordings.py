"""Recordings over the API and by the command: started, stopped, listed, fetched, removed."""

from __future__ import annotations

import errno
import json
import os
import threading
from collections.abc import Generator
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.cli import main
from app.recordings import file as recording_file
from app.recordings import shelf
from app.recordings.file import RecordingFile, ends_of, recover
from tests.app.conftest import MODEL, Api, eventually, running_api

NAMES = ("name", "running", "began", "seconds", "steps", "bytes", "end", "reason")


@pytest.fixture
def client(api: Api) -> Generator[httpx.Client]:
    """Leaves no recording behind."""
    with api.client as client:
        yield client
        client.post("/api/recordings/stop")
        for one in listed(client):
            client.delete(f"/api/recordings/{one['name']}")


def listed(client: httpx.Client) -> list[dict[str, Any]]:
    return client.get("/api/recordings").json()["recordings"]


def start(client: httpx.Client, **body: Any) -> dict[str, Any]:
    answer = client.post("/api/recordings", json=body)
    assert answer.status_code == 201, answer.text
    return answer.json()


def ask(client: httpx.Client, words: str = "hello") -> None:
    body = {"model": MODEL, "messages": [{"role": "user", "content": words}]}
    client.post("/v1/chat/completions", json=body)


def fetched(client: httpx.Client, name: str) -> list[dict[str, Any]]:
    answer = client.get(f"/api/recordings/{name}")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("application/x-ndjson")
    assert answer.text.endswith("\n")
    return [json.loads(line) for line in answer.text.splitlines()]


def test_a_recording_is_started_stopped_fetched_and_removed(client: httpx.Client) -> None:
    begun = start(client, seconds=600)
    assert set(begun) == set(NAMES)
    assert begun["running"]
    ask(client)
    ask(client)
    name = begun["name"]
    (running,) = listed(client)
    assert (running["name"], running["running"], running["end"]) == (name, True, "")
    assert client.get(f"/api/recordings/{name}").status_code == 409
    assert client.delete(f"/api/recordings/{name}").status_code == 409
    stopped = client.post("/api/recordings/stop").json()
    assert (stopped["running"], stopped["end"], stopped["steps"]) == (False, "stopped", 2)
    head, *steps, end = fetched(client, name)
    assert (head["recording"], head["model"]) == (1, MODEL)
    assert head["drafters"] == {"ngram": "model_free"}
    assert len(steps) == 2
    assert (end["end"], end["steps"]) == ("stopped", 2)
    (ended,) = listed(client)
    assert {key: ended[key] for key in ("name", "running", "steps", "end", "reason")} == {
        "name": name, "running": False, "steps": 2, "end": "stopped", "reason": "It was stopped.",
    }  # fmt: skip
    assert client.delete(f"/api/recordings/{name}").json() == {"name": name, "removed": True}
    assert client.get(f"/api/recordings/{name}").status_code == 404
    assert listed(client) == []


def test_one_that_ends_by_itself_is_whole_and_another_can_begin(client: httpx.Client) -> None:
    name = start(client)["name"]
    for _ in range(5):
        ask(client)
    eventually(lambda: not listed(client)[0]["running"])
    assert fetched(client, name)[-1]["end"] == "duration"
    start(client)
    assert len(listed(client)) == 2


def test_there_is_one_at_a_time(client: httpx.Client) -> None:
    assert client.post("/api/recordings/stop").json()["code"] == "no_recording"
    start(client)
    again = client.post("/api/recordings", json={})
    assert (again.status_code, again.json()["code"]) == (409, "recording_running")


@pytest.mark.parametrize(
    "body",
    [{"seconds": 0}, {"seconds": 1e9}, {"megabytes": 0}, {"megabytes": 2000}, {"text": True}],
)
def test_bounds_that_are_none_are_refused(client: httpx.Client, body: dict[str, Any]) -> None:
    assert client.post("/api/recordings", json=body).status_code == 400


@pytest.mark.parametrize("name", ["..%2f..%2fpaceline", "20260101-000000-abcd", "x"])
def test_names_are_names_only(client: httpx.Client, name: str) -> None:
    assert client.get(f"/api/recordings/{name}").status_code == 404
    assert client.delete(f"/api/recordings/{name}").status_code == 404


def test_only_operators_record_and_only_administrators_read(api: Api, client: httpx.Client) -> None:
    with api.client_for(api.key("inference")) as other:
        assert other.get("/api/recordings").status_code == 403
        assert other.post("/api/recordings", json={}).status_code == 403
    with api.client_for(api.key("admin:read")) as other:
        assert other.get("/api/recordings").status_code == 200
        assert other.post("/api/recordings", json={}).status_code == 403


def test_who_recorded_is_in_the_audit_log(client: httpx.Client) -> None:
    name = start(client)["name"]
    client.post("/api/recordings/stop")

    def actions() -> list[str]:
        entries = client.get("/api/audit").json()["audit"]
        return [one["action"] for one in entries if one["target"] == name]

    eventually(lambda: {"start_recording", "stop_recording"} <= set(actions()))


# --- what can go wrong ----------------------------------------------------------------------------


def test_a_full_disk_ends_the_recording_and_not_the_server(
    client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = start(client)["name"]
    ask(client)
    eventually(lambda: listed(client)[0]["steps"] == 1)

    def full(file: int, data: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(recording_file.os, "write", full)
    ask(client)
    eventually(lambda: not listed(client)[0]["running"])
    monkeypatch.undo()
    (ended,) = listed(client)
    assert ended["end"] == "disk"
    assert len(fetched(client, name)) == 2
    start(client)
    ask(client)


def test_it_is_said_where_there_is_no_room(
    client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shelf, "SPARE_BYTES", 2**60)
    answer = client.post("/api/recordings", json={})
    assert (answer.status_code, answer.json()["code"]) == (507, "disk_full")
    assert "make room" in answer.json()["detail"]
    monkeypatch.setattr(shelf, "MOST_KEPT", 0)
    answer = client.post("/api/recordings", json={})
    assert answer.json()["code"] == "too_many_recordings"
    assert listed(client) == []


def test_an_engine_that_dies_leaves_a_whole_file(tmp_path: Path) -> None:
    with running_api(tmp_path) as api:
        api.ready()
        with api.client as client:
            name = start(client)["name"]
            ask(client)
            ask(client, "die")
            eventually(lambda: not listed(client)[0]["running"])
            assert fetched(client, name)[-1]["end"] == "engine_died"
            api.ready()
            start(client)


def test_a_server_that_stops_closes_the_recording(tmp_path: Path) -> None:
    with running_api(tmp_path) as api:
        api.ready()
        with api.client as client:
            start(client)
            ask(client)
    (path,) = (tmp_path / "recordings").iterdir()
    assert path.suffix == ".jsonl"
    assert path.stat().st_mode & 0o077 == 0
    first, last = ends_of(path)
    assert first["recording"] == 1
    assert last["steps"] == 1


def test_what_a_killed_server_left_is_made_whole(tmp_path: Path) -> None:
    path = tmp_path / "20260101-000000-abcd.part"
    path.write_bytes(b'{"recording":1}\n{"s":0.5,"requests":[]}\n{"s":0.7,"requ')
    recover(tmp_path)
    (whole,) = tmp_path.iterdir()
    assert whole.name == "20260101-000000-abcd.jsonl"
    lines = [json.loads(line) for line in whole.read_bytes().splitlines()]
    assert lines == [{"recording": 1}, {"s": 0.5, "requests": []}, {"end": "interrupted"}]


def test_a_write_that_fails_half_way_leaves_the_lines_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = RecordingFile(tmp_path, "x", {"recording": 1})
    file.write(b'{"a":1}\n')
    write = os.write

    def half(handle: int, data: memoryview) -> int:
        if len(data) < 4:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(handle, data[: len(data) // 2])

    monkeypatch.setattr(recording_file.os, "write", half)
    with pytest.raises(OSError, match="No space"):
        file.write(b'{"b":2}\n')
    path = file.finish({"end": "disk"})
    monkeypatch.undo()
    assert path.read_bytes() == b'{"recording":1}\n{"a":1}\n'


# --- the command ----------------------------------------------------------------------------------


def record(api: Api, out: Path, *options: str) -> int:
    command = ["simulate", "record", str(out), "--url", api.url, "--key", api.admin_key]
    return main([*command, *options])


def test_the_command_fetches_what_it_recorded_and_leaves_nothing(
    api: Api, client: httpx.Client, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run.jsonl"

    def use() -> None:
        eventually(lambda: listed(client))
        for _ in range(5):
            ask(client)

    user = threading.Thread(target=use)
    user.start()
    assert record(api, out, "--seconds", "100") == 0
    user.join()
    assert "5 steps" in capsys.readouterr().out
    assert json.loads(out.read_bytes().splitlines()[-1])["end"] == "duration"
    assert listed(client) == []


def test_the_command_says_what_the_server_refuses(
    api: Api, client: httpx.Client, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert record(api, tmp_path / "no" / "run.jsonl") == 1
    assert "no folder" in capsys.readouterr().err
    start(client)
    assert record(api, tmp_path / "run.jsonl") == 1
    assert "runs already" in capsys.readouterr().err
