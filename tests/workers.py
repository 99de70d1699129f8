"""How several workers (make test) share the tests."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from xdist.scheduler.loadscope import LoadScopeScheduling

ROOT = Path(__file__).resolve().parent.parent
USES_SERVER = re.compile(r"\b(server: Server|admin: httpx\.Client)\b")
"""The session's server, and the fixture for its operator."""


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
