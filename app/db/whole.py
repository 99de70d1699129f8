"""Database calls that a cancelled task ends with, instead of in their middle."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from types import CoroutineType
from typing import Any, ParamSpec, TypeVar

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def whole(
    call: Callable[Arguments, Coroutine[Any, Any, Result]],
) -> Callable[Arguments, CoroutineType[Any, Any, Result]]:
    """The call, which runs to its end when its task is cancelled; the cancellation takes effect
    then. Cancelled in its middle, a driver closes the connection, and closing one of SQLite's may
    wait for ever for a thread that has ended."""

    @functools.wraps(call)
    async def run(*args: Arguments.args, **named: Arguments.kwargs) -> Result:
        task = asyncio.ensure_future(call(*args, **named))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            await asyncio.wait([task])
            if not task.cancelled():
                task.exception()  # nobody waits for it any more
            raise

    return run
