"""Rows that are recorded in a server of ours, and the question before a run whether they may be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from app.bench import record
from app.bench.record import Summary, check_recordable
from app.failures import Failure, SettingsError, StartError
from tests.app.bench.test_bench_report import full
from tests.app.conftest import Api


def stored(api: Api) -> list[dict[str, Any]]:
    return api.client.get("/api/benchmarks").json()["benchmarks"]


def test_the_question_stores_nothing_and_needs_the_key_of_an_operator(api: Api):
    before = stored(api)
    check_recordable(api.url + "/", api.key("operate"))
    with pytest.raises(Failure, match=r"could not be recorded at .*: HTTP 403: .*'operate'"):
        check_recordable(api.url, api.key("inference", "admin:read"))
    with pytest.raises(Failure, match="HTTP 401: No valid API key"):
        check_recordable(api.url, "none-of-theirs")
    with pytest.raises(Failure, match=r"could not be recorded at http://127\.0\.0\.1:9: "):
        check_recordable("http://127.0.0.1:9", "k")
    assert stored(api) == before


def test_rows_are_recorded_under_an_id(api: Api):
    summary = Summary("bench", 1.0, "none", ["paceline", "bench"], {}, {}, full())
    name = record.record(api.url, api.key("operate"), summary)
    assert name in [one["id"] for one in stored(api)]
    with pytest.raises(Failure, match="HTTP 400"):
        record.record(api.url, api.key("operate"), msgspec.structs.replace(summary, base=""))


def test_an_answer_without_an_id_is_none_of_ours(monkeypatch: pytest.MonkeyPatch):
    request = httpx.Request("POST", "http://x/api/benchmarks")
    answer = httpx.Response(200, text="<html>", request=request)
    monkeypatch.setattr(httpx, "post", lambda *_, **__: answer)
    summary = Summary("bench", 1.0, "none", [], {}, {}, [])
    with pytest.raises(StartError, match="http://x/api/benchmarks does not answer like Paceline"):
        record.record("http://x", "k", summary)


def test_a_file_that_is_nested_too_deeply_is_no_result(tmp_path: Path):
    path = tmp_path / "out.json"
    path.write_bytes(b'{"runs": ' + b"[" * 100_000)
    with pytest.raises(SettingsError, match=r"no result of paceline bench .*nested too deeply"):
        record.read_summary(path)
