"""What admin routes say while the database is away: the same words everywhere."""

from __future__ import annotations

import pytest

from app.admin.stored import stored
from app.db.errors import DatabaseError
from app.errors import ApiError


async def away() -> int:
    raise DatabaseError("unreachable", "The database cannot be reached. Check that it runs.")


async def there() -> int:
    return 3


async def test_a_database_that_is_away_is_a_503_that_says_what_to_do_and_when_to_try_again() -> (
    None
):
    with pytest.raises(ApiError) as raised:
        await stored(away())
    error = raised.value
    assert (error.status, error.code, error.retry_after) == (503, "database_unavailable", 5)
    assert error.message == "The database cannot be reached. Check that it runs."
    assert await stored(there()) == 3
