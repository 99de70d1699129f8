"""How many workers run the tests, and which tests one of them runs together."""

from __future__ import annotations

import pytest

from tests.workers import count, group


@pytest.mark.parametrize(
    ("cores", "gigabytes", "workers"),
    [(1, 24, 2), (2, 24, 3), (64, 1000, 3), (2, 7, 2), (64, 7, 2)],
)
def test_one_more_than_cores_as_far_as_the_memory_goes(
    cores: int, gigabytes: int, workers: int
) -> None:
    assert count(cores, gigabytes * 10**9) == workers


@pytest.mark.parametrize(
    ("file", "together"),
    [
        ("tests/app/test_real_server.py", "server"),
        ("tests/app/test_constraints.py", "server"),
        ("tests/ui/test_pages.py", "server"),
        ("tests/e2e/test_console.py", "e2e"),
        ("tests/db/test_writer.py", "db"),
        ("tests/app/test_chat.py", "tests/app/test_chat.py"),
    ],
)
def test_what_shares_a_server_or_a_database_runs_in_one_worker(file: str, together: str) -> None:
    assert group(file) == together
