"""The benchmarks page in a browser: from the empty state to two runs compared and one removed."""

from __future__ import annotations

import json
import re
from collections.abc import Generator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests import measured
from tests.e2e.conftest import WAIT_S, Live, pick, screenshot

pytestmark = pytest.mark.browser

expect.set_options(timeout=1000 * WAIT_S)


@pytest.fixture(scope="module")
def runs(live: Live) -> Generator[list[str]]:
    """Ids of two runs, the newer one last; the first of them has two loads."""
    first = measured.body(rows=measured.rows((1, 4)))
    second = measured.body(time=first["time"] + 3600)
    names = [live.post("/api/benchmarks", body)["id"] for body in (first, second)]
    yield names
    left = {one["id"] for one in live.get("/api/benchmarks")["benchmarks"]}
    for name in left & set(names):
        live.delete(f"/api/benchmarks/{name}")


def test_without_a_run_the_page_tells_the_command_that_makes_one(page: Page, live: Live) -> None:
    page.goto(f"{live.console}/benchmarks")
    card = page.locator(".st-key-card-benchmarks")
    expect(card).to_contain_text("No benchmark has been recorded yet")
    expect(card).to_contain_text(f"paceline bench --url {live.url}")
    expect(card).to_contain_text("--record")


def test_the_newest_run_is_open_with_tables_and_charts(
    page: Page, live: Live, runs: list[str]
) -> None:
    page.goto(live.console)
    page.get_by_role("link", name="Benchmarks").click()
    card = page.locator(".st-key-card-benchmark")
    expect(card).to_contain_text("2026-09-21 15:13 UTC")
    expect(card).to_contain_text("AMD EPYC, 2 cores")
    # The tables of closed tabs are in the document too: Speed, Latency, Drafting.
    tables = card.locator("table.pl-groups")
    expect(tables).to_have_count(3)
    expect(tables.nth(0).locator("tr").last).to_contain_text("1.53 ×")
    page.get_by_role("tab", name="Latency").click()
    expect(tables.nth(1)).to_be_visible()
    expect(tables.nth(1)).to_contain_text("TPOT p99")
    page.get_by_role("tab", name="Drafting").click()
    expect(tables.nth(2)).to_be_visible()
    expect(tables.nth(2).locator("tr").last).to_contain_text("ngram 80 %, none 20 %")
    expect(card.get_by_test_id("stVegaLiteChart")).to_have_count(4)
    expect(page.get_by_role("alert")).to_have_count(0)
    screenshot(page, "console-benchmarks")


def test_a_run_is_opened_by_its_link_and_compared_with_another(
    page: Page, live: Live, runs: list[str]
) -> None:
    page.goto(f"{live.console}/benchmarks?run={runs[0]}")
    card = page.locator(".st-key-card-benchmark")
    expect(card).to_contain_text("2026-09-21 14:13 UTC")
    page.get_by_role("radio", name="4 at once").click()
    expect(card).to_contain_text("This load only; 2 were measured.")
    other = page.locator(".st-key-card-comparison")
    pick(page, other.get_by_role("combobox"))
    expect(other.locator("tbody tr")).to_have_count(9)
    expect(other).to_contain_text("no clear difference")


def test_a_run_is_downloaded_as_json_and_as_a_page(
    page: Page, live: Live, runs: list[str], tmp_path: Path
) -> None:
    page.goto(f"{live.console}/benchmarks?run={runs[0]}")
    texts: dict[str, str] = {}
    for label, ending in (("JSON", "json"), ("HTML page", "html")):
        with page.expect_download() as waiting:
            page.get_by_role("button", name=label).click()
        assert waiting.value.suggested_filename == f"{runs[0]}.{ending}"
        file = tmp_path / ending
        waiting.value.save_as(file)
        texts[ending] = file.read_text("utf-8")
    assert json.loads(texts["json"])["rows"] == measured.rows((1, 4))
    assert re.search("Speed against none.*<svg", texts["html"], re.DOTALL)


def test_a_name_in_a_recorded_row_fetches_nothing(page: Page, live: Live) -> None:
    image = "![](http://127.0.0.1:9/p.png) <b>x</b> :red[y] _z_"
    first, second = measured.rows()[:2]
    rows = [first | {"phase": image}, second | {"phase": "rush"}]
    name = live.post("/api/benchmarks", measured.body(rows=rows))["id"]
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    try:
        page.goto(f"{live.console}/benchmarks?run={name}")
        card = page.locator(".st-key-card-benchmark")
        expect(card.get_by_role("radio")).to_have_count(2)
        expect(card.get_by_role("radiogroup")).to_contain_text(f"{image}: 1 at once")
        page.get_by_role("radio", name="rush: 1 at once").click()
        expect(card).to_contain_text("This load only; 2 were measured.")
        assert card.locator("img").count() == 0
        assert not [url for url in asked if "p.png" in url]
    finally:
        live.delete(f"/api/benchmarks/{name}")


def test_a_run_is_removed_after_a_second_click(page: Page, live: Live, runs: list[str]) -> None:
    page.goto(f"{live.console}/benchmarks?run={runs[1]}")
    card = page.locator(".st-key-card-benchmark")
    card.get_by_role("button", name="Remove").click()
    page.get_by_role("button", name="Remove this run").click()
    expect(card).to_contain_text("2026-09-21 14:13 UTC")
    assert [one["id"] for one in live.get("/api/benchmarks")["benchmarks"]] == [runs[0]]
