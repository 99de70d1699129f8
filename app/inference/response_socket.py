"""WebSocket /v1/responses: a chat over one connection, with response.create and response.cancel."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from contextlib import aclosing
from typing import Any

import msgspec
from litestar import WebSocket, websocket
from litestar.di import NamedDependency

from app.errors import ApiError, as_api_error, bad_request, invalid_json
from app.inference.limits import MAX_BODY_BYTES
from app.inference.response_events import Event, error_event
from app.inference.response_schema import ResponseRequest
from app.inference.responses import Turn
from app.security.auth import Principal
from app.service import Service

SUBPROTOCOL = "realtime"
MAX_WAITING_TURNS = 8
MAX_WAITING_EVENTS = 256
SLOW_CLIENT_S = 10.0
CLOSE_S = 2.0

log = logging.getLogger(__name__)


@websocket("/v1/responses", opt={"scope": "inference"})
async def responses_socket(
    socket: WebSocket[Any, Any, Any], service: NamedDependency[Service]
) -> None:
    """Hold a chat: turns of one connection run one after the other."""
    offered = socket.scope["subprotocols"]
    await socket.accept(subprotocols=SUBPROTOCOL if SUBPROTOCOL in offered else None)
    await _Session(socket, service).run()


class _SlowClient(Exception):
    """The client did not read for 10 s while events were waiting."""


class _KeyGone(Exception):
    """The key with which the connection was opened was revoked or has expired."""


class _Session:
    """A reader, a worker that answers, and a writer. The first to end ends the session."""

    def __init__(self, socket: WebSocket[Any, Any, Any], service: Service) -> None:
        self._socket = socket
        self._service = service
        self._principal: Principal = socket.user
        self._owner = f"socket-{uuid.uuid4().hex}"
        self._turns: asyncio.Queue[ResponseRequest] = asyncio.Queue(MAX_WAITING_TURNS)
        self._events: asyncio.Queue[Event] = asyncio.Queue(MAX_WAITING_EVENTS)
        self._turn: Turn | None = None

    async def run(self) -> None:
        tasks = [asyncio.create_task(job()) for job in (self._read, self._answer, self._write)]
        code, reason = 1000, ""
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                error = task.exception()
                if isinstance(error, _SlowClient):
                    code, reason = 1008, "The client reads too slowly."
                elif isinstance(error, _KeyGone):
                    code, reason = 4401, "The API key is no longer valid."
                elif error is not None and tasks.index(task) != 2:
                    log.error("a WebSocket session failed", exc_info=error)
                    code, reason = 1011, "Something went wrong on the server."
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._service.responses.forget(self._owner)
            # The connection may be gone already; then there is nobody to tell.
            with contextlib.suppress(Exception):
                async with asyncio.timeout(CLOSE_S):
                    await self._socket.close(code, reason)

    # --- client -> server -------------------------------------------------------------------

    async def _read(self) -> None:
        """Until the client leaves."""
        while True:
            message: Any = await self._socket.receive()
            if message["type"] == "websocket.disconnect":
                return
            data = message.get("text")
            try:
                self._accept(data if data is not None else message.get("bytes") or b"")
            except _KeyGone:
                raise
            except Exception as error:
                await self._put(error_event(as_api_error(error)))

    def _accept(self, data: str | bytes) -> None:
        if len(data) > MAX_BODY_BYTES:
            raise ApiError(413, "request_too_large", "The event is larger than 2 MiB.")
        try:
            event = msgspec.json.decode(data)
        except msgspec.DecodeError as error:
            raise invalid_json("The event", str(error), data) from None
        kind = event.get("type") if isinstance(event, dict) else None
        match kind:
            case "response.create":
                self._check_key()
                request = msgspec.convert(event, ResponseRequest)
                try:
                    self._turns.put_nowait(request)
                except asyncio.QueueFull:
                    raise ApiError(
                        429, "too_many_responses", "Too many responses wait on this connection."
                    ) from None
            case "response.cancel":
                self._cancel(event.get("response_id"))
            case _:
                raise bad_request(
                    "type must be 'response.create' or 'response.cancel'.", "type", "unknown_event"
                )

    def _check_key(self) -> None:
        if not self._service.keys.valid(self._principal.id):
            raise _KeyGone

    def _cancel(self, response_id: object) -> None:
        """Cancel the running response. Raises ApiError when it is not this one, or none runs."""
        if response_id is not None and not isinstance(response_id, str):
            raise bad_request("response_id must be a string.", "response_id")
        if self._turn is None:
            raise ApiError(404, "response_not_found", "No response is running.", "response_id")
        if response_id not in (None, self._turn.id):
            raise ApiError(
                404,
                "response_not_found",
                f"The response '{response_id[:64]}' is not running here.",
                "response_id",
            )
        self._turn.cancel()

    # --- server -> client -------------------------------------------------------------------

    async def _answer(self) -> None:
        while True:
            request = await self._turns.get()
            self._check_key()  # it may have waited long behind other turns
            try:
                turn = Turn(request, self._service, self._principal, "websocket", self._owner)
                self._turn = turn
                async with aclosing(turn.events()) as events:
                    async for event in events:
                        await self._put(event)
            except _SlowClient:
                raise
            except Exception as error:
                await self._put(error_event(as_api_error(error)))
            finally:
                self._turn = None

    async def _put(self, event: Event) -> None:
        try:
            # Not wait_for: in Python 3.11 it loses a cancellation that meets a finished put.
            async with asyncio.timeout(SLOW_CLIENT_S):
                await self._events.put(event)
        except TimeoutError:
            raise _SlowClient from None

    async def _write(self) -> None:
        """Send events. Ends with an exception of the server when the connection is gone."""
        while True:
            event = await self._events.get()
            data = msgspec.json.encode(event).decode()
            await self._socket.send_text(data)
