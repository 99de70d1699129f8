"""What admin routes answer while the database is away: one wording, a 503."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TypeVar

from app.db.errors import DatabaseError
from app.errors import ApiError

T = TypeVar("T")

RETRY_S = 5


async def stored(call: Awaitable[T]) -> T:
    """What a call of the database returns. Raises ApiError for a DatabaseError."""
    try:
        return await call
    except DatabaseError as error:
        raise database_away(error) from None


def database_away(error: DatabaseError) -> ApiError:
    return ApiError(503, "database_unavailable", error.message, None, RETRY_S)
