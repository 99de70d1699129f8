"""The operator's API over the scripted engine: state, control, records, keys, metrics."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from app.admin.ledger import Ledger
from app.admin.live import Live, point
from app.telemetry.metrics import Metrics
from controller.contract import Candidate, Decision, HarmTotals
from engine.wire import Cell, ControllerState, Snapshot
from tests.app.conftest import MODEL, Api, eventually


def snapshot(time: float, *cells: Cell, tokens: int = 0, drafted: int = 0) -> Snapshot:
    return Snapshot(
        time, 1.0, 1, 1, tokens, drafted, 0, 0, 0, 0.0, 0, 9, 10, None, None, None, cells, (),
        ControllerState("auto", None, None, 16), (),
    )  # fmt: skip


def cell(drafter: str, length: int, steps: int, reached: Any = (), accepted: Any = ()) -> Cell:
    return Cell(drafter, length, steps, 0, 0, 0, reached, accepted, 0.0, 0.0, 0.0)


def decision(id: str, reason: str = "goodput") -> Decision:
    best = Candidate("ngram", 4.0, 2.0, 10.0, 200.0, 190.0, 210.0)
    return Decision(
        id, 1, 1.0, "ngram", 4.0, "none", 0.0, {}, (best,), None, 0.1, reason, "s", None, 200.0
    )


# --- live view and ledger, without a server -------------------------------------------------------


def test_a_point_has_shares_by_request_steps_and_none_when_idle():
    busy = snapshot(1.0, cell("none", 0, 1), cell("ngram", 4, 3), tokens=10, drafted=4)
    shown = point(busy)
    assert shown["drafters"] == {"ngram": 0.75, "none": 0.25}
    assert shown["draft_length_mean"] == 3.0
    assert shown["drafted_share"] == 0.4
    idle = point(snapshot(1.0))
    assert idle["drafted_share"] is None
    assert idle["draft_length_mean"] is None


def test_acceptance_by_position_counts_the_last_sixty_seconds_only():
    live = Live()
    live.add(snapshot(0.0, cell("ngram", 2, 1, (100, 100), (100, 100))))
    live.add(snapshot(70.0, cell("ngram", 2, 1, (4, 2), (2, 1))))
    live.add(snapshot(100.0, cell("ngram", 1, 1, (4,), (2,))))
    found = {(row["drafter"], row["position"]): row for row in live.acceptance()}
    assert found["ngram", 1]["reached"] == 8
    assert found["ngram", 1]["rate"] == 0.5
    assert found["ngram", 2]["reached"] == 2


def test_history_forgets_after_five_minutes():
    live = Live()
    for second in range(400):
        live.add(snapshot(float(second)))
    history = live.history()
    assert len(history) == 300
    assert history[0]["time"] == 100.0


def test_the_ledger_replaces_updated_decisions_and_pages_backwards():
    ledger = Ledger(keep=3)
    ledger.add(tuple(decision(id) for id in "abcd"))
    updated = decision("c")
    updated.realised.steps, updated.realised.tokens, updated.realised.ms = 4, 10, 100.0
    ledger.add((updated,))
    rows = ledger.recent(10, None)
    assert [row["id"] for row in rows] == ["d", "c", "b"]
    assert rows[1]["realised"]["goodput"] == 100.0
    assert (rows[1]["realised"]["tokens_per_step"], rows[1]["realised"]["ms_per_step"]) == (
        2.5,
        25.0,
    )
    assert rows[0]["realised"]["tokens_per_step"] is None
    assert [row["id"] for row in ledger.recent(1, "d")] == ["c"]
    assert ledger.recent(10, "unknown") == []
    assert ledger.recent(10, None, "probe") == []
    ledger.add((replace(decision("e"), requests=(7, 9)),))
    assert [row["id"] for row in ledger.recent(10, None, request=9)] == ["e"]


def test_the_clocks_of_a_ledger_that_ended_leave_the_metrics():
    metrics = Metrics("m", lambda: (0, 0))
    metrics.observe_snapshot(msgspec.structs.replace(snapshot(0.0), harm=HarmTotals(9, 1, 2, 1)))
    assert b'paceline_harm_ledger_seconds{clock="plain",model="m"} 2.0' in metrics.render()
    metrics.observe_snapshot(snapshot(1.0))
    assert b"paceline_harm_ledger_seconds{" not in metrics.render()
    assert b"paceline_harm_ledger_tokens{" not in metrics.render()


# --- over HTTP ------------------------------------------------------------------------------------


def test_health_and_version_are_open_and_tell_no_secrets(api: Api):
    client = api.client_for(None)
    assert client.get("/health/live").json() == {"status": "live"}
    ready = client.get("/health/ready").json()
    assert ready["status"] == "ready"
    assert ready["engine"]["progress"] is None
    assert client.get("/version").json()["model"] == MODEL


def test_state_has_model_live_numbers_history_and_storage(api: Api):
    state = eventually(lambda: (s := api.client.get("/api/state").json())["live"] and s)
    assert state["model"]["context_length"] == 512
    assert "pid" not in state["model"]
    assert state["engine"]["pid"]
    assert state["live"]["tokens_per_s"] == pytest.approx(200)
    assert state["live"]["drafters"] == {"ngram": 0.5, "none": 0.5}
    assert state["live"]["acceptance_by_position"][0]["rate"] == pytest.approx(0.8)
    assert state["history"][-1]["running"] == 0
    assert state["controller"]["mode"] == "auto"
    assert set(state["storage"]) >= {"queued", "spilled", "dropped", "degraded"}


def test_the_controller_is_set_read_back_and_audited(api: Api):
    key = api.key("operate", "admin:read")
    operator = api.client_for(key)
    body = {"mode": "pinned", "drafter": "ngram", "draft_length": 4}
    changed = operator.put("/api/controller", json=body).json()
    assert {name: changed[name] for name in body} == body
    assert changed["set_by"] == "test"
    assert changed["report"] == {"acceptance": {}}
    assert operator.get("/api/controller").json()["mode"] == "pinned"
    assert operator.put("/api/controller", json={"mode": "auto"}).json()["drafter"] is None
    entries = eventually(
        lambda: [
            row
            for row in api.client.get("/api/audit").json()["audit"]
            if row["action"] == "set_controller" and row["after"].get("mode") == "pinned"
        ]
    )
    assert entries[0]["before"]["mode"] == "auto"
    assert entries[0]["actor_name"] == "test"


@pytest.mark.parametrize(
    ("body", "code", "field", "says"),
    [
        ({"mode": "pinned"}, "invalid_value", "drafter", "none, ngram"),
        ({"mode": "pinned", "drafter": "eagle"}, "unknown_drafter", "drafter", "none, ngram"),
        (
            {"mode": "pinned", "drafter": "ngram", "draft_length": 17},
            "draft_length_out_of_range",
            "draft_length",
            "between 0 and 16",
        ),
        (
            {"mode": "pinned", "drafter": "ngram", "draft_length": 10**30},
            "draft_length_out_of_range",
            "draft_length",
            "between 0 and 16",
        ),
        (
            {"mode": "pinned", "drafter": "none", "draft_length": -1},
            "draft_length_out_of_range",
            "draft_length",
            "between 0 and 16",
        ),
        ({"mode": "turbo"}, "invalid_value", "mode", "turbo"),
        ({"drafter": "ngram"}, "invalid_value", "mode", "mode"),
    ],
)
def test_a_wrong_setting_names_the_field_and_what_is_allowed(
    api: Api, body: Any, code: str, field: str | None, says: str
):
    response = api.client.put("/api/controller", json=body)
    assert response.status_code == 400
    problem = response.json()
    assert problem["code"] == code
    assert problem.get("field") == field
    assert says in problem["detail"]
    assert api.client.get("/api/controller").json()["mode"] == "auto"


def test_plain_decoding_can_be_pinned_with_a_draft_length_and_not_disabled(api: Api):
    body = {"mode": "pinned", "drafter": "none", "draft_length": 4}
    changed = api.client.put("/api/controller", json=body).json()
    assert (changed["drafter"], changed["draft_length"]) == ("none", None)
    api.client.put("/api/controller", json={"mode": "auto"})
    refused = api.client.put("/api/drafters/none", json={"enabled": False})
    assert refused.status_code == 400
    assert "cannot be disabled" in refused.json()["detail"]
    assert api.client.put("/api/drafters/none", json={"enabled": True}).json()["enabled"] is True


def test_a_drafter_is_disabled_and_enabled(api: Api):
    off = api.client.put("/api/drafters/ngram", json={"enabled": False})
    assert off.json()["enabled"] is False
    listed = {d["name"]: d for d in api.client.get("/api/drafters").json()["drafters"]}
    assert listed["ngram"]["enabled"] is False
    assert listed["none"]["kind"] == "none"
    assert api.client.put("/api/drafters/ngram", json={"enabled": True}).json()["enabled"] is True
    missing = api.client.put("/api/drafters/eagle", json={"enabled": True})
    assert missing.status_code == 404
    assert missing.json()["code"] == "unknown_drafter"


def test_decisions_are_paged_and_filtered(api: Api):
    eventually(lambda: len(api.client.get("/api/decisions").json()["decisions"]) >= 10)
    first = api.client.get("/api/decisions?limit=4").json()
    assert len(first["decisions"]) == 4
    assert first["next"] == first["decisions"][-1]["id"]
    second = api.client.get(f"/api/decisions?limit=4&before={first['next']}").json()
    ids = [row["id"] for row in first["decisions"] + second["decisions"]]
    assert ids == sorted(ids, reverse=True)
    assert len(set(ids)) == 8
    probes = api.client.get("/api/decisions?reason=probe&limit=3").json()["decisions"]
    assert {row["reason"] for row in probes} == {"probe"}
    assert probes[0]["candidates"][0]["drafter"] == "ngram"
    for filter in ("drafter=mtp", "request=999999"):
        found = api.client.get(f"/api/decisions?{filter}").json()
        assert found == {"decisions": [], "next": None}


def test_step_records_are_paged_with_the_errors_of_their_page(api: Api):
    eventually(lambda: len(api.client.get("/api/step-records").json()["step_records"]) >= 7)
    first = api.client.get("/api/step-records?limit=3").json()
    second = api.client.get(f"/api/step-records?limit=3&before={first['next']}").json()
    steps = [row["step"] for row in first["step_records"] + second["step_records"]]
    assert steps == list(range(steps[0], steps[0] - 6, -1))
    assert first["next"] == first["step_records"][-1]["id"]
    assert first["step_records"][0]["drafts"] == {"ngram": {"requests": 1, "tokens": 4}}
    assert first["calibration"] == {
        "records": 3,
        "records_without_prefill": 3,
        "tokens": {"error": pytest.approx(0.25), "bias": pytest.approx(-0.25)},
        "ms": {"error": pytest.approx(0.1), "bias": pytest.approx(0.1)},
    }
    past = api.client.get("/api/step-records?before=unknown").json()
    assert (past["step_records"], past["next"], past["calibration"]["tokens"]) == ([], None, None)
    assert api.client.get("/api/step-records?limit=501").status_code == 400


def test_what_if_and_its_bounds(api: Api):
    answer = api.client.get("/api/what-if?batch_size=4&context_len=100").json()
    assert answer["best"]["drafter"] == "ngram"
    assert api.client.get("/api/what-if?batch_size=0&context_len=1").status_code == 400


def test_ended_requests_are_recorded_without_text(api: Api):
    speculation = {"drafter": "ngram", "draft_length": 3}
    body = {"model": MODEL, "messages": [{"role": "user", "content": "secret"}]}
    answer = api.client.post("/v1/chat/completions", json=body | {"speculation": speculation})
    rows = eventually(
        lambda: [
            row
            for row in api.client.get("/api/requests").json()["requests"]
            if row["id"] == answer.json()["id"]
        ]
    )
    assert rows[0]["endpoint"] == "/v1/chat/completions"
    assert rows[0]["speculation"] == {"enabled": True, **speculation}
    assert rows[0]["completion_tokens"] == 12
    assert "secret" not in str(rows)
    assert all(row["status"] < 400 for row in rows)


def test_requests_are_filtered_by_key_and_failure(api: Api):
    body = {"name": "filtered", "scopes": ["inference"]}
    made = api.client.post("/api/keys", json=body).json()
    client = api.client_for(made["secret"])
    for text in ("hello", "refuse queue_full"):
        client.post("/v1/completions", json={"model": MODEL, "prompt": text})

    def rows(**filters: Any) -> list[dict[str, Any]]:
        found = api.client.get("/api/requests", params={"key_id": made["id"], **filters})
        return found.json()["requests"]

    eventually(lambda: len(rows()) == 2)
    failed = rows(failed="true")
    assert [(row["error_code"], row["finish_reason"]) for row in failed] == [
        ("queue_full", "error")
    ]
    assert all(row["key_id"] == made["id"] for row in rows())


def test_series_has_points_in_time_order(api: Api):
    now = time.time()
    points = eventually(
        lambda: api.client.get(f"/api/series?from={now - 60}&to={now + 60}").json()["points"]
    )
    assert points == sorted(points, key=lambda point: point["time"])


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("from=nan", "from"),
        ("from=-1", "from"),
        ("from=1e400", "from"),
        ("from=x", "from"),
        ("to=inf", "to"),
        ("to=1e300", "to"),
        ("from=20&to=10", "from"),
        ("from=10&to=10", "from"),
        ("max_points=0", "max_points"),
    ],
)
def test_a_wrong_series_names_the_parameter_as_it_was_sent(api: Api, query: str, field: str):
    response = api.client.get(f"/api/series?{query}")
    assert response.status_code == 400, response.text
    assert response.json()["field"] == field
    assert response.json()["detail"].startswith(field)


def test_a_wrong_filter_names_the_parameter_as_it_was_sent(api: Api):
    problem = api.client.get("/api/decisions?request=-1").json()
    assert problem["field"] == "request"
    assert "concerned" not in problem["detail"]


def test_a_key_is_made_shown_once_and_revoked(api: Api):
    body = {"name": "ci", "scopes": ["inference"], "expires_at": time.time() + 60}
    made = api.client.post("/api/keys", json=body)
    assert made.status_code == 201
    secret, id = made.json()["secret"], made.json()["id"]
    assert re.fullmatch(r"pl-[0-9a-f]{8}-[\w-]{43}", secret)
    assert api.client_for(secret).get("/v1/models").status_code == 200
    assert secret not in api.client.get("/api/keys").text
    assert api.client.delete(f"/api/keys/{id}").json()["revoked_at"]
    assert api.client_for(secret).get("/v1/models").status_code == 401
    assert api.client.delete("/api/keys/key_none").status_code == 404
    audit = eventually(lambda: (a := api.client.get("/api/audit").text).count("revoke_key") and a)
    assert secret not in audit


@pytest.mark.parametrize(
    "body",
    [
        {"name": "x", "scopes": []},
        {"name": "", "scopes": ["inference"]},
        {"name": "x", "scopes": ["root"]},
        {"name": "x", "scopes": ["inference"], "expires_at": 1},
        {"name": "x" * 65, "scopes": ["inference"]},
        {"name": "a\nb", "scopes": ["inference"]},
        {"name": " ", "scopes": ["inference"]},
    ],
)
def test_a_wrong_key_request_is_refused(api: Api, body: Any):
    assert api.client.post("/api/keys", json=body).status_code == 400


@pytest.mark.parametrize("when", ["1e300", "253402300800", "-1", "1e999"])
def test_a_key_expires_in_the_future_and_by_the_year_9999(api: Api, when: str):
    content = f'{{"name": "x", "scopes": ["inference"], "expires_at": {when}}}'
    headers = {"Content-Type": "application/json"}
    response = api.client.post("/api/keys", content=content, headers=headers)
    assert response.status_code == 400
    assert when == "1e999" or response.json()["field"] == "expires_at"


def test_metrics_have_own_names_and_vllm_aliases(api: Api):
    api.client.post("/v1/completions", json={"model": MODEL, "prompt": "refuse queue_full"})
    with api.client_for(api.key("metrics:read")) as client:
        text = client.get("/metrics").text
    values = dict(re.findall(r"^(\S+?)(?:\{[^}]*\})? (\S+)$", text, re.M))
    for name, alias in [
        ("paceline_generation_tokens_total", "vllm:generation_tokens_total"),
        ("paceline_spec_decode_drafts_total", "vllm:spec_decode_num_drafts_total"),
        ("paceline_spec_decode_draft_tokens_total", "vllm:spec_decode_num_draft_tokens_total"),
        (
            "paceline_spec_decode_accepted_tokens_total",
            "vllm:spec_decode_num_accepted_tokens_total",
        ),
        ("paceline_requests_running", "vllm:num_requests_running"),
        ("paceline_kv_cache_usage", "vllm:kv_cache_usage_perc"),
    ]:
        assert values[name] == values[alias]
    harm = re.findall(r'^paceline_harm_ledger_seconds\{clock="(\w+)",.*\} (\S+)$', text, re.M)
    assert sorted(harm) == [("plain", "60.25"), ("real", "40.5"), ("static", "42.0")]
    assert values["paceline_harm_ledger_tokens"] == "1200.0"
    assert (
        'vllm:spec_decode_num_accepted_tokens_per_pos_total{model_name="scripted",position="1"}'
        in text
    )
    assert 'paceline_requests_total{error="queue_full",finish_reason="error"' in text
    assert not re.search(r'vllm:request_success_total\{finished_reason="(queue|cancel|error)', text)
    for name in ("paceline_engine_restarts_total", "paceline_storage_dropped_records_total"):
        assert name in values
    for name in ("time_to_first_token", "inter_token_latency", "e2e_request_latency"):
        assert f"vllm:{name}_seconds_bucket" in text
