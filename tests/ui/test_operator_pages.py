"""Benchmarks and controller pages over a scripted engine: what an operator does there."""

from __future__ import annotations

from collections.abc import Callable, Generator
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from tests import measured
from tests.app.conftest import Api, running_api
from tests.ui.test_pages import app, text

Open = Callable[[str], AppTest]


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Generator[Api]:
    with running_api(tmp_path_factory.mktemp("console")) as running:
        running.ready()
        yield running


@pytest.fixture
def opened(api: Api, monkeypatch: pytest.MonkeyPatch) -> Open:
    def open_page(name: str) -> AppTest:
        page = app(monkeypatch, api.url, api.admin_key).run()
        return page.switch_page(str(Path("app_pages", f"{name}.py"))).run()

    return open_page


def test_runs_are_told_how_to_make_opened_compared_and_removed(api: Api, opened: Open) -> None:
    page = opened("benchmarks")
    assert "No benchmark has been recorded yet" in text(page)
    for hour in range(2):
        body = measured.body(time=1_790_000_000.0 + 3600 * hour)
        assert api.client.post("/api/benchmarks", json=body).status_code == 201
    newest, oldest = (one["id"] for one in api.client.get("/api/benchmarks").json()["benchmarks"])
    page.run()
    assert "2026-09-21 15:13 UTC" in text(page)
    assert "1.53 ×" in text(page)
    page.selectbox(key=f"other-{newest}").set_value(oldest).run()
    assert "no clear difference" in text(page)
    page.button(key=f"remove-{newest}").click().run()
    assert "2026-09-21 14:13 UTC" in text(page)
    assert not page.exception
    left = api.client.get("/api/benchmarks").json()["benchmarks"]
    assert [one["id"] for one in left] == [oldest]


def test_the_policy_is_switched_and_split(api: Api, opened: Open) -> None:
    page = opened("controller")
    assert "In force: The controller chooses" in text(page)
    page.selectbox(key="policy").set_value("fixed").run()
    page.text_input(key="policy_options_fixed").set_value("draft_length=3").run()
    page.toggle(key="policy_ab").set_value(True).run()
    page.button(key="policy_apply").click().run()
    said = "fixed (draft_length=3) against off, which has 50 % of the requests"
    assert said in text(page)
    assert api.client.get("/api/state").json()["controller"]["ab_policy"] == "off"


@pytest.mark.parametrize("tab", ["Acceptance", "Cost", "What if", "Guidelines"])
def test_each_tab_stands_a_report_with_nothing_in_it(opened: Open, tab: str) -> None:
    page = opened("controller")
    page.session_state["models-tab"] = tab
    page.run()
    assert not page.exception
