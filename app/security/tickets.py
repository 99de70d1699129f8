"""One-use WebSocket tickets for browsers, which cannot set an Authorization header."""

from __future__ import annotations

import secrets
import time
from collections import OrderedDict

from app.security.auth import Principal

TICKET_S = 60.0
MAX_TICKETS = 1024


class Tickets:
    """Issued tickets in memory; the oldest is dropped beyond 1,024."""

    def __init__(self, lifetime_s: float = TICKET_S) -> None:
        self._lifetime_s = lifetime_s
        self._issued: OrderedDict[str, tuple[Principal, float]] = OrderedDict()

    def issue(self, principal: Principal) -> tuple[str, float]:
        """A ticket with the caller's scopes, and when it expires (seconds since the epoch)."""
        while len(self._issued) >= MAX_TICKETS:
            self._issued.popitem(last=False)
        ticket = "tk-" + secrets.token_urlsafe(32)
        expires = time.time() + self._lifetime_s
        self._issued[ticket] = (principal, expires)
        return ticket, expires

    def redeem(self, ticket: str) -> Principal | None:
        """Whom the ticket was issued to, once; None when unknown, used or expired."""
        principal, expires = self._issued.pop(ticket, (None, 0.0))
        return principal if time.time() < expires else None
