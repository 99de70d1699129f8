"""Driver errors as a person reads them."""

from __future__ import annotations

import asyncio
import sqlite3

import pytest
from sqlalchemy.exc import OperationalError

from app.db.errors import translated
from app.db.whole import whole


async def test_what_a_driver_makes_of_a_cancellation_is_the_cancellation() -> None:
    begun = asyncio.Event()

    async def call() -> None:
        with translated("sqlite+aiosqlite:///x.db"):
            try:
                begun.set()
                await asyncio.sleep(60)
            except asyncio.CancelledError as error:
                raise OperationalError("select 1", {}, sqlite3.OperationalError("lost")) from error

    task = asyncio.create_task(call())
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_cancelled_task_ends_after_its_database_call() -> None:
    begun, may_end = asyncio.Event(), asyncio.Event()
    done: list[str] = []

    @whole
    async def call() -> None:
        begun.set()
        await may_end.wait()
        done.append("whole")

    task = asyncio.create_task(call())
    await begun.wait()
    task.cancel()
    await asyncio.sleep(0)
    assert not task.done()
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert done == ["whole"]
