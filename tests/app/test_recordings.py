"""Recordings over the API and by the command: started, stopped, listed, fetched, removed."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import threading
from collections.abc import Generator
from pathlib import Path
from typing import Any, BinaryIO

import httpx
import pytest

from app.cli import main
from app.errors import ApiError
from app.failures import Failure
from app.recordings import file as recording_file
from app.recordings import shelf
from app.recordings.file import RecordingFile, Tally, ends_of, recover, tally
from app.recordings.listing import ended
from app.recordings.shelf import Recordings
from app.simulate import record as record_command
from controller.contract import RECORDING_VERSION
from controller.simulate.recording import read_recording
from engine.client import EngineCallError
from engine.wire import CallBody, Recorded, StartRecording, StopRecording
from tests.app.conftest import MODEL, Api, eventually, running_api

NAMES = (
    "name", "running", "began", "seconds", "steps", "requests", "bytes", "limit_seconds",
    "limit_bytes", "end", "reason",
)  # fmt: skip


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


def test_a_recording_is_started_stopped_fetched_and_removed(
    client: httpx.Client, tmp_path: Path
) -> None:
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
    assert (head["recording"], head["model"]) == (RECORDING_VERSION, MODEL)
    assert head["drafters"] == {"ngram": "model_free"}
    assert len(steps) == 2
    assert (end["end"], end["steps"]) == ("stopped", 2)
    file = tmp_path / f"{name}.jsonl"
    file.write_bytes(client.get(f"/api/recordings/{name}").content)
    assert read_recording(file).steps == 2
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


@pytest.mark.parametrize(
    "name",
    [
        "..%2f..%2fpaceline", "20260101-000000-abcd", "x", "%00", "20260101-000000-abcd%0a", "..",
        "%D9%A2%D9%A0260101-000000-abcd", "20260101-000000-abcd.jsonl", "a" * 5000, "%F0%9F%98%80",
    ],
)  # fmt: skip
def test_names_are_names_only(client: httpx.Client, name: str) -> None:
    assert client.get(f"/api/recordings/{name}").status_code == 404
    assert client.delete(f"/api/recordings/{name}").status_code == 404


def test_only_operators_record_and_remove_and_viewers_read(api: Api, client: httpx.Client) -> None:
    with api.client_for(api.key("inference")) as other:
        assert other.get("/api/recordings").status_code == 403
        assert other.post("/api/recordings", json={}).status_code == 403
        assert other.get("/api/recordings/20260101-000000-abcd").status_code == 403
    name = start(client)["name"]
    with api.client_for(api.key("admin:read")) as other:
        assert other.get("/api/recordings").status_code == 200
        assert other.post("/api/recordings", json={}).status_code == 403
        assert other.post("/api/recordings/stop").status_code == 403
        client.post("/api/recordings/stop")
        assert other.get(f"/api/recordings/{name}").status_code == 200
        assert other.delete(f"/api/recordings/{name}").status_code == 403
        assert [one["name"] for one in listed(client)] == [name]


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
    assert (ended["end"], ended["reason"], ended["steps"]) == ("disk", "The disk was full.", 1)
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
    assert first["recording"] == RECORDING_VERSION
    assert last["steps"] == 1


def left(folder: Path, name: str, content: bytes) -> Path:
    path = folder / f"{name}.part"
    path.write_bytes(content)
    return path


def test_what_a_killed_server_left_is_made_whole(tmp_path: Path) -> None:
    step = b'{"s":0.5,"verify_ms":1.0,"requests":[]}\n'
    came = b'{"s":0.2,"arrived":{"request":1,"prompt":2}}\n'
    left(tmp_path, "20260101-000000-abcd", b'{"recording":2}\n' + came + step + b'{"s":0.7,"requ')
    recover(tmp_path)
    (whole,) = tmp_path.iterdir()
    assert whole.name == "20260101-000000-abcd.jsonl"
    lines = [json.loads(line) for line in whole.read_bytes().splitlines()]
    end = {"end": "interrupted", "s": 0.5, "steps": 1, "requests": 1}
    assert [lines[0], *lines[3:]] == [{"recording": 2}, end]
    (one,) = ended(tmp_path)
    assert (one.steps, one.requests, one.seconds, one.end) == (1, 1, 0.5, "interrupted")


def test_one_that_cannot_be_closed_does_not_keep_the_others_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("20260101-000000-aaaa", "20260101-000000-bbbb", "20260101-000000-cccc"):
        left(tmp_path, name, b'{"recording":2}\n')
    replace = Path.replace

    def refuse(path: Path, target: Path) -> Path:
        if "aaaa" in path.name:
            raise OSError(errno.EIO, "Input/output error")
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", refuse)
    recover(tmp_path)
    assert [one.name[-4:] for one in ended(tmp_path)] == ["cccc", "bbbb"]


def test_what_another_server_still_writes_is_left_to_it(tmp_path: Path) -> None:
    file = RecordingFile(tmp_path, "20260101-000000-abcd", {"recording": RECORDING_VERSION})
    recover(tmp_path)
    file.write(b'{"s":0.5,"verify_ms":1.0,"requests":[]}\n')
    path = file.finish({"end": "stopped"})
    assert path.read_bytes().count(b"\n") == 3
    assert [one.end for one in ended(tmp_path)] == ["stopped"]


def test_a_file_without_a_line_is_none(tmp_path: Path) -> None:
    left(tmp_path, "20260101-000000-abcd", b"")
    left(tmp_path, "20260101-000000-abce", b'{"recordi')
    recover(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_lines_are_counted_wherever_the_chunks_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = b'{"s":0.5,"verify_ms":1.0}\n'
    path = left(tmp_path, "x", b'{"recording":2}\n' + step * 7 + b'{"s":1')
    for chunk in range(1, 60):
        monkeypatch.setattr(recording_file, "CHUNK", chunk)
        assert tally(path) == Tally(7, 0, 0.5, len(step) * 7 + 16)


@pytest.mark.parametrize("content", [b"", b"x\n", b'{"time":"x","limits":3}\n{"end":1,"s":[]}\n'])
def test_what_is_no_recording_does_not_hide_the_others(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "20260101-000000-abcd.jsonl").write_bytes(content)
    RecordingFile(tmp_path, "20260102-000000-abcd", {"recording": RECORDING_VERSION}).finish(
        {"end": "size"}
    )
    assert [one.name for one in ended(tmp_path)] == ["20260102-000000-abcd", "20260101-000000-abcd"]


def test_the_newest_is_first_also_of_one_second(tmp_path: Path) -> None:
    times = {"20260101-000000-ffff": 0.1, "20260101-000000-0000": 0.3, "20260101-000001-aaaa": 1.2}
    for name, moment in times.items():
        head = {"recording": RECORDING_VERSION, "time": 1767225600 + moment}
        RecordingFile(tmp_path, name, head).finish({"end": "size"})
    assert [one.name for one in ended(tmp_path)] == list(reversed(times))


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


class Gate:
    """An engine whose answers can be held back; calls: what it was asked."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.open = asyncio.Event()
        self.open.set()
        self.error: Exception | None = None

    async def call(self, body: CallBody) -> object:
        self.calls.append(type(body).__name__)
        await self.open.wait()
        if self.error is not None and isinstance(body, StartRecording):
            raise self.error
        return {}


