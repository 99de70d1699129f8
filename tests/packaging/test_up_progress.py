"""What `paceline up` shows of the engine's start."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from app import up
from app.settings import load_settings


def test_the_stage_and_what_it_does_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    progress = {"stage": "calibrate", "fraction": 0.25, "message": "Measuring"}
    answers = iter(
        [
            httpx.Response(503, json={"engine": {"progress": progress}}),
            httpx.Response(503, json={"engine": {"progress": None}}),
            httpx.Response(200, json={}),
        ]
    )
    client = httpx.Client
    transport = httpx.MockTransport(lambda _: next(answers))

    def mocked(**given: Any) -> httpx.Client:
        return client(**given, transport=transport)

    monkeypatch.setattr(up.httpx, "Client", mocked)
    monkeypatch.setattr(up, "POLL_S", 0.0)
    shown: list[tuple[float, str]] = []
    up.wait_until_ready(load_settings({}, {}), [], lambda *now: shown.append(now))
    assert shown == [(0.0, "starting"), (0.25, "calibrate: Measuring"), (1.0, "ready")]
