"""Who is calling and whether the route's scope is among theirs, for HTTP and WebSocket alike."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal, get_args

import msgspec
from litestar import Litestar
from litestar.enums import ScopeType
from litestar.middleware import ASGIMiddleware
from litestar.types import ASGIApp, Receive, Scope, Send

from app.errors import ApiError, is_openai
from app.security.origin import origin_allowed

KeyScope = Literal["inference", "metrics:read", "admin:read", "operate", "admin:write"]
SCOPES: tuple[str, ...] = get_args(KeyScope)
OPERATOR_SCOPES = ("inference", "metrics:read", "admin:read", "operate")
OPEN = "open"
"""Declared by a route that needs no key."""
ANY_KEY = "any"
"""Declared by a route that any valid key may use."""

TICKET_PROTOCOL = "openai-insecure-api-key."


@dataclass(frozen=True, slots=True)
class Principal:
    """The caller. id binds what they store (responses); name is shown in the audit log."""

    id: str
    name: str
    scopes: frozenset[str]


class Auth(ASGIMiddleware):
    """Checks the bearer key (or, on a WebSocket, the ticket) before anything of the route runs.

    A route without a declared scope is refused: forgetting one can not open a door."""

    scopes = (ScopeType.HTTP, ScopeType.WEBSOCKET)

    def __init__(
        self,
        find_key: Callable[[str], Principal | None],
        redeem_ticket: Callable[[str], Principal | None],
        origins: Iterable[str],
    ) -> None:
        self._find_key = find_key
        self._redeem_ticket = redeem_ticket
        self._origins = frozenset(origins)

    async def handle(self, scope: Scope, receive: Receive, send: Send, next_app: ASGIApp) -> None:
        try:
            principal = self._authorise(scope)
        except ApiError as error:
            await _refuse(error, scope, receive, send)
            return
        scope["user"] = principal
        await next_app(scope, receive, send)

    def _authorise(self, scope: Scope) -> Principal | None:
        headers = {name.lower(): value.decode("latin-1") for name, value in scope["headers"]}
        if scope["type"] == "websocket" and not origin_allowed(headers, self._origins):
            raise ApiError(403, "origin_not_allowed", "This Origin may not open a WebSocket here.")
        needed = scope["route_handler"].opt.get("scope")
        if needed is None and scope.get("method") == "OPTIONS":
            needed = ANY_KEY  # Litestar's own answer: the methods of the path
        if needed == OPEN:
            return None
        principal = self._identify(scope, headers)
        if principal is None:
            raise ApiError(
                401,
                "invalid_api_key",
                "No valid API key was given. Send it as 'Authorization: Bearer <key>'.",
            )
        if needed != ANY_KEY and needed not in principal.scopes:
            lacks = f"This key lacks the scope '{needed}'." if needed else "No key may do this."
            raise ApiError(403, "insufficient_scope", lacks)
        return principal

    def _identify(self, scope: Scope, headers: dict[bytes, str]) -> Principal | None:
        kind, _, secret = headers.get(b"authorization", "").partition(" ")
        if kind.lower() == "bearer" and secret.strip():
            return self._find_key(secret.strip())
        if scope["type"] == "websocket":
            for protocol in scope["subprotocols"]:
                if protocol.startswith(TICKET_PROTOCOL):
                    return self._redeem_ticket(protocol.removeprefix(TICKET_PROTOCOL))
        return None


def check_routes(app: Litestar) -> None:
    """Raise ValueError when a route declares no scope or an unknown one."""
    known = {OPEN, ANY_KEY, *SCOPES}
    for route, handler in route_handlers(app):
        scope = handler.opt.get("scope")
        if scope not in known:
            raise ValueError(f"route {route} ({handler}) declares no valid scope: {scope!r}")


def route_handlers(app: Litestar) -> Iterable[tuple[str, Any]]:
    """Every (path, handler) but the automatic OPTIONS ones, which any key may use."""
    for route in app.routes:
        handlers = getattr(route, "route_handlers", None) or [route.route_handler]  # type: ignore[attr-defined]
        for handler in handlers:
            if getattr(handler, "http_methods", None) != {"OPTIONS"}:
                yield route.path, handler


async def _refuse(error: ApiError, scope: Scope, receive: Receive, send: Send) -> None:
    path = scope["path"]
    if scope["type"] == "http":
        response = error.response(path)
        await response.to_asgi_response(app=None, request=None)(scope, receive, send)  # type: ignore[arg-type]
        return
    message = await receive()
    if message["type"] != "websocket.connect":
        return
    if "websocket.http.response" in (scope.get("extensions") or {}):
        body = {"error": error.openai()} if is_openai(path) else error.problem()
        start: Any = {
            "type": "websocket.http.response.start",
            "status": error.status,
            "headers": [(b"content-type", b"application/json")],
        }
        rest: Any = {"type": "websocket.http.response.body", "body": msgspec.json.encode(body)}
        await send(start)
        await send(rest)
    else:
        code = {401: 4401, 403: 4403}[error.status]
        await send({"type": "websocket.close", "code": code, "reason": error.message})
