"""Calls that wait for the engine's answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from engine.errors import EngineCallError
from engine.wire import Call, CallBody, LoadDrafter, Reply

CALL_TIMEOUT_S = 30.0
LOAD_TIMEOUT_S = 3600.0
"""Of a call that loads a drafter, which may be downloaded first."""


class Replies:
    """Numbers calls and hands each its reply. Replies to unknown calls are ignored."""

    def __init__(self) -> None:
        self._waiting: dict[int, asyncio.Future[Reply]] = {}
        self._last = 0

    async def ask(self, body: CallBody, send: Callable[[Call], None]) -> object:
        """Send a call and wait for its result, as plain values. Raises EngineCallError."""
        self._last += 1
        call = Call(self._last, body)
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._waiting[call.call] = future
        try:
            send(call)
            loads = isinstance(body, LoadDrafter)
            async with asyncio.timeout(LOAD_TIMEOUT_S if loads else CALL_TIMEOUT_S):
                reply = await future
        except TimeoutError:
            raise EngineCallError("internal", "The engine did not answer in time.") from None
        except ValueError as error:
            raise EngineCallError("invalid_request", f"The call cannot be sent: {error}.") from None
        finally:
            self._waiting.pop(call.call, None)
        if reply.error is not None:
            raise EngineCallError(reply.error, reply.message, reply.param)
        return reply.result

    def deliver(self, reply: Reply) -> None:
        future = self._waiting.get(reply.call)
        if future is not None and not future.done():
            future.set_result(reply)

    def fail(self, code: str, message: str) -> None:
        """End every waiting call, because its engine is gone."""
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(EngineCallError(code, message))
