"""Finished responses in memory, so that previous_response_id can continue a chat."""

from __future__ import annotations

import time
from collections import OrderedDict
from dataclasses import dataclass

from engine.wire import Message

LIFETIME_S = 3600.0
MAX_PER_OWNER = 256
MAX_CHARS = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Stored:
    """A conversation up to and including one answer; instructions are not carried over."""

    owner: str
    messages: tuple[Message, ...]
    created: float

    @property
    def chars(self) -> int:
        return sum(len(message.content) for message in self.messages)


class ResponseStore:
    """Least recently used first out: 256 responses per owner, 64 Mi characters in all, 1 h.

    An owner (a key, or one WebSocket for store=false) never sees another owner's responses."""

    def __init__(self, max_per_owner: int = MAX_PER_OWNER, max_chars: int = MAX_CHARS) -> None:
        self._max_per_owner = max_per_owner
        self._max_chars = max_chars
        self._items: OrderedDict[str, Stored] = OrderedDict()
        self._counts: dict[str, int] = {}
        self._chars = 0

    def put(self, id: str, owner: str, messages: tuple[Message, ...]) -> None:
        stored = Stored(owner, messages, time.monotonic())
        self._items[id] = stored
        self._counts[owner] = self._counts.get(owner, 0) + 1
        self._chars += stored.chars
        if self._counts[owner] > self._max_per_owner:
            self._drop(next(key for key, item in self._items.items() if item.owner == owner))
        while self._chars > self._max_chars and len(self._items) > 1:
            self._drop(next(iter(self._items)))

    def get(self, id: str, *owners: str) -> tuple[Message, ...] | None:
        """The conversation, when one of the owners stored it within the last hour."""
        stored = self._items.get(id)
        if stored is None or stored.owner not in owners:
            return None
        if time.monotonic() - stored.created > LIFETIME_S:
            self._drop(id)
            return None
        self._items.move_to_end(id)
        return stored.messages

    def forget(self, owner: str) -> None:
        """Drop everything of an owner."""
        for key in [key for key, item in self._items.items() if item.owner == owner]:
            self._drop(key)

    def _drop(self, id: str) -> None:
        stored = self._items.pop(id)
        self._chars -= stored.chars
        self._counts[stored.owner] -= 1
        if not self._counts[stored.owner]:
            del self._counts[stored.owner]
