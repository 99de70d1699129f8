"""Drafters with a model of their own, loaded and unloaded over HTTP and by `paceline drafter`."""

from __future__ import annotations

import threading
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from app.cli import main
from app.progress import Bars
from tests.app.conftest import MODEL, Api, eventually, running_api


@pytest.fixture
def own(tmp_path: Path) -> Generator[Api]:
    with running_api(tmp_path) as running:
        running.ready()
        yield running


def mtp(api: Api) -> dict[str, Any]:
    found = api.client.get("/api/drafters").json()["drafters"]
    return next(one for one in found if one["name"] == "mtp")


def post(api: Api, action: str, body: Any = None, name: str = "mtp") -> Any:
    return api.client.post(f"/api/drafters/{name}/{action}", json=body)


def drafter(api: Api, *arguments: str) -> int:
    return main(["drafter", *arguments, "--url", api.url, "--key", api.admin_key])


def kill_engine(api: Api) -> None:
    before = api.service.engine.restarts
    body = {"model": MODEL, "prompt": "die"}
    assert api.client.post("/v1/completions", json=body).status_code == 503
    eventually(lambda: api.service.engine.restarts > before)
    api.ready()


def test_a_dry_run_tells_the_memory_and_loads_nothing(api: Api) -> None:
    plan = post(api, "load", {"source": "/heads/a", "dry_run": True}).json()
    sizes = (plan["weights_bytes"], plan["kv_bytes"], plan["free_bytes"], plan["fits"])
    assert sizes == (26 << 20, 4 << 20, 2**30, True)
    assert not post(api, "load", {"source": "huge", "dry_run": True}).json()["fits"]
    assert mtp(api)["model"]["state"] == "unloaded"


def test_a_dry_run_that_reads_a_folder_is_audited_and_one_of_what_ships_is_not(own: Api) -> None:
    def plans() -> list[str]:
        rows = own.client.get("/api/audit").json()["audit"]
        return [row["after"]["source"] for row in rows if row["action"] == "plan_drafter"]

    post(own, "load", {"source": "auto", "dry_run": True})
    post(own, "load", {"source": "/heads/a", "dry_run": True})
    assert eventually(plans) == ["/heads/a"]


def test_a_drafter_is_loaded_shown_used_and_unloaded_and_both_are_audited(own: Api) -> None:
    before = mtp(own)
    assert (before["enabled"], before["max_draft_length"]) == (False, 0)
    pin = {"mode": "pinned", "drafter": "mtp"}
    refused = own.client.put("/api/controller", json=pin)
    assert (refused.status_code, refused.json()["code"]) == (409, "drafter_not_loaded")
    loaded = post(own, "load", {"source": "/heads/a"})
    assert loaded.status_code == 200
    assert mtp(own) == loaded.json()
    assert mtp(own)["model"] == {
        "state": "loaded", "source": "/heads/a", "weights_bytes": 26 << 20, "kv_bytes": 4 << 20,
        "coverage": 0.25, "message": "", "progress": 0.0,
    }  # fmt: skip
    assert own.client.put("/api/controller", json=pin).status_code == 200
    own.client.put("/api/controller", json={"mode": "auto"})
    assert post(own, "unload").json()["model"]["state"] == "unloaded"
    assert not mtp(own)["enabled"]
    rows = eventually(
        lambda: (
            [
                row
                for row in own.client.get("/api/audit").json()["audit"]
                if row["action"] in ("load_drafter", "unload_drafter")
            ]
            if own.client.get("/api/audit").text.count("load_drafter") >= 2
            else None
        )
    )
    newest = {row["action"]: row for row in rows}
    assert newest["load_drafter"]["before"]["model"]["state"] == "unloaded"
    assert newest["load_drafter"]["after"]["model"]["source"] == "/heads/a"
    assert newest["unload_drafter"]["after"]["model"]["state"] == "unloaded"


def test_a_load_under_way_is_shown_and_others_go_on(own: Api, tmp_path: Path) -> None:
    answers: list[Any] = []
    source = f"until {tmp_path / 'go'}"
    work = threading.Thread(target=lambda: answers.append(post(own, "load", {"source": source})))
    work.start()
    eventually(lambda: mtp(own)["model"]["state"] == "loading")
    assert mtp(own)["model"]["message"] == "loading its weights"
    body = {"model": MODEL, "prompt": "hello"}
    assert own.client.post("/v1/completions", json=body).status_code == 200
    (tmp_path / "go").touch()
    work.join(60)
    assert answers[0].json()["model"]["state"] == "loaded"
    assert answers[0].json()["model"]["source"] == source