def test_a_start_that_nobody_answers_leaves_no_engine_recording_for_nobody(tmp_path: Path) -> None:
    async def scene() -> None:
        engine = Gate()
        engine.error = EngineCallError("internal", "The engine did not answer in time.")
        recordings = Recordings(tmp_path, engine.call)
        with pytest.raises(EngineCallError):
            await recordings.start({}, 60.0, 2**20)
        await asyncio.sleep(0)
        assert engine.calls == [StartRecording.__name__, StopRecording.__name__]
        assert list(tmp_path.iterdir()) == []
        engine.error = None
        assert (await recordings.start({}, 60.0, 2**20)).running
        await recordings.stop()

    asyncio.run(scene())


def test_of_two_starts_at_once_one_runs_and_a_stop_waits_for_it(tmp_path: Path) -> None:
    async def scene() -> None:
        engine = Gate()
        engine.open.clear()
        recordings = Recordings(tmp_path, engine.call)
        starts = [asyncio.create_task(recordings.start({}, 60.0, 2**20)) for _ in range(2)]
        while not engine.calls:
            await asyncio.sleep(0.001)
        stop = asyncio.create_task(recordings.stop())
        await asyncio.sleep(0.01)
        engine.open.set()
        first, second = await asyncio.gather(*starts, return_exceptions=True)
        assert not isinstance(first, BaseException)
        assert isinstance(second, ApiError)
        assert second.status == 409
        stopped = await stop
        assert (stopped.name, stopped.end) == (first.name, "stopped")
        assert [one.name for one in await recordings.list()] == [first.name]
        assert [path.suffix for path in tmp_path.iterdir()] == [".jsonl"]

    asyncio.run(scene())


