"""What an operator lets the batch size decide, over HTTP on the real server."""

from __future__ import annotations

import concurrent.futures
from typing import Any

import httpx
import pytest


def ask(admin: httpx.Client, number: int) -> dict[str, Any]:
    body = {
        "model": "smollm2-135m-instruct",
        "messages": [{"role": "user", "content": f"Repeat ten times: the {number} cats sat."}],
        "temperature": 0,
        "max_tokens": 24,
    }
    answer = admin.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200
    return answer.json()["metrics"]["speculative_decoding"]


def test_a_table_of_d_by_batch_size_holds_and_is_shown(admin: httpx.Client) -> None:
    schedule = [{"max_requests": 4, "draft_length": 2}]
    body = {"mode": "pinned", "drafter": "ngram", "schedule": schedule}
    assert admin.put("/api/controller", json=body).json()["schedule"] == schedule
    counts = ask(admin, 3)
    assert 0 < counts["num_draft_tokens"] <= 2 * counts["num_spec_steps"]
    assert admin.get("/api/controller").json()["schedule"] == schedule


def test_a_limit_of_none_means_that_nobody_drafts(admin: httpx.Client) -> None:
    body = {"mode": "pinned", "drafter": "ngram", "draft_length": 4, "max_drafting_requests": 0}
    assert admin.put("/api/controller", json=body).json()["max_drafting_requests"] == 0
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for counts in pool.map(lambda number: ask(admin, number), range(4)):
            assert counts["num_draft_tokens"] == 0


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"mode": "auto", "schedule": [{"max_requests": 4, "draft_length": 2}]}, "schedule"),
        ({"mode": "off", "max_drafting_requests": 2}, "max_drafting_requests"),
        ({"mode": "auto", "speculative_disable_by_batch_size": 2}, "speculative_disable"),
        (
            {
                "mode": "pinned",
                "drafter": "ngram",
                "schedule": [{"max_requests": 4, "draft_length": 99}],
            },
            "draft_length",
        ),
        (
            {
                "mode": "pinned",
                "drafter": "ngram",
                "schedule": [
                    {"max_requests": 4, "draft_length": 2},
                    {"max_requests": 4, "draft_length": 1},
                ],
            },
            "schedule",
        ),
    ],
)
def test_an_unknown_or_unused_setting_is_refused_by_name_and_changes_nothing(
    admin: httpx.Client, body: dict[str, Any], named: str
) -> None:
    answer = admin.put("/api/controller", json=body)
    assert answer.status_code == 400
    assert named in answer.text
    assert admin.get("/api/controller").json()["mode"] == "auto"
