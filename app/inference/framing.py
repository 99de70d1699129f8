"""Server-sent events, separated by a blank line of bare newlines as strict clients expect."""

from __future__ import annotations

import msgspec

DONE = b"data: [DONE]\n\n"


def data_event(value: object) -> bytes:
    """An event without a name."""
    return b"data: " + msgspec.json.encode(value) + b"\n\n"


def named_event(name: str, value: object) -> bytes:
    return b"event: " + name.encode() + b"\n" + data_event(value)
