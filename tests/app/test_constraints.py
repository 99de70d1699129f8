"""The operator's TPOT target and draft budget, over HTTP on the real server."""

from __future__ import annotations

import time
from typing import Any

import httpx
import pytest

PINNED = {"mode": "pinned", "drafter": "ngram", "draft_length": 4}


def put(admin: httpx.Client, **body: Any) -> dict[str, Any]:
    answer = admin.put("/api/controller", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def drafted(admin: httpx.Client) -> tuple[int, int]:
    """Drafted tokens of an answer, and in how many steps."""
    body = {
        "model": "smollm2-135m-instruct",
        "messages": [{"role": "user", "content": "Repeat ten times: the seven cats sat."}],
        "temperature": 0,
        "max_tokens": 32,
    }
    answer = admin.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200
    counts = answer.json()["metrics"]["speculative_decoding"]
    return counts["num_draft_tokens"], counts["num_spec_steps"]


def decision(admin: httpx.Client, words: str) -> dict[str, Any]:
    """The newest decision that says so, as soon as the ledger has it."""
    for _ in range(300):
        found = admin.get("/api/decisions").json()["decisions"]
        said = [one for one in found if words in one["sentence"]]
        if said:
            return said[0]
        time.sleep(0.1)
    raise AssertionError(f"no decision says {words!r}")


def test_a_budget_bounds_a_pinned_d_and_is_shown_with_what_it_decides(admin: httpx.Client) -> None:
    shown = put(admin, **PINNED, draft_budget=1)
    assert shown["draft_budget"] == 1
    tokens, steps = drafted(admin)
    assert 0 < tokens <= steps
    assert admin.get("/api/state").json()["controller"]["draft_budget"] == 1
    report = admin.get("/api/controller").json()["report"]
    assert report["setting"]["draft_budget"] == 1
    assert decision(admin, "at most 1 draft tokens per step")["inputs"]["draft_budget"] == 1


def test_a_target_that_nothing_meets_leaves_the_shortest_step_and_a_wide_one_the_pin(
    admin: httpx.Client,
) -> None:
    assert put(admin, **PINNED, tpot_target_ms=600_000)["tpot_target_ms"] == 600_000
    tokens, _ = drafted(admin)
    assert tokens > 0
    assert put(admin, **PINNED, tpot_target_ms=0.001)["tpot_target_ms"] == 0.001
    drafted(admin)
    assert decision(admin, "TPOT at most 0.001 ms")["inputs"]["tpot_ms"] > 0.001


def test_what_a_change_leaves_out_and_what_is_0_is_none(admin: httpx.Client) -> None:
    put(admin, mode="auto", tpot_target_ms=20.5, draft_budget=8, max_drafting_requests=3)
    shown = admin.get("/api/controller").json()
    assert (shown["tpot_target_ms"], shown["draft_budget"]) == (20.5, 8)
    shown = put(admin, mode="auto", tpot_target_ms=0, draft_budget=0)
    assert (shown["tpot_target_ms"], shown["draft_budget"]) == (None, None)
    shown = put(admin, mode="auto", tpot_target_ms=20)
    assert (shown["tpot_target_ms"], shown["draft_budget"]) == (20, None)
    assert put(admin, mode="auto")["tpot_target_ms"] is None


def test_another_policy_serves_under_the_same_constraints(admin: httpx.Client) -> None:
    put(admin, mode="auto", draft_budget=1)
    change = {"policy": "fixed", "policy_options": "drafter=ngram draft_length=4"}
    try:
        shown = admin.put("/api/controller/policy", json=change).json()
        assert shown["draft_budget"] == 1
        tokens, steps = drafted(admin)
        assert 0 < tokens <= steps
    finally:
        admin.put("/api/controller/policy", json={"policy": "adaptive"})


@pytest.mark.parametrize(
    "value", ["-1", "-0.5", '"20"', "true", "1e400", "NaN", "Infinity", "600001", "[]", "{}"]
)
def test_a_target_that_is_no_time_is_refused_and_changes_nothing(
    admin: httpx.Client, value: str
) -> None:
    refused(admin, "tpot_target_ms", value)


@pytest.mark.parametrize("value", ["-1", "2.5", '"2"', "true", "1e400", "NaN", "1000001", "[1]"])
def test_a_budget_that_is_no_count_is_refused_and_changes_nothing(
    admin: httpx.Client, value: str
) -> None:
    refused(admin, "draft_budget", value)


def refused(admin: httpx.Client, field: str, value: str) -> None:
    before = put(admin, mode="auto", tpot_target_ms=33, draft_budget=7)
    body = f'{{"mode": "auto", "{field}": {value}}}'
    headers = {"content-type": "application/json"}
    answer = admin.put("/api/controller", content=body, headers=headers)
    assert answer.status_code == 400
    assert answer.json()["detail"]
    if value not in ("1e400", "NaN", "Infinity"):  # no number or no JSON, so nobody's field
        assert field in answer.text
    shown = admin.get("/api/controller").json()
    assert shown["tpot_target_ms"] == before["tpot_target_ms"] == 33
    assert shown["draft_budget"] == before["draft_budget"] == 7


@pytest.mark.parametrize("limit", ["tpot_target_ms", "draft_budget"])
def test_neither_has_an_effect_in_mode_off_and_is_refused_there(
    admin: httpx.Client, limit: str
) -> None:
    answer = admin.put("/api/controller", json={"mode": "off", limit: 20})
    assert answer.status_code == 400
    assert f"{limit} has no effect in mode off" in answer.text


def test_the_schema_has_both_with_the_largest_value(admin: httpx.Client) -> None:
    schema = admin.get("/schema/openapi.json").json()
    fields = schema["components"]["schemas"]["ControllerChange"]["properties"]
    for field, largest in (("tpot_target_ms", 600_000), ("draft_budget", 1_000_000)):
        assert fields[field]["maximum"] == largest
