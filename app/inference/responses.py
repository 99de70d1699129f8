"""POST /v1/responses, streamed and not, and the turn that the WebSocket shares with it."""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import msgspec
from litestar import Request, Response, post
from litestar.di import NamedDependency
from litestar.params import JSONBody

from app.errors import ApiError
from app.inference.framing import named_event
from app.inference.generation import event_stream, while_connected
from app.inference.limits import MAX_BODY_BYTES
from app.inference.response_events import Event, ResponseEvents, error_event
from app.inference.response_schema import ResponseRequest, previous_not_found
from app.security.auth import Principal
from app.service import Service
from app.telemetry.records import Transport
from engine.wire import Delta, Finished, Message


class Turn:
    """One response: its conversation, its generation and its events.

    Raises ApiError when the request is invalid or names an unknown previous response."""

    def __init__(
        self,
        request: ResponseRequest,
        service: Service,
        principal: Principal,
        transport: Transport,
        socket: str | None = None,
    ) -> None:
        self.id = f"resp_{uuid.uuid4().hex}"
        self.owner = principal.id
        if request.store is False:
            # Not kept for the key; a WebSocket may still go on from it while it is open.
            self.owner = socket or ""
        service.check_model(request.model)
        previous: tuple[Message, ...] = ()
        if request.previous_response_id is not None:
            owners = (principal.id, socket) if socket else (principal.id,)
            found = service.responses.get(request.previous_response_id, *owners)
            if found is None:
                raise previous_not_found(request.previous_response_id)
            previous = found
        self._chat = request.conversation_after(previous)
        self._service = service
        self.builder = ResponseEvents(self.id, request)
        self.error: ApiError | None = None
        self._generation = service.generate(
            [request.submit(self.id, self._chat)],
            principal,
            "/v1/responses",
            transport,
            request.field_names(),
        )

    async def events(self) -> AsyncGenerator[Event, None]:
        """All events up to completed, incomplete or failed. Raises ApiError when the engine
        refuses the request, before the first event."""
        started = False
        try:
            async with aclosing(self._generation.events()) as events:
                async for _, event in events:
                    if not started:
                        started = True
                        for item in self.builder.start():
                            yield item
                    if isinstance(event, Finished):
                        self._store()
                        for item in self.builder.finish(event):
                            yield item
                    elif isinstance(event, Delta):
                        for item in self.builder.delta(event):
                            yield item
        except ApiError as error:
            if not started:
                raise
            self.error = error
            for item in self.builder.fail(error):
                yield item

    def cancel(self) -> None:
        """End the answer here; the text so far stays part of the chat."""
        self._generation.cancel()

    def _store(self) -> None:
        if self.owner:
            messages = (*self._chat, Message("assistant", self.builder.text))
            self._service.responses.put(self.id, self.owner, messages)


@post(
    "/v1/responses",
    status_code=200,
    opt={"scope": "inference"},
    operation_id="Responses",
    tags=["inference"],
    request_max_body_size=MAX_BODY_BYTES,
)
async def responses(
    request: Request[Any, Any, Any],
    data: JSONBody[ResponseRequest],
    service: NamedDependency[Service],
) -> Response[Any]:
    """Answer one turn. With stream, server-sent response.* events."""
    turn = Turn(data, service, request.user, "sse" if data.stream else "http")
    if data.stream:
        return await event_stream(request, _encoded(turn), _error)
    await while_connected(request, _exhaust(turn))
    if turn.error is not None:
        raise turn.error
    return Response(msgspec.json.encode(turn.builder.response), media_type="application/json")


async def _encoded(turn: Turn) -> AsyncGenerator[bytes, None]:
    async with aclosing(turn.events()) as events:
        async for event in events:
            yield named_event(event["type"], event)


def _error(error: ApiError) -> bytes:
    return named_event("error", error_event(error))


async def _exhaust(turn: Turn) -> None:
    async with aclosing(turn.events()) as events:
        async for _ in events:
            pass
