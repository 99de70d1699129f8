"""The body of POST /v1/responses and of response.create on the WebSocket."""

from __future__ import annotations

from typing import Any

import msgspec

from app.errors import ApiError, bad_request, unsupported
from app.inference.limits import (
    InputMessage,
    Name,
    Part,
    Refused,
    Seed,
    Speculation,
    Stop,
    Temperature,
    Tokens,
    TopK,
    TopP,
    chat_messages,
    sampling,
    wish,
)
from engine.wire import Message, Submit


class InputItem(msgspec.Struct):
    """An item of input: a message. Items of other types are refused."""

    role: str | None = None
    content: str | list[Part] | None = None
    type: str = "message"


class ResponseRequest(Refused, kw_only=True):
    """OpenAI's response request. Unknown fields are accepted and ignored.

    x_spec true adds x_spec to every delta event."""

    model: Name
    input: str | list[InputItem]
    instructions: str | None = None
    previous_response_id: str | None = None
    store: bool | None = None
    stream: bool | None = None
    max_output_tokens: Tokens | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: TopK | None = None
    seed: Seed | None = None
    stop: Stop | None = None
    ignore_eos: bool | None = None
    metadata: dict[str, Any] | None = None
    speculation: Speculation | None = None
    x_spec: bool | None = None
    prompt: Any = None

    def conversation_after(self, previous: tuple[Message, ...]) -> tuple[Message, ...]:
        """The chat so far and this turn's input, without the instructions."""
        if isinstance(self.input, str):
            if not self.input:
                raise bad_request("input must not be empty.", "input")
            return (*previous, Message("user", self.input))
        items: list[InputMessage] = []
        for index, item in enumerate(self.input):
            if item.type != "message":
                raise unsupported(f"input[{index}].type")
            if item.role is None:
                raise bad_request(f"input[{index}] needs a role.", f"input[{index}].role")
            items.append(InputMessage(item.role, item.content))
        return (*previous, *chat_messages(items, "input"))

    def submit(self, id: str, chat: tuple[Message, ...]) -> Submit:
        """The engine request for a conversation."""
        self.check_refused("prompt")
        system = (Message("system", self.instructions),) if self.instructions else ()
        return Submit(
            id,
            sampling(
                temperature=self.temperature,
                top_p=self.top_p,
                top_k=self.top_k,
                seed=self.seed,
                max_tokens=self.max_output_tokens,
                stop=self.stop,
                ignore_eos=self.ignore_eos,
            ),
            messages=(*system, *chat),
            speculation=wish(self.speculation),
        )


def previous_not_found(id: str) -> ApiError:
    return ApiError(
        400,
        "previous_response_not_found",
        f"Previous response with id '{id[:64]}' not found. Responses are kept for one hour.",
        "previous_response_id",
    )
