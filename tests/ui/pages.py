"""The console's pages as Streamlit runs them, for tests: opened, and read."""

from __future__ import annotations

from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from tests.app.conftest import Api

MAIN = Path(__file__).resolve().parents[2] / "ui" / "main.py"


def app(monkeypatch: pytest.MonkeyPatch, url: str, key: str | None) -> AppTest:
    monkeypatch.setenv("PACELINE_API_URL", url)
    monkeypatch.delenv("PACELINE_PUBLIC_API_URL", raising=False)
    if key:
        monkeypatch.setenv("PACELINE_CONSOLE_KEY", key)
    else:
        monkeypatch.delenv("PACELINE_CONSOLE_KEY", raising=False)
    return AppTest.from_file(str(MAIN), default_timeout=60)


def opened(monkeypatch: pytest.MonkeyPatch, api: Api, name: str, key: str = "") -> AppTest:
    """A page over this API, by default with its operator's key."""
    page = app(monkeypatch, api.url, key or api.admin_key).run()
    return page.switch_page(str(Path("app_pages", f"{name}.py"))).run()


def key(page: AppTest, form: str, name: str) -> str:
    """The key of a form's widget: the form's holds a number that the server's values decide."""
    return f"{form}-{page.session_state[form][1]}-{name}"


def text(page: AppTest) -> str:
    return " ".join(str(getattr(element, "value", "")) for element in page.get("html"))
