"""What a person reads of a recording of live steps, and the commands for it. Pure functions."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from ui import palette, shaping

Json = Mapping[str, Any]

MOST_BYTES = 16 * 1024 * 1024
"""Larger files are not taken through the console, whose memory would hold them for each browser."""
PLANNED = frozenset({"stopped", "duration", "size"})
"""How a recording ends that was not disturbed."""


def state(one: Json) -> tuple[str, str]:
    """(word, colour)."""
    if one["running"]:
        return "running", palette.ACCENT
    return ("whole", palette.GOOD) if one["end"] in PLANNED else ("cut short", palette.WARNING)


def facts(one: Json) -> str:
    """How long it lasted and what is in it."""
    found = (
        shaping.duration(one["seconds"]),
        shaping.counted(one["steps"], "step"),
        shaping.counted(one["requests"], "request"),
        shaping.size(one["bytes"]),
    )
    return ", ".join(found)


def progress(one: Json) -> float:
    """Share 0..1 of the bound that it reaches first."""
    seconds, size = one["limit_seconds"], one["limit_bytes"]
    shares = [one["seconds"] / seconds if seconds else 0.0, one["bytes"] / size if size else 0.0]
    return min(max(*shares, 0.0), 1.0)


def signature(found: Sequence[Json]) -> str:
    """Changes with what the list shows, but not while a recording goes on."""
    return " ".join(f"{one['name']}:{one['end']}" for one in found)


def fetch(name: str, url: str) -> str:
    """The command that takes the file from the API."""
    source = shlex.quote(f"{url}/api/recordings/{name}")
    return (
        "export PACELINE_API_KEY=…   # a key with the scope admin:read\n"
        f'curl --fail -H "Authorization: Bearer $PACELINE_API_KEY" \\\n  -o {name}.jsonl {source}'
    )


def replay(name: str) -> str:
    """The command that replays it."""
    return (
        f"paceline simulate replay {name}.jsonl \\\n"
        "  --policy adaptive --policy goodput --policy off"
    )
