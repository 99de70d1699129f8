"""Requests to the engine on behalf of one client: start, wait, merge, and cancel when it leaves."""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, TypeVar

from litestar import Request
from litestar.response import Stream as LitestarStream

from app.errors import ApiError, ClientGone, engine_error
from engine.client import Event, Stream
from engine.wire import Delta, Failed, Finished, PromptLogprobs

MERGED_EVENTS = 16
"""Events of all choices that wait for a slow client; the rest wait in the engine's streams."""

T = TypeVar("T")
Numbered = tuple[int, Delta | PromptLogprobs | Finished]
"""The index of a choice and what the engine sent for it."""


async def while_connected(request: Request[Any, Any, Any], work: Awaitable[T]) -> T:
    """The result of work, which is cancelled when the client disconnects first.

    Litestar stops a streaming answer by itself, but not the handler before it. Call it after
    the body has been read."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientGone
    finally:
        for pending in (task, gone):
            pending.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await task


async def _disconnected(request: Request[Any, Any, Any]) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


class Generation:
    """Several streams of the engine as one sequence of (choice index, event).

    `cancel` may be called at any time, again and again."""

    def __init__(
        self,
        streams: list[Stream],
        on_gap: Callable[[float], None],
        on_tokens: Callable[[str, int], None],
        names: Mapping[str, str],
    ) -> None:
        """on_gap hears the seconds between two steps of a choice, on_tokens the id of a request
        and how many tokens it got. names: the engine's name of a field -> the client's."""
        self._streams = streams
        self._on_gap = on_gap
        self._on_tokens = on_tokens
        self._names = names
        self._last: dict[int, float] = {}
        self._cancelled = False
        self._queue: asyncio.Queue[tuple[int, Event]] = asyncio.Queue(MERGED_EVENTS)
        self._pumps = (
            [asyncio.create_task(self._pump(i, stream)) for i, stream in enumerate(streams)]
            if len(streams) > 1
            else []
        )

    async def events(self) -> AsyncGenerator[Numbered, None]:
        """Until every choice has finished; leaving early cancels. Raises ApiError when a choice
        is refused, fails or is cut short by a shutdown."""
        left = len(self._streams)
        try:
            while left:
                index, event = await self._next()
                if isinstance(event, Failed):
                    raise self._refused(event)
                if isinstance(event, Finished):
                    if event.finish_reason == "cancelled" and not self._cancelled:
                        raise engine_error("draining", "Stopped: the server is shutting down.")
                    left -= 1
                elif isinstance(event, Delta):
                    self._measure(index)
                    self._on_tokens(event.id, len(event.pieces))
                yield index, event
        finally:
            self.cancel()

    async def beside(self, work: Awaitable[T]) -> T:
        """The result of work that the answer needs; when it fails, the generation is cancelled."""
        try:
            return await work
        except BaseException:
            self.cancel()
            raise

    def cancel(self) -> None:
        """Stop whatever still runs in the engine. A lone stream then ends as cancelled."""
        self._cancelled = True
        for stream in self._streams:
            stream.cancel()
        for pump in self._pumps:
            pump.cancel()

    def _refused(self, event: Failed) -> ApiError:
        """The engine's error, in the words of the client's request."""
        message = event.message
        for name, sent in self._names.items():
            message = re.sub(rf"\b{name}\b", sent, message)
        param = self._names.get(event.param, event.param) if event.param else None
        return engine_error(event.code, message, param)

    def _measure(self, index: int) -> None:
        now = time.monotonic()
        if index in self._last:
            self._on_gap(now - self._last[index])
        self._last[index] = now

    async def _next(self) -> tuple[int, Event]:
        return await self._queue.get() if self._pumps else (0, await anext(self._streams[0]))

    async def _pump(self, index: int, stream: Stream) -> None:
        async for event in stream:
            await self._queue.put((index, event))


async def event_stream(
    request: Request[Any, Any, Any],
    events: AsyncGenerator[bytes, None],
    on_error: Callable[[ApiError], bytes],
) -> LitestarStream:
    """A text/event-stream answer. It begins when the first event is there, so that a request
    which the engine refuses still gets its HTTP status; later errors become on_error's event."""
    first = await while_connected(request, anext(events))

    async def body() -> AsyncIterator[bytes]:
        try:
            yield first
            async for chunk in events:
                yield chunk
        except ApiError as error:
            yield on_error(error)
        finally:
            await events.aclose()

    headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
    return LitestarStream(body(), media_type="text/event-stream", headers=headers, status_code=200)
