"""The recordings of the benchmarks page: what an operator sees and does, over a scripted engine."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from tests.app.conftest import MODEL, Api, eventually
from tests.ui import pages
from tests.ui.pages import text
from ui import palette, recordings

ONE: dict[str, Any] = {
    "name": "20261130-141502-ab12", "running": False, "began": 1_796_048_102.0, "seconds": 187.2,
    "steps": 12_345, "requests": 1, "bytes": 3 * 2**20, "limit_seconds": 600.0,
    "limit_bytes": 64 * 2**20, "end": "duration", "reason": "Its time was over.",
}  # fmt: skip


def test_its_facts_are_length_steps_requests_and_size() -> None:
    assert recordings.facts(ONE) == "3 min 7 s, 12,345 steps, 1 request, 3.0 MiB"


@pytest.mark.parametrize(
    ("running", "end", "word", "colour"),
    [
        (True, "", "running", palette.ACCENT),
        (False, "stopped", "whole", palette.GOOD),
        (False, "size", "whole", palette.GOOD),
        (False, "disk", "cut short", palette.WARNING),
        (False, "engine_died", "cut short", palette.WARNING),
    ],
)
def test_its_state_tells_whether_something_came_between(
    running: bool, end: str, word: str, colour: str
) -> None:
    assert recordings.state(ONE | {"running": running, "end": end}) == (word, colour)


def test_progress_is_towards_the_nearer_bound() -> None:
    assert recordings.progress(ONE | {"seconds": 300.0}) == 0.5
    assert recordings.progress(ONE | {"bytes": 48 * 2**20}) == 0.75
    assert recordings.progress(ONE | {"seconds": 900.0}) == 1.0
    assert recordings.progress(ONE | {"limit_seconds": 0.0, "limit_bytes": 0}) == 0.0


def test_the_list_changes_when_one_begins_ends_or_goes_and_not_while_one_runs() -> None:
    running = ONE | {"running": True, "end": ""}
    first = recordings.signature([running])
    assert recordings.signature([running | {"steps": 99, "bytes": 9}]) == first
    assert len({first, recordings.signature([ONE]), recordings.signature([])}) == 3


# --- the panel ------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def empty(api: Api) -> Generator[None]:
    yield
    with api.client as client:
        client.post("/api/recordings/stop")
        for one in client.get("/api/recordings").json()["recordings"]:
            client.delete(f"/api/recordings/{one['name']}")


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch, api: Api) -> AppTest:
    return pages.opened(monkeypatch, api, "benchmarks")


def listed(api: Api) -> list[dict[str, Any]]:
    with api.client as client:
        return client.get("/api/recordings").json()["recordings"]


def ask(api: Api) -> None:
    with api.client as client:
        body = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}]}
        assert client.post("/v1/chat/completions", json=body).status_code == 200


def buttons(page: AppTest) -> set[str]:
    return {button.label for button in page.button}


def code(page: AppTest) -> str:
    return "\n".join(block.value for block in page.code)


def record(page: AppTest, api: Api) -> str:
    """One that was started and stopped here is left open."""
    page.button(key="recording_start").click().run()
    ask(api)
    page.button(key="recording_stop").click().run()
    assert not page.exception
    return listed(api)[0]["name"]


def test_one_is_started_with_its_bounds_and_stopped(page: AppTest, api: Api) -> None:
    assert "Nothing has been recorded" in text(page)
    page.number_input(key="recording_seconds").set_value(300).run()
    page.number_input(key="recording_megabytes").set_value(7).run()
    page.button(key="recording_start").click().run()
    (running,) = listed(api)
    assert (running["limit_seconds"], running["limit_bytes"]) == (300.0, 7 * 2**20)
    assert "running" in text(page)
    assert "Start recording" not in buttons(page)
    ask(api)
    page.button(key="recording_stop").click().run()
    assert "Stopped after 1 step." in text(page)
    assert "It was stopped." in text(page)
    assert {"Start recording", "Close"} <= buttons(page)
    assert not page.exception


def test_an_open_one_has_its_file_and_the_command_that_replays_it(page: AppTest, api: Api) -> None:
    name = record(page, api)
    assert f"paceline simulate replay {name}.jsonl" in code(page)
    (button,) = page.get("download_button")
    assert button.proto.label.startswith("File, ")
    page.button(key=f"open-recording-{name}").click().run()
    assert "replay" not in code(page)
    page.button(key=f"open-recording-{name}").click().run()
    assert f"replay {name}" in code(page)


def test_a_large_one_is_fetched_by_a_command(
    page: AppTest, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recordings, "MOST_BYTES", 10)
    name = record(page, api)
    assert not page.get("download_button")
    assert f"-o {name}.jsonl {api.url}/api/recordings/{name}" in code(page)
    assert "too large" in text(page)


def test_one_is_removed_and_the_list_goes_on(page: AppTest, api: Api) -> None:
    first, second = record(page, api), record(page, api)
    assert [one["name"] for one in listed(api)] == [second, first]
    page.button(key=f"remove-recording-{second}").click().run()
    assert [one["name"] for one in listed(api)] == [first]
    assert f"replay {second}" not in code(page)
    assert f"open-recording-{first}" in {button.key for button in page.button}


def test_one_that_began_and_ended_elsewhere_comes_into_the_list(page: AppTest, api: Api) -> None:
    with api.client as client:
        client.post("/api/recordings", json={"seconds": 100})
        page.run()
        assert "Stop recording" in buttons(page)
        for _ in range(5):
            ask(api)
        eventually(lambda: not listed(api)[0]["running"])
    page.run()
    assert "Its time was over." in text(page)


def test_what_the_api_refuses_is_said(page: AppTest, api: Api) -> None:
    with api.client as client:
        client.post("/api/recordings", json={"seconds": 100})
    page.button(key="recording_start").click().run()
    assert "A recording runs already" in text(page)
    name = listed(api)[0]["name"]
    page.button(key="recording_stop").click().run()
    with api.client as client:
        client.delete(f"/api/recordings/{name}")
    page.button(key=f"remove-recording-{name}").click().run()
    assert not page.exception
    assert "Nothing has been recorded" in text(page)


def test_a_viewer_sees_and_fetches_and_starts_nothing(
    page: AppTest, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = record(page, api)
    viewer = pages.opened(monkeypatch, api, "benchmarks", api.key("admin:read"))
    viewer.button(key=f"open-recording-{name}").click().run()
    assert len(viewer.get("download_button")) == 1
    viewer.button(key="recording_start").click().run()
    viewer.button(key=f"remove-recording-{name}").click().run()
    assert "operate" in text(viewer)
    assert [one["name"] for one in listed(api)] == [name]
    assert not viewer.exception
