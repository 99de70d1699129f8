"""The messages of a chat, as clients send them and as the engine takes them."""

from __future__ import annotations

from typing import Any

import msgspec

from app.errors import bad_request, unsupported
from engine.wire import Message

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
_TEXT_PARTS = ("text", "input_text", "output_text")


class Part(msgspec.Struct):
    """One part of a message's content; only text parts are supported."""

    type: str
    text: str | None = None


class InputMessage(msgspec.Struct):
    """A chat message. developer is read as system."""

    role: str
    content: str | list[Part] | None = None
    tool_calls: Any = None
    function_call: Any = None


def chat_messages(messages: list[InputMessage], param: str) -> tuple[Message, ...]:
    """Messages as the engine takes them. Raises ApiError naming the message at fault."""
    if not messages:
        raise bad_request(f"{param} must not be empty.", param)
    return tuple(_message(item, f"{param}[{index}]") for index, item in enumerate(messages))


def _message(message: InputMessage, where: str) -> Message:
    role = _ROLES.get(message.role)
    if role is None:
        if message.role in ("tool", "function"):
            raise unsupported(f"{where}.role")
        raise bad_request(f"{where}.role must be one of {', '.join(_ROLES)}.", f"{where}.role")
    for name in ("tool_calls", "function_call"):
        if getattr(message, name):
            raise unsupported(f"{where}.{name}")
    if message.content is None:
        raise bad_request(f"{where}.content must be a string or text parts.", f"{where}.content")
    if isinstance(message.content, str):
        return Message(role, message.content)
    for index, part in enumerate(message.content):
        if part.type not in _TEXT_PARTS:
            raise unsupported(f"{where}.content[{index}].type")
        if part.text is None:
            raise bad_request("A text part needs 'text'.", f"{where}.content[{index}].text")
    return Message(role, "".join(part.text or "" for part in message.content))
