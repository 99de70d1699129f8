"""API keys: list, create, revoke; and one-use WebSocket tickets."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import msgspec
from litestar import Request, delete, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody
from msgspec import Meta

from app.admin.stored import stored
from app.db.keys import KeyRecord, check_expiry, check_name
from app.errors import ApiError, bad_request
from app.security.auth import KeyScope
from app.service import Service


class NewKey(msgspec.Struct, forbid_unknown_fields=True):
    """expires_at: seconds since the epoch; without it the key does not expire."""

    name: str
    scopes: Annotated[list[KeyScope], Meta(min_length=1, max_length=5)]
    expires_at: float | None = None


@get("/api/keys", opt={"scope": "admin:write"}, operation_id="ListKeys", tags=["keys"])
async def list_keys(service: NamedDependency[Service]) -> dict[str, Any]:
    """All keys, revoked ones too, without their secrets."""
    return {"keys": [asdict(record) for record in await service.keys.list()]}


@post("/api/keys", opt={"scope": "admin:write"}, operation_id="CreateKey", tags=["keys"])
async def create_key(
    request: Request[Any, Any, Any], data: JSONBody[NewKey], service: NamedDependency[Service]
) -> dict[str, Any]:
    """Make a key. Its secret is in this answer and nowhere else."""
    try:
        check_name(data.name)
    except ValueError as error:
        raise bad_request(str(error), "name") from None
    try:
        if data.expires_at is not None:
            check_expiry(data.expires_at)
    except ValueError as error:
        raise bad_request(str(error), "expires_at") from None
    scopes = list(dict.fromkeys(data.scopes))
    record, secret = await stored(service.keys.create(data.name, scopes, data.expires_at))
    service.audit(request, "create_key", record.id, None, _shown(record))
    return {**_shown(record), "secret": secret}


@delete(
    "/api/keys/{key_id:str}",
    status_code=200,
    opt={"scope": "admin:write"},
    operation_id="RevokeKey",
    tags=["keys"],
)
async def revoke_key(
    request: Request[Any, Any, Any], key_id: FromPath[str], service: NamedDependency[Service]
) -> dict[str, Any]:
    """Make a key invalid at once and for good."""
    record = await stored(service.keys.revoke(key_id))
    if record is None:
        raise ApiError(404, "unknown_key", f"There is no key '{key_id[:64]}'.")
    service.audit(request, "revoke_key", record.id, {"revoked_at": None}, _shown(record))
    return _shown(record)


@post("/api/tickets", opt={"scope": "inference"}, operation_id="CreateTicket", tags=["keys"])
async def create_ticket(
    request: Request[Any, Any, Any], service: NamedDependency[Service]
) -> dict[str, Any]:
    """A ticket for one WebSocket handshake within 60 s, with the caller's scopes."""
    ticket, expires_at = service.tickets.issue(request.user)
    return {"ticket": ticket, "expires_at": expires_at}


def _shown(record: KeyRecord) -> dict[str, Any]:
    return asdict(record)
