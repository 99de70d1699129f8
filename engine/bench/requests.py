"""Requests for drafters that are called without an engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from controller.contract import Wish
from engine.draw import Draw
from engine.request import Request


def request_of(tokens: Sequence[int], number: int) -> Request:
    """A request with this prompt."""
    output: Any = None  # nothing is streamed
    return Request(
        id=number,
        name=str(number),
        tokens=list(tokens),
        prompt_length=len(tokens),
        max_tokens=1 << 20,
        draw=Draw(),
        wish=Wish(),
        tenant="",
        output=output,
        arrived=0.0,
    )
