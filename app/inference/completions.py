"""POST /v1/completions: raw text prompts or token ids, streamed and not."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import msgspec
from litestar import Request, Response, post
from litestar.di import NamedDependency
from litestar.params import JSONBody

from app.errors import ApiError, bad_request
from app.inference import numbers
from app.inference.framing import DONE, data_event
from app.inference.generation import Generation, collect, event_stream, while_connected
from app.inference.limits import (
    MAX_BODY_BYTES,
    MAX_PROMPTS,
    Choices,
    Name,
    Refused,
    Seed,
    Speculation,
    Stop,
    StopIds,
    StreamOptions,
    Temperature,
    TokenId,
    Tokens,
    TopK,
    TopP,
    check_stream_options,
    numbered,
    sampling,
    wish,
)
from app.service import Service
from engine.wire import Finished, Submit

DEFAULT_MAX_TOKENS = 16

# msgspec takes one list type in a union, so the lists are told apart by hand.
Prompt = str | list[str | TokenId | list[TokenId]]


class CompletionRequest(Refused, kw_only=True):
    """OpenAI's completion request. Unknown fields are accepted and ignored."""

    model: Name
    prompt: Prompt
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Tokens | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: TopK | None = None
    seed: Seed | None = None
    n: Choices | None = None
    stop: Stop | None = None
    stop_token_ids: StopIds | None = None
    ignore_eos: bool | None = None
    speculation: Speculation | None = None

    def submits(self, id: str) -> list[Submit]:
        """One engine request per prompt and choice, choices of a prompt side by side."""
        self.check_refused()
        base = sampling(
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            seed=self.seed,
            max_tokens=self.max_tokens or DEFAULT_MAX_TOKENS,
            stop=self.stop,
            stop_token_ids=self.stop_token_ids,
            ignore_eos=self.ignore_eos,
        )
        found, choices = prompts(self.prompt), self.n or 1
        if len(found) * choices > MAX_PROMPTS:
            raise bad_request(f"At most {MAX_PROMPTS} prompts times n per request.", "prompt")
        single = len(found) * choices == 1
        return [
            Submit(
                id if single else f"{id}-{number * choices + index}",
                numbered(base, index),
                prompt=prompt if isinstance(prompt, str) else None,
                prompt_ids=None if isinstance(prompt, str) else prompt,
                speculation=wish(self.speculation),
            )
            for number, prompt in enumerate(found)
            for index in range(choices)
        ]


def prompts(value: Prompt) -> list[str | tuple[int, ...]]:
    """The prompts of a request, each text or token ids. Raises ApiError."""
    if isinstance(value, str):
        return [_not_empty(value)]
    if not value:
        raise bad_request("prompt must not be empty.", "prompt")
    if all(isinstance(item, int) for item in value):
        return [tuple(item for item in value if isinstance(item, int))]
    found: list[str | tuple[int, ...]] = []
    for item in value:
        if isinstance(item, int) or type(item) is not type(value[0]):
            raise bad_request("prompt must hold strings only or token ids only.", "prompt")
        found.append(_not_empty(item if isinstance(item, str) else tuple(item)))
    return found


def _not_empty(prompt: str | tuple[int, ...]) -> str | tuple[int, ...]:
    if not prompt:
        raise bad_request("prompt must not be empty.", "prompt")
    return prompt


@post(
    "/v1/completions",
    status_code=200,
    opt={"scope": "inference"},
    operation_id="Completions",
    tags=["inference"],
    request_max_body_size=MAX_BODY_BYTES,
)
async def completions(
    request: Request[Any, Any, Any],
    data: JSONBody[CompletionRequest],
    service: NamedDependency[Service],
) -> Response[Any]:
    """Continue one or more prompts. With stream, server-sent events."""
    service.check_model(data.model)
    options = check_stream_options(data.stream, data.stream_options)
    id = f"cmpl-{uuid.uuid4().hex}"
    submits = data.submits(id)
    head = {
        "id": id,
        "object": "text_completion",
        "created": int(time.time()),
        "model": data.model,
    }
    per_prompt = data.n or 1
    transport = "sse" if data.stream else "http"
    generation = service.generate(submits, request.user, "/v1/completions", transport)
    if data.stream:
        chunks = _chunks(generation, len(submits), per_prompt, head, options)
        return await event_stream(request, chunks, _error_event)
    texts, ends = await while_connected(request, collect(generation, len(submits)))
    choices = [
        {
            "index": index,
            "text": text,
            "logprobs": None,
            "finish_reason": end.finish_reason,
            "stop_reason": end.stop,
        }
        for index, (text, end) in enumerate(zip(texts, ends, strict=True))
    ]
    body = {
        **head,
        "choices": choices,
        "usage": numbers.usage(ends, per_prompt),
        "metrics": numbers.metrics(ends[0]) if len(ends) == 1 else None,
    }
    return Response(msgspec.json.encode(body), media_type="application/json")


async def _chunks(
    generation: Generation,
    choices: int,
    per_prompt: int,
    head: dict[str, Any],
    options: StreamOptions,
) -> AsyncGenerator[bytes, None]:
    ends: dict[int, Finished] = {}

    def chunk(index: int, text: str, **more: Any) -> bytes:
        choice = {"index": index, "text": text, "logprobs": None, "finish_reason": None, **more}
        return data_event({**head, "choices": [choice]})

    async with aclosing(generation.events()) as events:
        async for index, event in events:
            if isinstance(event, Finished):
                ends[index] = event
                yield chunk(index, "", finish_reason=event.finish_reason, stop_reason=event.stop)
            elif options.include_provenance:
                yield chunk(index, event.text, x_spec=numbers.provenance(event))
            elif event.text:
                yield chunk(index, event.text)
    if options.include_usage:
        finished = [ends[index] for index in range(choices)]
        yield data_event(
            {
                **head,
                "choices": [],
                "usage": numbers.usage(finished, per_prompt),
                "metrics": numbers.metrics(finished[0]) if choices == 1 else None,
            }
        )
    yield DONE


def _error_event(error: ApiError) -> bytes:
    return data_event({"error": error.openai()})
