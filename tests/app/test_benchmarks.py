"""Benchmarks in the console's API, and `paceline bench` that records what it measured there."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from app.admin.benchmarks import MOST_ABOUT
from app.cli import main
from tests.app.conftest import Api
from tests.measured import rows

BODY: dict[str, Any] = {
    "kind": "bench", "time": 5.0, "base": "none", "command": ["paceline", "bench"],
    "machine": {"cores": 2}, "settings": {}, "rows": rows(),
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
        assert client.delete(f"/api/benchmarks/{name}").status_code == 200
        assert client.delete(f"/api/benchmarks/{name}").status_code == 404
        assert client.get(f"/api/benchmarks/{name}").status_code == 404


@pytest.mark.parametrize(
    "wrong",
    [
        {"kind": "other"}, {"base": ""}, {"rows": {}}, {"rows": [{}] * 5001}, {"time": -1},
        {"command": ["x"] * 501}, {"machine": {"a": "\0"}}, {"rows": [{"mode": "auto"}]},
    ],
)  # fmt: skip
def test_what_is_no_benchmark_is_refused(api: Api, wrong: dict[str, Any]) -> None:
    with api.client as client:
        assert client.post("/api/benchmarks", json=BODY | wrong).status_code == 400


def test_a_wrong_row_is_refused_with_where_it_lies(api: Api) -> None:
    before = api.client.get("/api/benchmarks").json()
    good, *_ = rows()
    wrong = [good, good | {"tokens_per_s": "fast"}]
    answer = api.client.post("/api/benchmarks", json=BODY | {"rows": wrong})
    assert (answer.status_code, answer.json()["field"]) == (400, "rows[1].tokens_per_s")
    assert api.client.get("/api/benchmarks").json() == before


@pytest.mark.parametrize("field", ["command", "machine", "settings"])
def test_what_is_said_about_a_benchmark_is_bounded(api: Api, field: str) -> None:
    def body(size: int) -> dict[str, Any]:
        """command, machine and settings of so many bytes as JSON."""
        said: dict[str, Any] = {"command": [], "machine": {}, "settings": {}}
        if field == "command":
            whole, left = divmod(size - 6, 2003)
            said["command"] = ["x" * 2000] * whole + ["x" * (left - 3)]
            said["command"][-1] += "x"  # one comma fewer than texts
        else:
            said[field] = {"a": "x" * (size - 6 - 6)}
        found = sum(len(json.dumps(one, separators=(",", ":"))) for one in said.values())
        assert found == size
        return BODY | said

    assert api.client.post("/api/benchmarks", json=body(MOST_ABOUT)).status_code == 201
    refused = api.client.post("/api/benchmarks", json=body(MOST_ABOUT + 1))
    assert (refused.status_code, refused.json()["field"]) == (400, field)
    assert "together they may have 65,536" in refused.json()["detail"]


def test_rows_of_another_version_are_told_when_they_are_to_be_shown(api: Api) -> None:
    name = api.client.post("/api/benchmarks", json=BODY).json()["id"]
    file = api.service.settings.data_path / "paceline.db"
    with contextlib.closing(sqlite3.connect(file)) as database, database:
        change = "UPDATE benchmarks SET rows = ? WHERE id = ?"
        database.execute(change, ['[{"mode": "auto"}]', name])
    assert api.client.get(f"/api/benchmarks/{name}").json()["rows"] == [{"mode": "auto"}]
    unreadable = api.client.get(f"/api/benchmarks/{name}?format=html")
    assert (unreadable.status_code, unreadable.json()["code"]) == (409, "unreadable_rows")


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


def test_a_run_that_could_not_be_recorded_does_not_begin(
    api: Api, measured: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*measured, api.key("inference"), "--record"]) == 1
    said = capsys.readouterr().err
    assert "could not be recorded" in said
    assert "HTTP 403" in said
    assert not (tmp_path / "out.json").exists()