@pytest.mark.parametrize(
    ("name", "body", "status", "code", "says"),
    [
        ("eagle", {}, 404, "unknown_drafter", "Known are: none, ngram, mtp"),
        ("ngram", {}, 400, "drafter_not_loadable", "has no model"),
        ("mtp", {"source": "huge"}, 409, "memory_too_small", "26.00 MiB"),
        ("mtp", {"source": "broken"}, 400, "drafter_unfit", "fuse.weight"),
        ("mtp", {"source": ""}, 400, "invalid_value", "source"),
        ("mtp", {"path": "x"}, 400, "invalid_value", "path"),
        ("mtp", {"dry_run": 1}, 400, "invalid_value", "dry_run: Expected `bool`, got `int`"),
        ("mtp", {"dry_run": "true"}, 400, "invalid_value", "dry_run: Expected `bool`, got `str`"),
        ("mtp", [], 400, "invalid_value", "Expected `object`, got `array`"),
    ],
)
def test_what_cannot_be_loaded_says_why(
    api: Api, name: str, body: Any, status: int, code: str, says: str
) -> None:
    refused = post(api, "load", body, name)
    assert (refused.status_code, refused.json()["code"]) == (status, code)
    assert says in refused.json()["detail"]


def test_a_text_is_no_number_of_a_setting(api: Api) -> None:
    pin = {"mode": "pinned", "drafter": "ngram", "draft_length": "3"}
    refused = api.client.put("/api/controller", json=pin)
    assert (refused.status_code, refused.json()["field"]) == (400, "draft_length")


def test_loading_needs_the_scope_to_operate(api: Api) -> None:
    reader = api.client_for(api.key("admin:read"))
    for action in ("load", "unload"):
        answer = reader.post(f"/api/drafters/mtp/{action}", json={})
        assert answer.status_code == 403


def test_what_was_loaded_or_unloaded_outlives_the_engine(own: Api) -> None:
    post(own, "load", {"source": "/heads/a"})
    own.client.put("/api/drafters/mtp", json={"enabled": False})
    kill_engine(own)
    again = eventually(lambda: (found := mtp(own))["model"]["state"] == "loaded" and found)
    assert again["model"]["source"] == "/heads/a"
    eventually(lambda: mtp(own)["enabled"] is False)
    post(own, "unload")
    kill_engine(own)
    assert mtp(own)["model"]["state"] == "unloaded"


def test_an_engine_that_does_not_start_with_what_was_loaded_starts_without(own: Api) -> None:
    post(own, "load", {"source": "gone"})
    kill_engine(own)
    eventually(lambda: mtp(own)["model"]["state"] == "unloaded")
    assert own.client.post("/v1/completions", json={"model": MODEL, "prompt": "x"}).is_success


def test_the_memory_of_a_model_is_a_metric(own: Api) -> None:
    post(own, "load", {"source": "/heads/a"})
    line = (
        'paceline_drafter_model_bytes{drafter="mtp",model="scripted",part="weights"} 2.7262976e+07'
    )
    eventually(lambda: line in own.client.get("/metrics").text)


# --- the command ----------------------------------------------------------------------------------


def test_the_command_shows_what_a_load_does_meanwhile(
    own: Api, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    show = Bars.update

    def shown(bars: Bars, stage: str, fraction: float, text: str) -> None:
        show(bars, stage, fraction, text)
        (tmp_path / "go").touch()

    monkeypatch.setattr(Bars, "update", shown)
    assert drafter(own, "load", "mtp", f"until {tmp_path / 'go'}") == 0
    assert "load: loading its weights" in capsys.readouterr().out


def test_the_command_shows_the_memory_loads_lists_and_unloads(
    own: Api, capsys: pytest.CaptureFixture[str]
) -> None:
    assert drafter(own, "load", "mtp", "--dry-run") == 0
    out = capsys.readouterr().out
    assert "mtp takes 30.0 MiB: 26.0 MiB for its weights and 4.0 MiB for keys and values" in out
    assert mtp(own)["model"]["state"] == "unloaded"
    assert drafter(own, "load", "mtp") == 0
    out = capsys.readouterr().out
    assert "Loaded mtp: 26.0 MiB weights, 4.0 MiB keys and values, 25% of the vocabulary" in out
    assert drafter(own, "list") == 0
    lines = capsys.readouterr().out.splitlines()
    rows = {line.split()[0]: " ".join(line.split()) for line in lines}
    assert rows["mtp"] == "mtp on 16 26.0 MiB weights, 4.0 MiB keys and values 25% auto"
    assert rows["ngram"] == "ngram on 16 3.0 MiB of 256.0 MiB - -"
    assert drafter(own, "unload", "mtp") == 0
    assert capsys.readouterr().out == "Unloaded mtp\n"


def test_the_command_ends_with_the_servers_reason(
    own: Api, capsys: pytest.CaptureFixture[str]
) -> None:
    assert drafter(own, "load", "mtp", "huge", "--dry-run") == 1
    assert "This does not fit." in capsys.readouterr().out
    assert drafter(own, "load", "mtp", "huge") == 1
    assert "HTTP 409: drafter mtp needs 26.00 MiB" in capsys.readouterr().err
    # The list follows with the engine's next state.
    eventually(lambda: "26.00 MiB" in (mtp(own)["model"]["message"] or ""))
    assert drafter(own, "list") == 0
    assert "    drafter mtp needs 26.00 MiB for its weights" in capsys.readouterr().out
    assert drafter(own, "load", "ngram") == 1
    assert "has no model" in capsys.readouterr().err
