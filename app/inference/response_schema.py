"""The body of POST /v1/responses and of response.create on the WebSocket."""

from __future__ import annotations

from typing import Any

import msgspec

from app.errors import ApiError, bad_request, unsupported
from app.inference.formats import TextOptions
from app.inference.limits import Logprobs, Name, Tokens, wish
from app.inference.messages import InputMessage, Part, chat_messages
from app.inference.sampling import Sampled
from engine.wire import Message, Submit

LOGPROBS = "message.output_text.logprobs"


class InputItem(msgspec.Struct):
    """An item of input: a message. Items of other types are refused."""

    role: str | None = None
    content: str | list[Part] | None = None
    type: str = "message"


class ResponseRequest(Sampled, kw_only=True):
    """OpenAI's response request with vLLM's additions. Unknown fields are accepted and ignored.

    x_spec true adds x_spec to every delta event."""

    model: Name
    input: str | list[InputItem]
    instructions: str | None = None
    previous_response_id: str | None = None
    store: bool | None = None
    stream: bool | None = None
    max_output_tokens: Tokens | None = None
    metadata: dict[str, Any] | None = None
    include: list[str] | None = None
    top_logprobs: Logprobs | None = None
    text: TextOptions | None = None
    x_spec: bool | None = None
    prompt: Any = None
    max_tokens: Any = None
    max_completion_tokens: Any = None
    n: Any = None
    logprobs: Any = None
    prompt_logprobs: Any = None
    response_format: Any = None
    return_token_ids: Any = None
    echo: Any = None

    @property
    def logprobs_wanted(self) -> bool:
        return LOGPROBS in (self.include or ())

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
        self.check_refused(*_REFUSED)
        for index, item in enumerate(self.include or ()):
            if item != LOGPROBS:
                raise unsupported(f"include[{index}]")
        if self.top_logprobs and not self.logprobs_wanted:
            raise bad_request(f"top_logprobs needs include to hold '{LOGPROBS}'.", "top_logprobs")
        system = (Message("system", self.instructions),) if self.instructions else ()
        return Submit(
            id,
            self.sampling(
                self.max_output_tokens,
                ("text.format", self.text.grammar() if self.text else None),
                logprobs=(self.top_logprobs or 0) if self.logprobs_wanted else None,
            ),
            messages=(*system, *chat),
            speculation=wish(self.speculation),
            priority=self.priority or 0,
            cache_salt=self.cache_salt or "",
        )

    def field_names(self) -> dict[str, str]:
        """The engine's names of fields -> those that this request used."""
        names = {"max_tokens": "max_output_tokens", "messages": "input", "logprobs": "top_logprobs"}
        return self.names("text.format") | names


_REFUSED = (
    "prompt",
    "max_tokens",
    "max_completion_tokens",
    "n",
    "logprobs",
    "prompt_logprobs",
    "response_format",
    "return_token_ids",
    "echo",
)


def previous_not_found(id: str) -> ApiError:
    return ApiError(
        400,
        "previous_response_not_found",
        f"Previous response with id '{id[:64]}' not found. Responses are kept for one hour.",
        "previous_response_id",
    )
