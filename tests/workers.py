"""How many workers run the tests (make test), and how they share them."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import psutil
from xdist.scheduler.loadscope import LoadScopeScheduling

ROOT = Path(__file__).resolve().parent.parent
USES_SERVER = re.compile(r"\b(server: Server|admin: httpx\.Client)\b")
"""The session's server, and the fixture for its operator."""


MOST = 3
"""A worker takes up to 3 GB: a server with its model, and the model once more for tests inside."""
ENOUGH_BYTES = 10 * 10**9


def count(cores: int, memory: int) -> int:
    """How many workers: one more than there are cores, since tests wait for processes for a quarter
    of their time. memory: bytes of the machine; with little of it two at most."""
    return min(cores + 1, MOST if memory >= ENOUGH_BYTES else MOST - 1)


def of_this_machine() -> int:
    return count(psutil.cpu_count() or 1, psutil.virtual_memory().total)


class Groups(LoadScopeScheduling):
    """One worker runs all tests of a file, all in the browser, all that need the server, or all
    that need a database: each worker that needs one starts its own."""

    def _split_scope(self, nodeid: str) -> str:
        return group(nodeid.partition("::")[0])


@cache
def group(file: str) -> str:
    """The group of a test file, given by its path from the root."""
    for folder in ("e2e", "db"):
        if file.startswith(f"tests/{folder}/"):
            return folder
    return "server" if USES_SERVER.search((ROOT / file).read_text("utf-8")) else file
