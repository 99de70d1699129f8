"""POST /tokenize and /detokenize with the served model's tokenizer."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from litestar import post
from litestar.di import NamedDependency
from litestar.params import JSONBody
from msgspec import Meta

from app.errors import bad_request
from app.inference.limits import MAX_BODY_BYTES, Name, TokenId
from app.inference.messages import InputMessage, chat_messages
from app.service import Service
from engine.wire import Detokenize, Tokenize


class TokenizeRequest(msgspec.Struct):
    """One of prompt and messages; messages go through the chat template. add_special_tokens: those
    that the tokenizer puts around a text; by default for prompts only, as templates write them."""

    model: Name | None = None
    prompt: str | None = None
    messages: list[InputMessage] | None = None
    add_special_tokens: bool | None = None


class DetokenizeRequest(msgspec.Struct):
    tokens: Annotated[list[TokenId], Meta(max_length=1_000_000)]
    model: Name | None = None


@post(
    "/tokenize",
    status_code=200,
    opt={"scope": "inference"},
    operation_id="Tokenize",
    tags=["inference"],
    request_max_body_size=MAX_BODY_BYTES,
)
async def tokenize(
    data: JSONBody[TokenizeRequest], service: NamedDependency[Service]
) -> dict[str, Any]:
    """Token ids and their count."""
    if data.model is not None:
        service.check_model(data.model)
    if (data.prompt is None) == (data.messages is None):
        raise bad_request("Give exactly one of prompt and messages.", "prompt")
    messages = chat_messages(data.messages, "messages") if data.messages is not None else None
    result = await service.call(Tokenize(data.prompt, messages, data.add_special_tokens))
    tokens = result["tokens"]
    hello = service.engine.hello
    return {
        "tokens": tokens,
        "count": len(tokens),
        "max_model_len": hello.context_length if hello else None,
    }


@post(
    "/detokenize",
    status_code=200,
    opt={"scope": "inference"},
    operation_id="Detokenize",
    tags=["inference"],
    request_max_body_size=MAX_BODY_BYTES,
)
async def detokenize(
    data: JSONBody[DetokenizeRequest], service: NamedDependency[Service]
) -> dict[str, Any]:
    """The text of token ids."""
    if data.model is not None:
        service.check_model(data.model)
    result = await service.call(Detokenize(tuple(data.tokens)))
    return {"prompt": result["text"], "text": result["text"]}
