"""Recordings in a browser: started, filled by traffic, stopped, fetched, replayed and removed."""

from __future__ import annotations

import json
from collections.abc import Generator
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

from app.cli import main
from controller.contract import RECORDING_VERSION
from controller.simulate.recording import read_recording
from tests.e2e.conftest import PROMPTS, WAIT_S, Live, screenshot

pytestmark = pytest.mark.browser

expect.set_options(timeout=1000 * WAIT_S)


@pytest.fixture
def card(page: Page, live: Live) -> Generator[Locator]:
    """The panel; no recording is left behind."""
    page.goto(f"{live.console}/benchmarks")
    yield page.locator(".st-key-card-recordings")
    for one in live.get("/api/recordings")["recordings"]:
        if one["running"]:
            live.post("/api/recordings/stop", {})
        live.delete(f"/api/recordings/{one['name']}")


def ask(live: Live, count: int) -> list[int]:
    """So many short answers, one after the other; their tokens."""
    model = live.get("/v1/models")["data"][0]["id"]
    tokens: list[int] = []
    for number in range(count):
        body = {
            "model": model,
            "messages": [{"role": "user", "content": PROMPTS[number % len(PROMPTS)]}],
            "max_tokens": 24,
            "temperature": 0,
        }
        tokens.append(live.post("/v1/chat/completions", body)["usage"]["completion_tokens"])
    return tokens


def test_live_traffic_is_recorded_fetched_replayed_and_removed(
    page: Page, card: Locator, live: Live, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    expect(card).to_contain_text("Nothing has been recorded.")
    seconds = card.get_by_label("Seconds, at most")
    seconds.fill("300")
    seconds.press("Tab")
    card.get_by_role("button", name="Start recording").click()
    expect(card.locator(".pl-pill")).to_have_text("running")
    expect(card).to_contain_text("ends by itself after 5 min 0 s or at 64.0 MiB")
    tokens = ask(live, 2)
    expect(card).to_contain_text("2 requests")
    screenshot(page, "console-recording-runs")
    card.get_by_role("button", name="Stop recording").click()
    expect(card).to_contain_text("It was stopped.")
    expect(card.locator(".pl-pill")).to_have_text("whole")
    (one,) = live.get("/api/recordings")["recordings"]
    assert one["steps"] > 10
    assert one["limit_seconds"] == 300.0

    with page.expect_download() as waiting:
        card.get_by_role("button", name="File, ").click()
    assert waiting.value.suggested_filename == f"{one['name']}.jsonl"
    file = tmp_path / f"{one['name']}.jsonl"
    waiting.value.save_as(file)
    assert file.stat().st_size == one["bytes"]
    assert json.loads(file.read_text("utf-8").splitlines()[0])["recording"] == RECORDING_VERSION
    assert [found.length for found in read_recording(file).requests] == tokens
    expect(card.get_by_test_id("stCode")).to_contain_text(f"simulate replay {file.name}")
    screenshot(page, "console-recordings")
    assert main(["simulate", "replay", str(file)]) == 0
    assert "adaptive" in capsys.readouterr().out

    card.get_by_role("button", name="Remove").click()
    page.get_by_role("button", name="Remove this recording").click()
    expect(card).to_contain_text("Nothing has been recorded.")
    assert live.get("/api/recordings")["recordings"] == []
    expect(page.get_by_role("alert")).to_have_count(0)


def test_one_that_is_started_and_ended_elsewhere_shows_without_a_click(
    card: Locator, live: Live
) -> None:
    expect(card).to_contain_text("Nothing has been recorded.")
    live.post("/api/recordings", {"seconds": 600})
    expect(card.locator(".pl-pill")).to_have_text("running")
    live.post("/api/recordings/stop", {})
    expect(card).to_contain_text("It was stopped.")
    expect(card.get_by_role("button", name="Start recording")).to_be_visible()
    card.get_by_role("button", name="Open").click()
    expect(card.get_by_role("button", name="File, ")).to_be_visible()
