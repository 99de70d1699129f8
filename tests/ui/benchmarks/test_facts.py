"""The sentences of a recorded benchmark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from app.bench.record import read_summary
from tests import measured
from ui.benchmarks import facts


def test_the_list_tells_when_what_and_where() -> None:
    assert facts.list_row(measured.record()) == {
        "Measured (UTC)": "2026-09-21 14:13",
        "Arms": "none, ngram:4, auto",
        "Workload": "my prompts.jsonl, 12 prompts, 1 at once, up to 20 tokens, temperature 0",
        "Model": "smol",
        "Machine": "AMD EPYC, 2 cores, 25 GB",
        "Kind": "bench",
    }


@pytest.mark.parametrize("packages", [None, "torch 2", ["torch"], 3])
def test_packages_of_another_form_are_left_out(packages: Any) -> None:
    machine = {"git": "abc123", "packages": packages}
    assert facts.versions(measured.record(machine=machine)) == "source abc123"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"concurrency": [1, 4, 16]}, "1, 4 and 16 at once"),
        ({"concurrency": [1], "rate": [0.5, 2.0]}, "0.5 and 2 requests/s"),
        ({"concurrency": [1], "phases": "moving.toml"}, "phases"),
        ({"concurrency": [1], "phase": [{"name": "chat"}]}, "phases"),
        ({"trace": "azure.csv", "concurrency": [1]}, "trace azure.csv"),
        ({"repeat": 3, "interrupted": True}, "3 repeats, interrupted"),
        ({"categories": ["qa", "rag"]}, "qa and rag"),
        ({}, "–"),
    ],
)
def test_the_workload_says_how_requests_came(settings: dict[str, Any], said: str) -> None:
    assert facts.workload({"settings": settings}) == said


def test_other_servers_and_peers_are_arms_too() -> None:
    settings = {"modes": ["auto"], "arms": {"rival": "model"}, "peers": {"vllm": "0.9"}}
    assert facts.arms({"settings": settings}) == ["auto", "rival", "vllm"]


def test_what_a_record_of_another_program_lacks_is_a_dash() -> None:
    empty = facts.list_row({"machine": {}, "settings": {}})
    assert set(empty.values()) == {"–"}
    assert facts.versions({}) == "–"


def test_loads_are_named_in_the_order_of_the_rows() -> None:
    rows = [
        {"concurrency": 1, "rate": 0.0, "phase": ""},
        {"concurrency": 0, "rate": 0.5, "phase": ""},
        {"concurrency": 4, "rate": 0.0, "phase": "rush"},
        {"concurrency": 4, "rate": 0.0, "phase": "rush"},
        {"concurrency": 0, "rate": 0.0, "phase": "all"},
    ]
    assert facts.loads(rows) == ["1 at once", "0.5 requests/s", "rush: 4 at once", "all phases"]


def test_two_runs_say_what_makes_them_hard_to_compare() -> None:
    one, other = measured.record(), measured.record("bench-0002")
    assert facts.differences(one, other) == []
    other["model"] = "large"
    other["settings"] = {**other["settings"], "max_tokens": 64}
    assert [line.split(":")[0] for line in facts.differences(one, other)] == ["model", "workload"]


def test_the_downloaded_document_can_be_recorded_again(tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    file.write_text(facts.document(measured.record()), "utf-8")
    summary = read_summary(file)
    assert (summary.time, summary.base) == (1_790_000_000.0, "none")
    assert len(summary.rows) == len(measured.rows()) == len(json.loads(file.read_text())["rows"])
