"""Benchmarks in the console's API, and `paceline bench` that records what it measured there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from app.cli import main
from tests.app.conftest import Api

BODY: dict[str, Any] = {
    "kind": "bench", "time": 5.0, "base": "none", "command": ["paceline", "bench"],
    "machine": {"cores": 2}, "settings": {}, "rows": [{"mode": "auto", "tokens_per_s": 5.5}],
}  # fmt: skip


@pytest.fixture
def measured(api: Api, tmp_path: Path) -> list[str]:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("one\ntwo\n", "utf-8")
    return [
        "bench", "--url", api.url, "--prompts", str(prompts), "--modes", "none,auto",
        "--max-tokens", "6", "--json", str(tmp_path / "out.json"), "--key",
    ]  # fmt: skip


def test_a_benchmark_is_listed_read_and_removed(api: Api) -> None:
    with api.client as client:
        name = client.post("/api/benchmarks", json=BODY).json()["id"]
        listed = client.get("/api/benchmarks").json()["benchmarks"]
        assert listed[0]["id"] == name
        assert "rows" not in listed[0]
        found = client.get(f"/api/benchmarks/{name}").json()
        assert found["rows"] == BODY["rows"]
        assert (found["base"], found["began"], found["model"]) == ("none", 5.0, api.service.model)
        assert client.get(f"/api/benchmarks/{name}?format=xml").status_code == 400
        unreadable = client.get(f"/api/benchmarks/{name}?format=html")
        assert (unreadable.status_code, unreadable.json()["code"]) == (409, "unreadable_rows")
        assert client.delete(f"/api/benchmarks/{name}").status_code == 200
        assert client.delete(f"/api/benchmarks/{name}").status_code == 404
        assert client.get(f"/api/benchmarks/{name}").status_code == 404


@pytest.mark.parametrize(
    "wrong",
    [
        {"kind": "other"}, {"base": ""}, {"rows": {}}, {"rows": [{}] * 5001}, {"time": -1},
        {"command": ["x"] * 501}, {"machine": {"a": "\0"}},
    ],
)  # fmt: skip
def test_what_is_no_benchmark_is_refused(api: Api, wrong: dict[str, Any]) -> None:
    with api.client as client:
        assert client.post("/api/benchmarks", json=BODY | wrong).status_code == 400


def test_only_operators_record(api: Api) -> None:
    with api.client_for(api.key("admin:read")) as client:
        assert client.post("/api/benchmarks", json=BODY).status_code == 403
        assert client.get("/api/benchmarks").status_code == 200


def test_bench_records_its_rows_where_it_measured(
    api: Api, measured: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*measured, api.admin_key, "--record"]) == 0
    name = capsys.readouterr().out.split()[-1]
    with api.client as client:
        found = client.get(f"/api/benchmarks/{name}").json()
    result = json.loads((tmp_path / "out.json").read_bytes())
    assert found["rows"] == result["rows"]
    assert [row["mode"] for row in found["rows"]] == ["none", "auto"]
    assert all(row["tokens"] == 12 for row in found["rows"])
    assert api.admin_key not in json.dumps(found)
    arguments = ["bench", "record", str(tmp_path / "out.json"), "--url", api.url, "--key"]
    assert main([*arguments, api.admin_key]) == 0
    assert capsys.readouterr().out.startswith("Recorded as bench-")
    as_page = api.client.get(f"/api/benchmarks/{name}?format=html")
    assert as_page.headers["content-type"].startswith("text/html")
    assert as_page.text.startswith("<!doctype html>")
    assert "Speed against none" in as_page.text
    Path(tmp_path / "out.json").write_text('{"kind": "other"}', "utf-8")
    assert main([*arguments, api.admin_key]) == 2
    assert "is no result" in capsys.readouterr().err


def test_what_was_measured_is_kept_when_it_cannot_be_recorded(
    api: Api, measured: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*measured, api.key("inference"), "--record"]) == 1
    assert "could not be recorded: HTTP 403" in capsys.readouterr().err
    assert json.loads((tmp_path / "out.json").read_bytes())["rows"]
