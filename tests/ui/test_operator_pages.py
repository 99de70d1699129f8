"""Benchmarks and controller pages over a scripted engine: what an operator does there."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import httpx
import pytest
from streamlit.testing.v1 import AppTest

from tests import measured
from tests.app.conftest import Api, eventually
from tests.ui import pages
from tests.ui.pages import key, text
from ui.client import ApiError, Client
from ui.panels import decisions

Open = Callable[[str], AppTest]


@pytest.fixture
def opened(api: Api, monkeypatch: pytest.MonkeyPatch) -> Open:
    return partial(pages.opened, monkeypatch, api)


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
    page.selectbox(key=key(page, "policy", "name")).set_value("fixed").run()
    page.text_input(key=key(page, "policy", "options-fixed")).set_value("draft_length=3").run()
    page.toggle(key=key(page, "policy", "ab")).set_value(True).run()
    page.button(key=key(page, "policy", "apply")).click().run()
    said = "fixed (draft_length=3) against off, which has 50 % of the requests"
    assert said in text(page)
    assert api.client.get("/api/state").json()["controller"]["ab_policy"] == "off"


@pytest.mark.parametrize("old", [False, True])
def test_a_selected_decision_opens_also_one_of_an_earlier_version(
    opened: Open, monkeypatch: pytest.MonkeyPatch, old: bool
) -> None:
    honest = Client.decisions

    def found(client: Client, *arguments: Any) -> dict[str, Any]:
        page = honest(client, *arguments)
        for one in page["decisions"]:
            if old:
                one |= {"predicted_tokens": None, "predicted_ms": None}
            else:
                realised = {"steps": 4, "tokens": 10, "ms": 30.0, "goodput": 333.3}
                one["realised"] = realised | {"tokens_per_step": 2.5, "ms_per_step": 7.5}
        return page

    monkeypatch.setattr(Client, "decisions", found)
    monkeypatch.setattr(decisions, "_table", lambda *_: 0)
    page = opened("controller")
    assert not page.exception
    (steps,) = [table.value for table in page.dataframe if "One step" in table.value.columns]
    tokens, ms, _ = steps.to_dict("records")
    if old:
        assert (tokens["Difference"], ms["Difference"]) == ("–", "–")
    else:
        assert (tokens["Predicted"], tokens["Measured"]) == (2.0, 2.5)
        assert (tokens["Difference"], ms["Difference"]) == ("+25 %", "-25 %")


TABS = ["Acceptance", "Cost", "What if", "Guidelines", "Ledger", "Steps"]


@pytest.mark.parametrize("tab", TABS)
def test_each_tab_stands_a_report_with_nothing_in_it(opened: Open, tab: str) -> None:
    page = opened("controller")
    page.session_state["models-tab"] = tab
    page.run()
    assert not page.exception


def test_the_ledger_tab_says_what_was_saved_and_lists_the_static_choices(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    best = {"drafter": "ngram", "draft_length": 4, "saved_s": 36.0, "low_s": 30.0}
    account = {"steps": 8192, "tokens": 20000, "real_s": 60.0, "plain_s": 100.0, "saved_s": 40.0}
    account |= {"best_static": best, "static": [best]}
    report = {"ledger": {"window": account, "total": account}}
    monkeypatch.setattr(Client, "report", lambda _: report)
    page = opened("controller")
    page.session_state["models-tab"] = "Ledger"
    page.run()
    assert not page.exception
    assert "20,000 tokens took 60.0 s, which saved 40.0 % against plain decoding" in text(page)
    columns = [set(table.value.columns) for table in page.dataframe]
    assert any("Best static choice" in names for names in columns)
    assert any("Static choice" in names for names in columns)


def test_the_steps_tab_shows_sampled_steps_and_how_far_predictions_are_off(
    api: Api, opened: Open
) -> None:
    eventually(lambda: api.client.get("/api/step-records").json()["step_records"])
    page = opened("controller")
    page.session_state["models-tab"] = "Steps"
    page.run()
    assert not page.exception
    assert "in tokens by 25.0 % (in sum -25.0 %) and in ms by 10.0 % (in sum +10.0 %)" in text(page)
    (table,) = [one.value for one in page.dataframe if "Drafts" in one.value.columns]
    assert table.to_dict("records")[0]["Drafts"] == "ngram: 4 for 1"


@pytest.mark.parametrize(
    ("model", "said", "first"),
    [
        ({"max_batch": 1, "context_length": 512}, ["Batch size (requests): 1"], 256),
        ({"max_batch": 8, "context_length": 256}, [], 128),
        ({"max_batch": 8, "context_length": 100}, ["Context (tokens per request): 64"], None),
        ({"max_batch": 8, "context_length": 48}, ["Context (tokens per request): 48"], None),
    ],
)
def test_what_if_asks_about_a_small_model(
    opened: Open,
    monkeypatch: pytest.MonkeyPatch,
    model: dict[str, int],
    said: list[str],
    first: int | None,
) -> None:
    honest = Client.state

    def small(client: Client) -> dict[str, Any]:
        state = honest(client)
        return {**state, "model": state["model"] | model}

    monkeypatch.setattr(Client, "state", small)
    page = opened("controller")
    page.session_state["models-tab"] = "What if"
    page.run()
    assert not page.exception
    assert "ngram, D 4" in [metric.value for metric in page.metric]
    assert all(line in text(page) for line in said)
    assert [slider.value for slider in page.select_slider] == ([first] if first else [])


def test_names_in_recorded_rows_are_no_markdown_in_labels(api: Api, opened: Open) -> None:
    image = "![](http://evil/p.png)"
    first, second = measured.rows()[:2]
    rows = [first | {"phase": image}, second | {"phase": "rush"}]
    assert api.client.post("/api/benchmarks", json=measured.body(rows=rows)).is_success
    name = api.client.get("/api/benchmarks").json()["benchmarks"][0]["id"]
    page = opened("benchmarks")
    (load,) = (group for group in page.button_group if group.key == f"load-{name}")
    labels = [option.content for option in load.proto.options]
    assert labels == [r"!\[\](http://evil/p.png): 1 at once", "rush: 1 at once"]
    load.set_value("rush: 1 at once").run()
    assert not page.exception
    api.client.delete(f"/api/benchmarks/{name}")


# --- messages of a busy page that cross with what the server changed, and calls that fail ---------


def ngram(api: Api) -> dict[str, Any]:
    listed = api.client.get("/api/drafters").json()["drafters"]
    return next(one for one in listed if one["name"] == "ngram")


def limit(api: Api) -> Any:
    return {one["name"]: one["value"] for one in ngram(api)["parameters"]}["most"]


def put(api: Api, body: dict[str, Any]) -> None:
    assert api.client.put("/api/drafters/ngram", json=body).is_success


def named(widgets: Any, label: str) -> Any:
    return next(widget for widget in widgets if widget.label == label)


def test_a_switch_that_another_operator_turned_is_not_turned_back(api: Api, opened: Open) -> None:
    page = opened("controller")
    before = named(page.toggle, "Enable ngram")
    before.set_value(before.value)
    assert before.value is True
    try:
        put(api, {"enabled": False})
        page.run()
        assert named(page.toggle, "Enable ngram").value is False
        before.run()  # says what the page showed before it was told
        assert ngram(api)["enabled"] is False
        assert named(page.toggle, "Enable ngram").value is False
        named(page.toggle, "Enable ngram").set_value(True).run()
        assert ngram(api)["enabled"] is True
        assert named(page.toggle, "Enable ngram").value is True
    finally:
        put(api, {"enabled": True})


def test_a_number_that_another_operator_wrote_is_not_put_back(api: Api, opened: Open) -> None:
    page = opened("controller")
    before, value = named(page.number_input, "most"), limit(api)
    before.set_value(value)
    try:
        put(api, {"parameters": {"most": value - 1}})
        page.run()
        assert named(page.number_input, "most").value == value - 1
        before.run()
        assert limit(api) == value - 1
        named(page.number_input, "most").set_value(value - 2).run()
        assert limit(api) == value - 2
        assert named(page.number_input, "most").value == value - 2
    finally:
        put(api, {"parameters": {"most": value}})


def test_a_refused_number_gives_way_to_the_servers_and_why_is_said_until_the_next_change(
    api: Api, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = opened("controller")
    before = limit(api)

    def refuse(*_: Any, **__: Any) -> None:
        raise ApiError(422, "refused", "It may not be so.")

    with monkeypatch.context() as refusing:
        refusing.setattr(Client, "set_drafter", refuse)
        named(page.number_input, "most").set_value(before - 1).run()
    assert "It may not be so." in text(page)
    assert named(page.number_input, "most").value == before
    page.run()
    assert "It may not be so." in text(page)
    named(page.number_input, "most").set_value(before - 1).run()
    assert "It may not be so." not in text(page)
    assert limit(api) == before - 1
    named(page.number_input, "most").set_value(None).run()
    assert named(page.number_input, "most").value == before - 1
    put(api, {"parameters": {"most": before}})


def test_why_a_run_was_not_removed_is_said_until_one_is(
    api: Api, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert api.client.post("/api/benchmarks", json=measured.body()).status_code == 201
    page = opened("benchmarks")
    name = api.client.get("/api/benchmarks").json()["benchmarks"][0]["id"]

    def refuse(*_: Any) -> None:
        raise ApiError(503, "busy", "It may not go now.")

    with monkeypatch.context() as refusing:
        refusing.setattr(Client, "remove_benchmark", refuse)
        page.button(key=f"remove-{name}").click().run()
    page.run()
    assert "It may not go now." in text(page)
    page.button(key=f"remove-{name}").click().run()
    assert "It may not go now." not in text(page)
    listed = api.client.get("/api/benchmarks").json()["benchmarks"]
    assert name not in [one["id"] for one in listed]


def test_what_was_chosen_outlives_a_call_that_fails(
    api: Api, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = opened("controller")
    page.session_state["models-tab"] = "What if"
    page.run()
    slider = page.slider(key="what_if_batch")
    largest = slider.max
    slider.set_value(2).run()
    page.selectbox(key="decision_drafter").set_value("ngram").run()

    def away(*_: Any, **__: Any) -> None:
        raise httpx.ConnectError("away")

    with monkeypatch.context() as broken:
        broken.setattr(httpx.Client, "request", away)
        page.run()
        page.run()
        assert page.slider(key="what_if_batch").max == largest
    page.run()
    assert page.slider(key="what_if_batch").value == 2
    assert page.selectbox(key="decision_drafter").value == "ngram"
