"""The reference pages name what there is: settings, error codes, metrics."""

from __future__ import annotations

import re

import pytest

from app.errors import ENGINE_STATUS
from app.settings import FIELDS
from app.telemetry.metrics import Metrics
from tests.conftest import ROOT

OPERATIONS = (ROOT / "docs" / "operations.md").read_text("utf-8")
API = (ROOT / "docs" / "api.md").read_text("utf-8")
CODE = re.compile(r'(?:ApiError|bad_request|engine_error)\([^"()]*"([a-z]+(?:_[a-z]+)+)"')


def codes() -> set[str]:
    """Error codes that the API gives."""
    files = (ROOT / "app").rglob("*.py")
    written = {code for file in files for code in CODE.findall(file.read_text("utf-8"))}
    assert {"unknown_recording", "disk_full", "unreadable_rows"} <= written
    return written | set(ENGINE_STATUS)


@pytest.mark.parametrize("name", FIELDS)
def test_operations_names_every_setting(name: str) -> None:
    assert f"PACELINE_{name.upper()}`" in OPERATIONS


def test_the_api_page_names_every_error_code() -> None:
    assert [code for code in sorted(codes()) if f"`{code}`" not in API] == []


def test_the_api_page_names_every_metric() -> None:
    text = Metrics("m", lambda: (0, 0)).render().decode()
    names = set(re.findall(r"^# TYPE paceline_(\w+)", text, re.MULTILINE))
    shown = {re.sub(r"_(total|created)$", "", name) for name in names}
    assert [name for name in sorted(shown) if f"`{name}`" not in API] == []
