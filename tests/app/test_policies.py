"""The policy of a server: chosen at start, changed while it serves, shown to its operators."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest

from app.failures import SettingsError
from app.settings import load_settings
from controller.policies import NAMES
from engine.config import PolicyName
from tests.app.conftest import MODEL, Api, eventually, running_api


def test_the_names_of_the_settings_are_those_of_the_policies() -> None:
    assert get_args(PolicyName) == NAMES


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"policy": "clever"}, r"--policy \(PACELINE_POLICY\) has a wrong value 'clever'"),
        (
            {"policy": "fixed", "policy_options": "depth=3"},
            r"--policy-options \(PACELINE_POLICY_OPTIONS\): depth: is no option of policy fixed",
        ),
        (
            {"policy_options": "draft_length=3"},
            "draft_length: is no option of policy adaptive; it has no options",
        ),
        ({"policy": "fixed", "policy_options": "draft_length"}, "written as KEY=VALUE"),
        (
            {"policy": "ema_tiers", "policy_options": "ema_rate=7"},
            "ema_rate: must be a number from 0.001 to 1, not '7'",
        ),
        ({"ab_policy": "clever"}, r"--ab-policy \(PACELINE_AB_POLICY\): 'clever' is not one of"),
        ({"ab_options": "draft_length=3"}, "has no effect without ab_policy"),
        ({"ab_policy": "off", "ab_share": "1.5"}, r"--ab-share \(PACELINE_AB_SHARE\)"),
    ],
)
def test_a_policy_that_cannot_be_is_refused_at_start(given: dict[str, str], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        load_settings(given, {})


def test_a_policy_is_given_to_the_engine(tmp_path: Path) -> None:
    given = {
        "policy": "ema_tiers",
        "policy_options": "ema_rate=0.1 tiers=1:0/2/4",
        "ab_policy": "off",
        "ab_share": "0.25",
    }
    config = load_settings(given, {}).engine_config()
    assert (config.policy, config.policy_options) == ("ema_tiers", "ema_rate=0.1 tiers=1:0/2/4")
    assert (config.ab_policy, config.ab_share) == ("off", 0.25)


def change(api: Api, **body: Any) -> Any:
    answer = api.client.put("/api/controller/policy", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_the_policy_is_changed_read_back_shown_and_audited(api: Api) -> None:
    assert api.client.get("/api/controller").json()["policy"] == "adaptive"
    key = api.key("operate", "admin:read")
    body = {"policy": "fixed", "policy_options": "draft_length=3", "ab_policy": "off"}
    changed = api.client_for(key).put("/api/controller/policy", json=body).json()
    assert {name: changed[name] for name in body} == body
    assert (changed["ab_share"], changed["mode"], changed["set_by"]) == (0.5, "auto", "test")
    state = api.client.get("/api/state").json()
    assert state["controller"]["policy"] == "fixed"
    label = f'paceline_policy{{ab_policy="off",model="{MODEL}",policy="fixed"}} 1.0'
    eventually(lambda: label in api.client.get("/metrics").text)
    entries = eventually(
        lambda: [
            row
            for row in api.client.get("/api/audit").json()["audit"]
            if row["action"] == "set_policy" and row["after"].get("policy") == "fixed"
        ]
    )
    assert entries[0]["before"]["policy"] == "adaptive"
    change(api, policy="adaptive")
    label = f'paceline_policy{{ab_policy="",model="{MODEL}",policy="adaptive"}} 1.0'
    shown = eventually(lambda: (text := api.client.get("/metrics").text) and label in text and text)
    assert shown.count("paceline_policy{") == 1


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "policy"),
        ({"policy": ""}, "policy"),
        ({"policy": "fixed", "ab_share": 2}, "ab_share"),
        ({"policy": "fixed", "policy_options": "x" * 5000}, "policy_options"),
        ({"policy": "fixed", "depth": 3}, None),
        ({"policy": "refused"}, "policy"),
    ],
)
def test_a_policy_that_cannot_be_is_a_400_that_names_the_field(
    api: Api, body: dict[str, Any], field: str | None
) -> None:
    answer = api.client.put("/api/controller/policy", json=body)
    assert answer.status_code == 400
    assert answer.json().get("field") == field
    assert api.client.get("/api/controller").json()["policy"] == "adaptive"


def test_an_engine_that_is_restarted_gets_the_policy_again(tmp_path: Path) -> None:
    with running_api(tmp_path, policy="fixed") as own:
        own.ready()
        assert own.client.get("/api/controller").json()["policy"] == "fixed"
        change(own, policy="ucb", policy_options="draft_lengths=1,2", ab_policy="off")
        prompt = f"die-once {tmp_path / 'died'}"
        own.client.post("/v1/completions", json={"model": MODEL, "prompt": prompt})
        assert own.service.engine.restarts == 1
        found = own.client.get("/api/controller").json()
    assert (found["policy"], found["policy_options"]) == ("ucb", "draft_lengths=1,2")
    assert found["ab_policy"] == "off"
