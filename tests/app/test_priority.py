"""Who may ask for a priority: everyone, or with scheduling policy fcfs nobody."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

from tests.app.conftest import Api, running_api
from tests.app.test_responses import create, receive, socket, until_end
from tests.app.test_sampling_fields import PATHS, post, sampling


@pytest.fixture(scope="module")
def fcfs(tmp_path_factory: pytest.TempPathFactory) -> Generator[Api]:
    with running_api(tmp_path_factory.mktemp("fcfs"), scheduling_policy="fcfs") as running:
        running.ready()
        yield running


@pytest.mark.parametrize("endpoint", PATHS)
@pytest.mark.parametrize("priority", [-(2**31), -1, 0, 2**31 - 1])
def test_a_priority_reaches_the_engine_by_default(api: Api, endpoint: str, priority: int):
    assert sampling(api, endpoint, priority=priority)["priority"] == priority


@pytest.mark.parametrize("endpoint", PATHS)
@pytest.mark.parametrize("priority", [-1, 1])
@pytest.mark.parametrize("stream", [False, True])
def test_first_come_first_served_refuses_a_priority_and_says_what_to_do(
    fcfs: Api, endpoint: str, priority: int, stream: bool
):
    response = post(fcfs, endpoint, "hi", priority=priority, stream=stream)
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["param"], error["type"]) == ("priority", "invalid_request_error")
    assert "left out" in error["message"]
    assert "--scheduling-policy priority" in error["message"]


@pytest.mark.parametrize("endpoint", PATHS)
@pytest.mark.parametrize("fields", [{}, {"priority": 0}, {"priority": None}])
def test_first_come_first_served_takes_requests_without_one(
    fcfs: Api, endpoint: str, fields: dict[str, Any]
):
    assert sampling(fcfs, endpoint, **fields)["priority"] == 0


def test_a_priority_on_a_websocket_is_refused_and_the_connection_goes_on(fcfs: Api):
    with socket(fcfs) as connection:
        create(connection, "hi", priority=3)
        refused = receive(connection)
        create(connection, "hi", max_output_tokens=2)
        events = until_end(connection)
    assert (refused["type"], refused["status"], refused["param"]) == ("error", 400, "priority")
    assert events[0]["type"] == "response.created"
