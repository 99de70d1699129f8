"""Bounds of request values, and the parameters that are refused instead of silently ignored."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from app.errors import MAX_BODY_BYTES as MAX_BODY_BYTES
from app.errors import ApiError, bad_request, unsupported
from controller.contract import Wish
from engine.wire import Message, Sampling

MAX_CHOICES = 8
MAX_PROMPTS = 64
MAX_STOPS = 4
MAX_STOP_CHARS = 256
MAX_STOP_IDS = 64

Temperature = Annotated[float, Meta(ge=0, le=2)]
TopP = Annotated[float, Meta(gt=0, le=1)]
TopK = Annotated[int, Meta(ge=-1, le=1_000_000)]
Seed = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Tokens = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Choices = Annotated[int, Meta(ge=1, le=MAX_CHOICES)]
TokenId = Annotated[int, Meta(ge=0, le=2**31 - 1)]
StopString = Annotated[str, Meta(min_length=1, max_length=MAX_STOP_CHARS)]
Stop = StopString | Annotated[list[StopString], Meta(max_length=MAX_STOPS)]
StopIds = Annotated[list[TokenId], Meta(max_length=MAX_STOP_IDS)]
Name = Annotated[str, Meta(min_length=1, max_length=256)]


class Speculation(msgspec.Struct, forbid_unknown_fields=True):
    """What the request asks of speculation; the operator's limits still hold.

    Without drafter the controller chooses it, without draft_length it chooses D."""

    enabled: bool = True
    drafter: Annotated[str, Meta(min_length=1, max_length=64)] | None = None
    draft_length: int | None = None


class StreamOptions(msgspec.Struct):
    """include_usage adds a last chunk with usage and metrics; include_provenance adds x_spec."""

    include_usage: bool | None = None
    include_provenance: bool | None = None


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


class Refused(msgspec.Struct, kw_only=True):
    """Parameters of other servers that would change the answer: only their neutral value passes."""

    tools: Any = None
    tool_choice: Any = None
    functions: Any = None
    function_call: Any = None
    logprobs: Any = None
    top_logprobs: Any = None
    presence_penalty: Any = None
    frequency_penalty: Any = None
    repetition_penalty: Any = None
    length_penalty: Any = None
    logit_bias: Any = None
    response_format: Any = None
    structured_outputs: Any = None
    min_p: Any = None
    min_tokens: Any = None
    best_of: Any = None
    use_beam_search: Any = None
    echo: Any = None
    suffix: Any = None
    modalities: Any = None
    audio: Any = None
    prediction: Any = None
    web_search_options: Any = None
    reasoning_effort: Any = None
    chat_template: Any = None
    continue_final_message: Any = None
    text: Any = None
    reasoning: Any = None
    truncation: Any = None
    background: Any = None
    conversation: Any = None
    include: Any = None

    def check_refused(self, *more: str) -> None:
        """Raise a 400 that names the first parameter which has an effect elsewhere.

        more: further fields of the request that are refused."""
        for name in (*Refused.__struct_fields__, *more):
            value = getattr(self, name)
            neutral = value is None or value is False or value in _NEUTRAL.get(name, ())
            if not neutral:
                raise unsupported(name)


_TEXT: dict[str, Any] = {"format": {"type": "text"}}
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "top_logprobs": (0,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "length_penalty": (1,),
    "logit_bias": ({},),
    "response_format": ({"type": "text"},),
    "min_p": (0,),
    "min_tokens": (0,),
    "best_of": (1,),
    "suffix": ("",),
    "modalities": (["text"],),
    "reasoning_effort": ("none",),
    "text": ({}, _TEXT, _TEXT | {"verbosity": "medium"}),
    "reasoning": ({}, {"effort": None, "summary": None}, {"effort": "none"}),
    "truncation": ("disabled",),
    "include": ([],),
}

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
_TEXT_PARTS = ("text", "input_text", "output_text")


def sampling(
    *,
    temperature: float | None,
    top_p: float | None,
    top_k: int | None,
    seed: int | None,
    max_tokens: int | None,
    stop: str | list[str] | None = None,
    stop_token_ids: list[int] | None = None,
    ignore_eos: bool | None = None,
) -> Sampling:
    """The engine's sampling values, with OpenAI's defaults for what the request leaves out."""
    return Sampling(
        temperature=1.0 if temperature is None else temperature,
        top_k=max(top_k or 0, 0),
        top_p=1.0 if top_p is None else top_p,
        seed=seed,
        max_tokens=max_tokens,
        stop=(stop,) if isinstance(stop, str) else tuple(stop or ()),
        stop_token_ids=tuple(stop_token_ids or ()),
        ignore_eos=bool(ignore_eos),
    )


def numbered(base: Sampling, index: int) -> Sampling:
    """The sampling of choice `index`: a seed is counted up, or all choices would be equal."""
    if base.seed is None or index == 0:
        return base
    top = 2**63
    return msgspec.structs.replace(base, seed=(base.seed + index + top) % (2 * top) - top)


def wish(speculation: Speculation | None) -> Wish:
    """The request's wish as the engine takes it."""
    if speculation is None:
        return Wish()
    return Wish(speculation.enabled, speculation.drafter, speculation.draft_length)


def check_draft_length(length: int | None, largest: int, param: str) -> None:
    """Raise a 400 when this D was asked for and is not within the server's limit."""
    if length is not None and not 0 <= length <= largest:
        raise ApiError(
            400,
            "draft_length_out_of_range",
            f"draft_length must be between 0 and {largest}.",
            param,
        )


def check_stream_options(stream: bool | None, options: StreamOptions | None) -> StreamOptions:
    """The options, or the defaults. Raises ApiError when they come without stream."""
    if options is not None and not stream:
        raise bad_request("stream_options needs stream to be true.", "stream_options")
    return options or StreamOptions()


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