def test_a_stop_keeps_what_still_waits_for_the_disk(tmp_path: Path) -> None:
    async def scene() -> None:
        recordings = Recordings(tmp_path, Gate().call)
        name = (await recordings.start({}, 60.0, 2**24)).name
        step = b'{"s":0.5,"verify_ms":1.0,"requests":[]}\n'
        for _ in range(50):
            recordings.receive(Recorded(name, step * 200))
        stopped = await recordings.stop()
        assert (stopped.steps, stopped.running) == (10_000, False)
        assert tally(tmp_path / f"{name}.jsonl").steps == 10_000

    asyncio.run(scene())


def test_a_disk_that_does_not_keep_up_ends_the_recording_within_its_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written, slow = threading.Event(), os.write

    def wait(handle: int, data: memoryview) -> int:
        written.wait(30)
        return slow(handle, data)

    async def scene() -> None:
        engine = Gate()
        recordings = Recordings(tmp_path, engine.call)
        name = (await recordings.start({}, 60.0, 2**30)).name
        monkeypatch.setattr(recording_file.os, "write", wait)
        part = b'{"s":0.5,"verify_ms":1.0,"requests":[]}\n' * 1000
        for _ in range(5):
            recordings.receive(Recorded(name, part))
        written.set()
        while (await recordings.list())[0].running:
            await asyncio.sleep(0.001)
        (one,) = await recordings.list()
        assert (one.end, one.reason) == ("disk", "The disk did not keep up with the recording.")
        assert one.steps == 2000
        assert engine.calls[-1] == StopRecording.__name__

    monkeypatch.setattr(shelf, "MOST_WAITING_BYTES", 100_000)
    asyncio.run(scene())


def test_a_file_that_is_removed_by_hand_while_it_is_written_costs_itself_alone(
    tmp_path: Path,
) -> None:
    async def scene() -> None:
        recordings = Recordings(tmp_path, Gate().call)
        name = (await recordings.start({}, 60.0, 2**20)).name
        for path in tmp_path.iterdir():
            path.unlink()
        recordings.receive(Recorded(name, b'{"s":0.5,"verify_ms":1.0,"requests":[]}\n'))
        await recordings.stop()
        assert await recordings.list() == []
        assert (await recordings.start({}, 60.0, 2**20)).running
        await recordings.stop()

    asyncio.run(scene())


def test_one_that_is_removed_while_it_is_fetched_comes_whole(
    api: Api, client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = start(client)["name"]
    client.post("/api/recordings/stop")
    (size,) = [one["bytes"] for one in listed(client)]
    read = api.service.recordings.read

    async def then_removed(name: str) -> BinaryIO:
        file = await read(name)
        await api.service.recordings.remove(name)
        return file

    monkeypatch.setattr(api.service.recordings, "read", then_removed)
    answer = client.get(f"/api/recordings/{name}")
    assert (answer.status_code, len(answer.content)) == (200, size)
    assert answer.headers["content-disposition"] == f'attachment; filename="{name}.jsonl"'
    assert client.get(f"/api/recordings/{name}").status_code == 404


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


class Broken(httpx.SyncByteStream):
    """A connection that is lost in the middle of an answer."""

    def __iter__(self) -> Generator[bytes]:
        yield b'{"recording":2}\n'
        raise httpx.ReadError("connection reset")


def test_a_file_that_came_in_half_is_not_left_under_its_name(tmp_path: Path) -> None:
    transport = httpx.MockTransport(lambda request: httpx.Response(200, stream=Broken()))
    out = tmp_path / "my live run.jsonl"
    out.write_text("the last one")
    with (
        httpx.Client(transport=transport, base_url="http://server") as client,
        pytest.raises(Failure, match=r"connection reset\. The server keeps the recording as N\."),
    ):
        record_command._fetch(client, "N", out)
    assert [path.name for path in tmp_path.iterdir()] == [out.name]
    assert out.read_text() == "the last one"


def test_one_that_ended_while_it_was_stopped_by_hand_is_still_fetched(
    api: Api, client: httpx.Client
) -> None:
    name = start(client)["name"]
    client.post("/api/recordings/stop")
    with api.client as other:
        assert record_command._stop(other, name)["end"] == "stopped"
        client.delete(f"/api/recordings/{name}")
        with pytest.raises(Failure, match="was removed meanwhile"):
            record_command._stop(other, name)
