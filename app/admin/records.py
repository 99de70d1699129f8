"""Decisions, steps, requests, series and audit: what is read back from memory and the database."""

from __future__ import annotations

import time
from typing import Annotated, Any

from litestar import get
from litestar.di import NamedDependency
from litestar.params import QueryParameter

from app.admin.calibration import calibration
from app.admin.stored import database_away, stored
from app.db import queries
from app.db.errors import DatabaseError
from app.errors import bad_request
from app.service import Service

Limit = Annotated[int, QueryParameter(ge=1, le=500)]
Filter = Annotated[str | None, QueryParameter(max_length=64)]
DAY_S = 86_400.0
LATEST_S = 4_102_444_800
"""The end of the year 2099."""


@get("/api/decisions", opt={"scope": "admin:read"}, operation_id="Decisions", tags=["admin"])
async def decisions(
    service: NamedDependency[Service],
    limit: Limit = 50,
    before: Filter = None,
    reason: Filter = None,
    drafter: Filter = None,
    concerned: Annotated[int | None, QueryParameter(name="request", ge=0, le=2**53)] = None,
) -> dict[str, Any]:
    """Newest first. `next` is what to give as `before` for the page after this one. request: only
    decisions with this number among their `requests`."""
    found = service.views.ledger.recent(limit + 1, before, reason, drafter, concerned)
    if len(found) <= limit:
        # The page goes on in the database where the memory ends.
        oldest = service.views.ledger.oldest
        if oldest is not None and (before is None or before in service.views.ledger):
            last, last_time = oldest.id, oldest.time
        else:
            last, last_time = before, None
        try:
            found += await queries.decisions(
                service.database,
                limit + 1 - len(found),
                last,
                before_time=last_time,
                request=concerned,
                reason=reason,
                drafter=drafter,
            )
        except DatabaseError as error:
            # The newest are in memory; older ones have to wait for the database.
            if not found:
                raise database_away(error) from None
    more = len(found) > limit
    found = found[:limit]
    return {"decisions": found, "next": found[-1]["id"] if more else None}


@get("/api/step-records", opt={"scope": "admin:read"}, operation_id="StepRecords", tags=["admin"])
async def step_records(
    service: NamedDependency[Service], limit: Limit = 50, before: Filter = None
) -> dict[str, Any]:
    """Sampled steps, newest first. `next` is what to give as `before` for the page after this one;
    calibration: the errors of this page's predictions."""
    found = await stored(queries.step_records(service.database, limit + 1, before))
    more = len(found) > limit
    found = found[:limit]
    return {
        "step_records": found,
        "next": found[-1]["id"] if more else None,
        "calibration": calibration(found),
    }


@get("/api/requests", opt={"scope": "admin:read"}, operation_id="Requests", tags=["admin"])
async def requests(
    service: NamedDependency[Service],
    limit: Limit = 50,
    before: Filter = None,
    key_id: Filter = None,
    failed: Annotated[bool, QueryParameter()] = False,
) -> dict[str, Any]:
    """Ended requests, newest first; no text. failed: only those with a status of 400 or more."""
    query = queries.requests(service.database, limit, before, key_id=key_id, failed=failed)
    return {"requests": await stored(query)}


@get("/api/series", opt={"scope": "admin:read"}, operation_id="Series", tags=["admin"])
async def series(
    service: NamedDependency[Service],
    since: Annotated[float | None, QueryParameter(name="from")] = None,
    until: Annotated[float | None, QueryParameter(name="to")] = None,
    max_points: Annotated[int, QueryParameter(ge=1, le=1000)] = 300,
) -> dict[str, Any]:
    """Throughput and speculation over time (seconds since the epoch), by default the last day."""
    for name, value in (("from", since), ("to", until)):
        if value is not None and not 0 <= value <= LATEST_S:  # also true for NaN
            raise bad_request(f"{name} must be 0 to {LATEST_S} (seconds since the epoch).", name)
    until = time.time() if until is None else until
    since = max(until - DAY_S, 0.0) if since is None else since
    if since >= until:
        raise bad_request("from must be before to.", "from")
    points = await stored(queries.series(service.database, since, until, max_points))
    return {"from": since, "to": until, "points": points}


@get("/api/audit", opt={"scope": "admin:read"}, operation_id="Audit", tags=["admin"])
async def audit(
    service: NamedDependency[Service], limit: Limit = 50, before: Filter = None
) -> dict[str, Any]:
    """What operators changed, newest first."""
    return {"audit": await stored(queries.audit(service.database, limit=limit, before=before))}
