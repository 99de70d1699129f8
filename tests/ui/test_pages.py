"""The pages as Streamlit runs them, on the live server and without one."""

from __future__ import annotations

import re

import pytest

from tests.conftest import Server, free_port
from tests.ui.pages import app, key, text
from ui.client import Client

PAGES = tuple(f"app_pages/{name}.py" for name in ("overview", "chat", "controller", "benchmarks"))


@pytest.mark.parametrize("path", PAGES)
def test_a_page_runs_without_error_on_the_live_server(
    monkeypatch: pytest.MonkeyPatch, server: Server, path: str
) -> None:
    page = app(monkeypatch, server.url, server.admin_key).run()
    page.switch_page(path).run()
    assert not page.exception
    assert 'role="alert"' not in text(page)


def test_the_drafters_panel_shows_the_memory_of_texts(
    monkeypatch: pytest.MonkeyPatch, server: Server
) -> None:
    page = app(monkeypatch, server.url, server.admin_key).run()
    page.switch_page("app_pages/controller.py").run()
    assert re.search(r"\d+ of \d+ MiB", text(page))


def test_the_drafters_panel_shows_which_models_are_loaded_and_what_they_take(
    monkeypatch: pytest.MonkeyPatch, server: Server
) -> None:
    page = app(monkeypatch, server.url, server.admin_key).run()
    page.switch_page("app_pages/controller.py").run()
    states = re.findall(r"model, (?:not loaded|D up to \d+, [\d.,]+ [MG]iB)", text(page))
    assert len(states) == 2  # mtp and draft_model


def test_a_source_that_is_not_there_is_refused_beside_its_drafter(
    monkeypatch: pytest.MonkeyPatch, server: Server
) -> None:
    client = Client(server.url, server.admin_key)
    loaded = {one["name"]: one["enabled"] for one in client.drafters()}["mtp"]
    if loaded:
        client.unload_drafter("mtp")
    page = app(monkeypatch, server.url, server.admin_key).run()
    page.switch_page("app_pages/controller.py").run()
    try:
        page.text_input(key="source-mtp").set_value("/no/such/folder").run()
        page.button(key="plan-mtp").click().run()
        assert "no such folder" in text(page)
        assert "load-now-mtp" not in [button.key for button in page.button]
    finally:
        if loaded:
            client.load_drafter("mtp", "auto")


@pytest.mark.parametrize("path", PAGES)
def test_a_page_says_that_the_api_is_away_and_does_not_fail(
    monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    page = app(monkeypatch, f"http://127.0.0.1:{free_port()}", "x" * 40).run()
    page.switch_page(path).run()
    assert not page.exception
    assert "No API answers" in text(page)
    assert "comes back by itself" in text(page)


def test_a_page_recovers_when_the_api_comes_back(
    monkeypatch: pytest.MonkeyPatch, server: Server
) -> None:
    page = app(monkeypatch, f"http://127.0.0.1:{free_port()}", server.admin_key).run()
    assert "No API answers" in text(page)
    monkeypatch.setenv("PACELINE_API_URL", server.url)
    page.run()
    assert "No API answers" not in text(page)


def test_the_overview_shows_every_number_of_the_live_state(
    monkeypatch: pytest.MonkeyPatch, server: Server
) -> None:
    page = app(monkeypatch, server.url, server.admin_key).run()
    assert [metric.label for metric in page.metric] == [
        "Output",
        "TPOT",
        "Batch",
        "Queue",
        "Drafter",
        "Draft length D",
        "Drafted output",
        "KV pages",
    ]


def test_without_a_key_the_console_asks_for_one_and_keeps_it_in_the_session(
    monkeypatch: pytest.MonkeyPatch, server: Server
) -> None:
    page = app(monkeypatch, server.url, None).run()
    assert not page.metric
    page.text_input[0].input("x" * 40)
    page.button[0].click().run()
    assert "does not know this key" in page.error[0].value
    for impossible in ("x" * 40 + "é", "two words " * 4):
        page.text_input[0].input(impossible)
        page.button[0].click().run()
        assert "A key has only ASCII letters" in page.error[0].value
    page.text_input[0].input(server.admin_key)
    page.button[0].click().run()
    assert page.metric
    assert page.session_state["api_key"] == server.admin_key


def test_the_open_tab_alone_asks_for_the_report(
    monkeypatch: pytest.MonkeyPatch, server: Server
) -> None:
    page = app(monkeypatch, server.url, server.admin_key).run()
    page.switch_page("app_pages/controller.py").run()
    assert "Compute-bound knee" not in text(page)
    page.session_state["models-tab"] = "Guidelines"
    page.run()
    assert "Compute-bound knee" in text(page)


def test_the_policy_is_switched_and_split_and_a_wrong_option_is_refused(
    monkeypatch: pytest.MonkeyPatch, server: Server
) -> None:
    client = Client(server.url, server.admin_key)
    page = app(monkeypatch, server.url, server.admin_key).run()
    page.switch_page("app_pages/controller.py").run()
    try:
        page.selectbox(key=key(page, "policy", "name")).set_value("fixed").run()
        page.text_input(key=key(page, "policy", "options-fixed")).set_value("depth=3").run()
        page.button(key=key(page, "policy", "apply")).click().run()
        assert "depth: is no option of policy fixed" in text(page)
        page.text_input(key=key(page, "policy", "options-fixed")).set_value("draft_length=3").run()
        page.toggle(key=key(page, "policy", "ab")).set_value(True).run()
        page.button(key=key(page, "policy", "apply")).click().run()
        said = "fixed (draft_length=3) against off, which has 50 % of the requests"
        assert said in text(page)
        setting = client.state()["controller"]
        assert (setting["policy"], setting["ab_policy"]) == ("fixed", "off")
        assert "Results so far" in text(page)
    finally:
        client.set_policy({"policy": "adaptive"})


def test_the_controller_page_pins_a_drafter_and_confirms_it(
    monkeypatch: pytest.MonkeyPatch, server: Server
) -> None:
    page = app(monkeypatch, server.url, server.admin_key).run()
    page.switch_page("app_pages/controller.py").run()
    try:
        page.button_group(key=key(page, "switch", "mode")).set_value("pinned").run()
        page.selectbox(key=key(page, "switch", "drafter")).set_value("ngram").run()
        page.toggle(key=key(page, "switch", "fixed")).set_value(True).run()
        page.slider(key=key(page, "switch", "length")).set_value(4).run()
        page.button(key=key(page, "switch", "apply")).click().run()
        assert "Pinned to ngram with D = 4." in text(page)
    finally:
        page.button_group(key=key(page, "switch", "mode")).set_value("auto").run()
        page.button(key=key(page, "switch", "apply")).click().run()
    assert "chooses drafter and draft length by measured goodput" in text(page)
