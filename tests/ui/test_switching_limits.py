"""The controller page's inputs of the TPOT target and the draft budget, over a scripted engine."""

from __future__ import annotations

import pytest
from streamlit.testing.v1 import AppTest

from tests.app.conftest import Api
from tests.ui import pages
from tests.ui.pages import key, text


def opened(api: Api, monkeypatch: pytest.MonkeyPatch) -> AppTest:
    return pages.opened(monkeypatch, api, "controller")


def in_force(api: Api) -> tuple[float | None, int | None]:
    found = api.client.get("/api/controller").json()
    return found["tpot_target_ms"], found["draft_budget"]


def test_both_limits_are_set_kept_by_other_changes_and_taken_away(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = opened(api, monkeypatch)
    assert page.number_input(key=key(page, "switch", "tpot_target_ms")).value is None
    page.number_input(key=key(page, "switch", "tpot_target_ms")).set_value(30.5).run()
    page.number_input(key=key(page, "switch", "draft_budget")).set_value(12).run()
    page.button(key=key(page, "switch", "apply")).click().run()
    assert not page.exception
    assert in_force(api) == (30.5, 12)
    assert "Drafts keep TPOT within 30.5 ms where they can. A step drafts at most 12" in text(page)

    page = opened(api, monkeypatch)  # shows what is in force, and sends it along
    assert page.number_input(key=key(page, "switch", "tpot_target_ms")).value == 30.5
    assert page.number_input(key=key(page, "switch", "draft_budget")).value == 12
    page.button_group(key=key(page, "switch", "mode")).set_value("pinned").run()
    page.button(key=key(page, "switch", "apply")).click().run()
    assert in_force(api) == (30.5, 12)

    page.number_input(key=key(page, "switch", "tpot_target_ms")).set_value(None).run()
    page.number_input(key=key(page, "switch", "draft_budget")).set_value(0).run()
    page.button(key=key(page, "switch", "apply")).click().run()
    assert in_force(api) == (None, None)


def test_a_limit_on_drafting_requests_can_be_taken_away_again(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    for value in (3, None):
        page = opened(api, monkeypatch)
        page.number_input(key=key(page, "switch", "max_drafting_requests")).set_value(value).run()
        page.button(key=key(page, "switch", "apply")).click().run()
        found = api.client.get("/api/controller").json()
        assert found["max_drafting_requests"] == value


def test_in_mode_off_they_have_no_effect_and_are_not_sent(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = opened(api, monkeypatch)
    page.number_input(key=key(page, "switch", "draft_budget")).set_value(3).run()
    page.button_group(key=key(page, "switch", "mode")).set_value("off").run()
    assert page.number_input(key=key(page, "switch", "tpot_target_ms")).disabled
    assert page.number_input(key=key(page, "switch", "draft_budget")).disabled
    page.button(key=key(page, "switch", "apply")).click().run()
    assert "Speculation is off" in text(page)
    assert in_force(api) == (None, None)
