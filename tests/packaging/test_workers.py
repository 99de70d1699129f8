"""Which tests one of several workers runs together."""

from __future__ import annotations

import pytest

from tests.workers import group


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
