"""The console in a browser against the live server: what an operator sees and does."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, WebSocket, expect

from tests.e2e.conftest import WAIT_S, Live, pick, screenshot
from tests.random_head import random_head

pytestmark = pytest.mark.browser

expect.set_options(timeout=1000 * WAIT_S)

REPEATING = "Write a Python class with getters and setters for name, age, city, email and phone."


def metric(page: Page, label: str) -> Any:
    tile = page.get_by_test_id("stMetric").filter(has_text=re.compile(f"^{label}"))
    return tile.get_by_test_id("stMetricValue")


def busy_seconds(state: Any) -> int:
    return sum(1 for point in state["history"] if point["tokens_per_s"] > 0)


def chart(page: Page, card: str) -> Any:
    return page.locator(f".st-key-card-{card}").get_by_test_id("stVegaLiteChart")


def choose(page: Page, card: str, label: str, option: str) -> None:
    pick(page, page.locator(f".st-key-card-{card}").get_by_role("combobox", name=label), option)


def ask(page: Page, text: str) -> None:
    page.get_by_label("Your message").fill(text)
    page.keyboard.press("Enter")


def open_chat(page: Page, live: Live, *, drafter: str | None = None) -> None:
    page.goto(f"{live.console}/chat")
    expect(page.get_by_text("Connected", exact=True)).to_be_visible()
    if drafter:
        choose(page, "settings", "Drafter", drafter)
        page.get_by_text("Fixed draft length").click()
        # A message sent before this is shown goes out under the settings before.
        expect(page.locator(".chat .next")).to_have_text(f"Next: {drafter}, D = 4.")


def test_chat_colours_tokens_by_where_they_came_from(page: Page, live: Live, load: None) -> None:
    open_chat(page, live, drafter="ngram")
    ask(page, REPEATING)
    # A line end has no width.
    accepted = page.locator(".t[data-kind=accepted]").filter(has_text=re.compile(r"\w")).first
    expect(accepted).to_be_visible()
    expect(accepted).to_have_attribute(
        "title", re.compile(r"accepted draft · drafter ngram · \d+ of \d+ drafted tokens kept")
    )
    expect(page.locator(".answer .foot").get_by_text("acceptance length")).to_be_visible()
    for word in ("tokens/s", "TTFT", "TPOT", "acceptance rate", "drafted"):
        expect(page.locator(".answer .foot").get_by_text(word)).to_be_visible()
    correction = page.locator(".t[data-kind=correction], .t[data-kind=bonus]").first
    colour = "element => getComputedStyle(element).backgroundColor"
    assert accepted.evaluate(colour) != correction.evaluate(colour)
    for word in ("drafted by ngram", "correction", "bonus"):
        expect(page.locator(".legend").get_by_text(word)).to_be_visible()
    screenshot(page, "console-chat")


def test_stop_ends_the_answer_and_frees_the_engine(page: Page, live: Live) -> None:
    open_chat(page, live)
    ask(page, "Tell a very long story about the sea.")
    expect(page.locator(".answer .t").nth(3)).to_be_visible()
    page.get_by_role("button", name="Stop").click()
    expect(page.locator(".answer .state")).to_have_text("Stopped")
    expect(page.get_by_role("button", name="Send")).to_be_visible()
    live.until("/api/state", lambda state: state["live"]["running"] == 0)


def test_a_second_turn_continues_the_first(page: Page, live: Live) -> None:
    sent: list[dict[str, Any]] = []

    def watch(socket: WebSocket) -> None:
        if socket.url.endswith("/v1/responses"):
            socket.on("framesent", lambda frame: sent.append(json.loads(frame)))

    page.on("websocket", watch)
    open_chat(page, live)
    ask(page, "Name three colours.")
    answered = page.locator(".answer .foot").filter(has_text="TTFT")
    expect(answered).to_have_count(1)
    ask(page, "Name three more.")
    expect(answered).to_have_count(2)
    assert "previous_response_id" not in sent[0]
    assert sent[1]["previous_response_id"].startswith("resp_")
    assert sent[1]["input"] == "Name three more."


def test_markup_in_an_answer_stays_text(page: Page, live: Live) -> None:
    open_chat(page, live)
    ask(page, "<img src=x onerror=alert(1)><b>bold</b>")
    expect(page.locator(".answer .t").first).to_be_visible()
    assert page.locator(".log img, .log b:not(.foot b)").count() == 0
    expect(page.locator(".user")).to_contain_text("<b>bold</b>")


def test_an_answer_goes_on_while_another_page_is_open(page: Page, live: Live) -> None:
    open_chat(page, live)
    ask(page, "Tell a story about a lighthouse.")
    expect(page.locator(".answer .t").first).to_be_visible()
    page.get_by_role("link", name="Overview").click()
    expect(metric(page, "Batch")).to_have_text("1")
    page.get_by_role("link", name="Chat").click()
    expect(page.locator(".answer .t").nth(5)).to_be_visible()
    page.get_by_role("button", name="New chat").click()
    expect(page.get_by_text("Ask the model")).to_be_visible()
    live.until("/api/state", lambda state: state["live"]["running"] == 0)


def test_controller_switches_to_a_pinned_drafter_and_back(
    page: Page, live: Live, plain_load: None
) -> None:
    page.goto(f"{live.console}/controller")
    try:
        page.get_by_role("radio", name="Pinned").click()
        choose(page, "switch", "Drafter", "ngram")
        page.get_by_text("Fixed draft length").click()
        expect(page.get_by_role("slider", name="Draft length D (tokens)")).to_have_value("4")
        page.get_by_role("button", name="Apply", exact=True).click()
        expect(page.locator(".st-key-switch-answer")).to_have_text("Pinned to ngram with D = 4.")
        setting = live.get("/api/state")["controller"]
        assert (setting["mode"], setting["drafter"], setting["draft_length"]) == (
            "pinned",
            "ngram",
            4,
        )
        expect(page.locator(".st-key-card-now")).to_contain_text("In force: Pinned to ngram")
        live.until("/api/state", lambda state: 0 < (state["live"]["draft_length_mean"] or 0) <= 4)
        expect(chart(page, "length")).to_be_visible()
        screenshot(page, "console-controller")
        page.get_by_role("radio", name="Auto").click()
        page.get_by_role("button", name="Apply", exact=True).click()
        expect(page.locator(".st-key-switch-answer")).to_contain_text("The controller chooses")
        assert live.get("/api/state")["controller"]["mode"] == "auto"
    finally:
        live.set_auto()


def test_the_open_form_takes_over_what_is_changed_elsewhere(page: Page, live: Live) -> None:
    page.goto(f"{live.console}/controller")
    target = page.get_by_role("spinbutton", name="TPOT target (ms)")
    expect(target).to_have_value("")
    schedule = [{"max_requests": 4, "draft_length": 2}]
    try:
        live.set_controller({"mode": "pinned", "drafter": "ngram", "schedule": schedule})
        expect(page.get_by_role("radio", name="Pinned")).to_be_checked()
        expect(page.get_by_text("Draft schedule: D 2 up to 4, then 0")).to_be_visible()
        expect(page.locator(".st-key-switch-answer")).to_contain_text("Changed elsewhere, by")
        target.fill("30")
        target.press("Enter")
        page.get_by_role("button", name="Apply", exact=True).click()
        expect(page.locator(".st-key-switch-answer")).to_contain_text("Drafts keep TPOT within 30")
        setting = live.get("/api/state")["controller"]
        assert (setting["schedule"], setting["tpot_target_ms"]) == (schedule, 30)
    finally:
        live.set_auto()


def test_a_decision_opens_with_its_inputs_and_candidates(
    page: Page, live: Live, plain_load: None
) -> None:
    live.until("/api/decisions?limit=1", lambda answer: answer["decisions"])
    page.goto(f"{live.console}/controller")
    card = page.locator(".st-key-card-decisions")
    table = card.get_by_test_id("stDataFrame")
    expect(table.locator("canvas").first).to_be_visible()
    table.scroll_into_view_if_needed()
    # The grid is a canvas: the mark of the first row is below the 35 pixels of the header.
    table.click(position={"x": 20, "y": 52})
    expect(card.get_by_text("Inputs", exact=True)).to_be_visible()
    expect(card.get_by_text("Candidates", exact=True)).to_be_visible()
    expect(card.get_by_text("Predicted and measured", exact=True)).to_be_visible()


def test_overview_shows_live_numbers_under_load(page: Page, live: Live, load: None) -> None:
    page.goto(live.console)
    expect(metric(page, "Batch")).to_have_text(re.compile(r"^[1-9]"))
    expect(metric(page, "Output")).to_have_text(re.compile(r"^[1-9][\d,]* tok/s$"))
    expect(metric(page, "TPOT")).to_have_text(re.compile(r"^[\d,.]+ ms$"))
    expect(metric(page, "KV pages")).to_have_text(re.compile(r"%$"))
    for name in ("output", "load", "tpot", "drafted", "drafters", "acceptance"):
        expect(chart(page, name)).to_be_visible()
    decisions = page.locator(".st-key-card-decisions tbody tr")
    expect(decisions.first).to_be_visible()
    expect(page.get_by_role("alert")).to_have_count(0)
    live.until("/api/state", lambda state: busy_seconds(state) >= 20)  # with those of other tests
    screenshot(page, "console-overview")


def test_disabling_a_drafter_takes_it_from_every_request(page: Page, live: Live) -> None:
    def enabled() -> bool:
        listed = live.get("/api/drafters")["drafters"]
        return next(item["enabled"] for item in listed if item["name"] == "ngram")

    page.goto(f"{live.console}/controller")
    switch = page.locator(".st-key-row-ngram label")
    switch.click()
    live.until("/api/drafters", lambda _: not enabled())
    switch.click()
    live.until("/api/drafters", lambda _: enabled())


def test_a_parameter_is_changed_beside_its_drafter_and_a_wrong_one_is_put_back(
    page: Page, live: Live
) -> None:
    def value(name: str) -> Any:
        drafters = {item["name"]: item for item in live.get("/api/drafters")["drafters"]}
        return {p["name"]: p["value"] for p in drafters["ngram"]["parameters"]}[name]

    page.goto(f"{live.console}/controller")
    card = page.locator(".st-key-card-drafters")
    card.get_by_text("Parameters of ngram").click()
    largest = card.get_by_label("max_n", exact=True)
    before = value("max_n")
    try:
        largest.fill("3")
        largest.press("Enter")
        live.until("/api/drafters", lambda _: value("max_n") == 3)
        smallest = card.get_by_label("min_n", exact=True)
        smallest.fill("4")
        smallest.press("Enter")
        expect(card.get_by_role("alert")).to_be_visible()
        # Another field takes its place; a busy page shows both for a moment.
        expect(smallest.first).to_have_value("1")
        assert value("min_n") == 1
    finally:
        live.set_parameters("ngram", {"max_n": before})
    expect(largest.first).to_have_value(str(before))


def test_a_corpus_is_loaded_from_a_file_indexed_and_removed(
    page: Page, live: Live, tmp_path: Path
) -> None:
    file = tmp_path / "My notes.jsonl"
    file.write_text('{"text": "The tide turns at noon."}\n{"token_ids": [1, 2, 3]}\n', "utf-8")
    page.goto(f"{live.console}/controller")
    card = page.locator(".st-key-card-corpora")
    card.locator("input[type=file]").set_input_files(file)
    name = card.get_by_label("Name", exact=True)
    expect(name).to_have_attribute("placeholder", "My-notes")
    card.get_by_role("button", name="Load", exact=True).click()
    expect(card.get_by_text("Stored My-notes: 2 documents.")).to_be_visible()
    row = card.locator(".st-key-corpus-My-notes")
    expect(row.get_by_text("ready")).to_be_visible()
    expect(row).to_contain_text("2 documents")
    row.get_by_role("button", name="Remove").click()
    page.get_by_role("button", name="Remove My-notes").click()
    expect(row).to_have_count(0)
    assert "My-notes" not in [one["name"] for one in live.get("/api/corpora")["corpora"]]


def test_a_head_is_loaded_with_a_look_at_its_memory_and_unloaded(
    page: Page, live: Live, tmp_path: Path
) -> None:
    def state() -> str:
        listed = live.get("/api/drafters")["drafters"]
        return next(item["model"]["state"] for item in listed if item["name"] == "mtp")

    shipped = state() == "loaded"
    if shipped:
        live.post("/api/drafters/mtp/unload", {})
    head = random_head(tmp_path / "head")
    page.goto(f"{live.console}/controller")
    card = page.locator(".st-key-card-drafters")
    try:
        card.get_by_text("Load mtp", exact=True).click()
        box = card.locator(".st-key-source-mtp").get_by_role("textbox")
        box.fill(str(head))
        box.press("Enter")
        card.locator(".st-key-plan-mtp").get_by_role("button").click()
        expect(card.get_by_text("fits", exact=True)).to_be_visible()
        expect(card.get_by_text("Free now")).to_be_visible()
        assert state() == "unloaded"
        screenshot(page, "console-load-drafter")
        card.get_by_role("button", name="Load mtp now").click()
        row = card.locator(".st-key-row-model-mtp")
        expect(row).to_contain_text(f"Source {head}.")
        assert state() == "loaded"
        row.get_by_role("button", name="Unload").click()
        page.get_by_role("button", name="Unload mtp").click()
        expect(card.get_by_text("Unloaded mtp.")).to_be_visible()
        assert state() == "unloaded"
    finally:
        if shipped:
            live.post("/api/drafters/mtp/load", {})


def test_the_chat_recovers_when_the_engine_comes_back(page: Page, live: Live) -> None:
    open_chat(page, live)
    ask(page, "Tell a very long story about mountains.")
    expect(page.locator(".answer .t").nth(2)).to_be_visible()
    before = live.get("/api/state")["engine"]
    os.kill(before["pid"], signal.SIGKILL)
    expect(page.locator(".fault")).to_be_visible()
    expect(page.locator(".pl-banner")).to_contain_text("engine")
    live.until(
        "/api/state",
        lambda state: (
            state["engine"]["state"] == "ready" and state["engine"]["restarts"] > before["restarts"]
        ),
    )
    expect(page.locator(".pl-banner")).to_have_count(0)
    page.get_by_role("button", name="Try again").click()
    expect(page.locator(".answer .t").first).to_be_visible()
    page.get_by_role("button", name="Stop").click()
    expect(page.locator(".answer .state")).to_have_text("Stopped")
