"""The form of the controller's setting: what it keeps, and what was changed elsewhere meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from tests.app.conftest import Api
from tests.ui import pages
from tests.ui.pages import key, text
from ui.client import Client

Open = Callable[..., AppTest]
SCHEDULE = [{"max_requests": 4, "draft_length": 2}, {"max_requests": 8, "draft_length": 1}]
PIN = {"mode": "pinned", "drafter": "ngram"}


@pytest.fixture
def opened(api: Api, monkeypatch: pytest.MonkeyPatch) -> Open:
    put(api, {"mode": "auto"})

    def open_page(fresh_s: float = 0.0) -> AppTest:
        """fresh_s: how long the page goes on with a state that it has read."""
        client = Client(api.url, api.admin_key, fresh_s=fresh_s)
        monkeypatch.setattr("ui.chrome._client", lambda url, key: client)
        return pages.opened(monkeypatch, api, "controller")

    return open_page


def put(api: Api, setting: dict[str, Any], path: str = "controller") -> None:
    assert api.client.put(f"/api/{path}", json=setting).is_success


def setting(api: Api) -> dict[str, Any]:
    return api.client.get("/api/controller").json()


def apply(page: AppTest) -> None:
    page.button(key=key(page, "switch", "apply")).click().run()
    assert not page.exception


def test_a_draft_schedule_is_shown_and_stays_when_a_limit_is_changed(
    api: Api, opened: Open
) -> None:
    put(api, PIN | {"schedule": SCHEDULE})
    page = opened()
    schedule = page.checkbox(key=key(page, "switch", "schedule"))
    assert schedule.label == "Draft schedule: D 2 up to 4, 1 up to 8, then 0"
    page.number_input(key=key(page, "switch", "tpot_target_ms")).set_value(30.0).run()
    apply(page)
    now = setting(api)
    assert (now["schedule"], now["tpot_target_ms"], now["draft_length"]) == (SCHEDULE, 30.0, None)


@pytest.mark.parametrize(
    ("change", "length"),
    [
        (lambda page: page.checkbox(key=key(page, "switch", "schedule")).uncheck().run(), None),
        (lambda page: page.toggle(key=key(page, "switch", "fixed")).set_value(True).run(), 4),
    ],
)
def test_a_draft_schedule_is_taken_away_or_a_fixed_length_takes_its_place(
    api: Api, opened: Open, change: Callable[[AppTest], object], length: int | None
) -> None:
    put(api, PIN | {"schedule": SCHEDULE})
    page = opened()
    change(page)
    apply(page)
    now = setting(api)
    assert (now["mode"], now["schedule"], now["draft_length"]) == ("pinned", [], length)


def test_a_draft_schedule_is_not_carried_to_another_drafter_or_mode(api: Api, opened: Open) -> None:
    put(api, PIN | {"schedule": SCHEDULE})
    page = opened()
    page.selectbox(key=key(page, "switch", "drafter")).set_value("none").run()
    assert page.checkbox(key=key(page, "switch", "schedule")).disabled
    apply(page)
    assert (setting(api)["drafter"], setting(api)["schedule"]) == ("none", [])
    put(api, PIN | {"schedule": SCHEDULE})
    page.run()
    page.button_group(key=key(page, "switch", "mode")).set_value("auto").run()
    apply(page)
    assert (setting(api)["mode"], setting(api)["schedule"]) == ("auto", [])


def test_a_pinned_length_of_0_is_shown_and_kept(api: Api, opened: Open) -> None:
    put(api, PIN | {"draft_length": 0})
    page = opened()
    assert page.slider(key=key(page, "switch", "length")).value == 0
    apply(page)
    assert setting(api)["draft_length"] == 0


def test_a_pinned_drafter_that_was_disabled_stays_chosen(api: Api, opened: Open) -> None:
    page = opened()
    put(api, PIN)
    put(api, {"enabled": False}, "drafters/ngram")
    try:
        page.run()
        drafter = page.selectbox(key=key(page, "switch", "drafter"))
        assert (drafter.value, drafter.options) == ("ngram", ["none", "ngram (disabled)"])
        page.number_input(key=key(page, "switch", "draft_budget")).set_value(9).run()
        apply(page)
        now = setting(api)
        assert (now["drafter"], now["draft_budget"]) == ("ngram", 9)
    finally:
        put(api, {"enabled": True}, "drafters/ngram")


def test_what_was_changed_elsewhere_is_taken_over_and_said(api: Api, opened: Open) -> None:
    page = opened()
    put(api, {"mode": "auto", "tpot_target_ms": 20.5})
    page.run()
    assert page.number_input(key=key(page, "switch", "tpot_target_ms")).value == 20.5
    assert "Changed elsewhere, by bootstrap at " in text(page)
    page.button_group(key=key(page, "switch", "mode")).set_value("pinned").run()
    apply(page)
    assert "Changed elsewhere" not in text(page)
    assert (setting(api)["mode"], setting(api)["tpot_target_ms"]) == ("pinned", 20.5)


def test_apply_does_not_undo_what_was_changed_since_the_form_was_drawn(
    api: Api, opened: Open
) -> None:
    page = opened()
    page.number_input(key=key(page, "switch", "draft_budget")).set_value(7).run()
    put(api, {"mode": "auto", "max_drafting_requests": 200_000})
    page.button(key=key(page, "switch", "apply")).click().run()  # says what the page showed
    assert not page.exception
    assert "Changed elsewhere" in text(page)
    assert (setting(api)["max_drafting_requests"], setting(api)["draft_budget"]) == (200_000, None)
    page.number_input(key=key(page, "switch", "draft_budget")).set_value(7).run()
    apply(page)
    assert (setting(api)["max_drafting_requests"], setting(api)["draft_budget"]) == (200_000, 7)


def test_a_change_that_comes_in_just_before_apply_is_not_undone(api: Api, opened: Open) -> None:
    """The page's own state may be some tenths of a second old."""
    page = opened(600.0)
    put(api, {"mode": "auto", "draft_budget": 5})
    apply(page)
    assert "Changed elsewhere" in text(page)
    assert setting(api)["draft_budget"] == 5
    assert page.number_input(key=key(page, "switch", "draft_budget")).value == 5


def test_policies_that_were_changed_elsewhere_are_taken_over_and_not_undone(
    api: Api, opened: Open
) -> None:
    put(api, {"policy": "adaptive"}, "controller/policy")
    page = opened()
    split = {"policy": "fixed", "policy_options": "draft_length=3", "ab_policy": "off"}
    try:
        put(api, split | {"ab_share": 0.01}, "controller/policy")
        page.button(key=key(page, "policy", "apply")).click().run()
        assert not page.exception
        assert "Changed elsewhere" in text(page)
        assert page.selectbox(key=key(page, "policy", "name")).value == "fixed"
        assert page.toggle(key=key(page, "policy", "ab")).value is True
        page.button(key=key(page, "policy", "apply")).click().run()
        now = setting(api)
        assert (now["policy"], now["ab_policy"], now["ab_share"]) == ("fixed", "off", 0.01)
    finally:
        put(api, {"policy": "adaptive"}, "controller/policy")
