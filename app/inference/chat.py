"""POST /v1/chat/completions, streamed and not."""

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

from app.errors import ApiError
from app.inference import numbers
from app.inference.framing import DONE, data_event
from app.inference.generation import Generation, collect, event_stream, while_connected
from app.inference.limits import (
    MAX_BODY_BYTES,
    Choices,
    InputMessage,
    Name,
    Refused,
    Seed,
    Speculation,
    Stop,
    StopIds,
    StreamOptions,
    Temperature,
    Tokens,
    TopK,
    TopP,
    chat_messages,
    check_stream_options,
    numbered,
    sampling,
    wish,
)
from app.service import Service
from engine.wire import Finished, Submit


class ChatRequest(Refused, kw_only=True):
    """OpenAI's chat request. Unknown fields are accepted and ignored."""

    model: Name
    messages: list[InputMessage]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Tokens | None = None
    max_completion_tokens: Tokens | None = None
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
        """One engine request per choice; a seed is counted up so that choices differ."""
        self.check_refused()
        messages = chat_messages(self.messages, "messages")
        base = sampling(
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            seed=self.seed,
            max_tokens=self.max_completion_tokens or self.max_tokens,
            stop=self.stop,
            stop_token_ids=self.stop_token_ids,
            ignore_eos=self.ignore_eos,
        )
        return [
            Submit(
                id if self.n in (None, 1) else f"{id}-{index}",
                numbered(base, index),
                messages=messages,
                speculation=wish(self.speculation),
            )
            for index in range(self.n or 1)
        ]


@post(
    "/v1/chat/completions",
    status_code=200,
    opt={"scope": "inference"},
    operation_id="ChatCompletions",
    tags=["inference"],
    request_max_body_size=MAX_BODY_BYTES,
)
async def chat_completions(
    request: Request[Any, Any, Any], data: JSONBody[ChatRequest], service: NamedDependency[Service]
) -> Response[Any]:
    """Answer a chat. With stream, server-sent events of chat.completion.chunk."""
    service.check_model(data.model)
    options = check_stream_options(data.stream, data.stream_options)
    id = f"chatcmpl-{uuid.uuid4().hex}"
    submits = data.submits(id)
    created = int(time.time())
    head = {"id": id, "created": created, "model": data.model}
    transport = "sse" if data.stream else "http"
    names = {} if data.max_completion_tokens is None else {"max_tokens": "max_completion_tokens"}
    generation = service.generate(submits, request.user, "/v1/chat/completions", transport, names)
    if data.stream:
        chunks = _chunks(generation, len(submits), head, options)
        return await event_stream(request, chunks, _error_event)
    texts, ends = await while_connected(request, collect(generation, len(submits)))
    choices = [
        {
            "index": index,
            "message": {"role": "assistant", "content": text, "refusal": None},
            "logprobs": None,
            "finish_reason": end.finish_reason,
            "stop_reason": end.stop,
        }
        for index, (text, end) in enumerate(zip(texts, ends, strict=True))
    ]
    body = {
        **head,
        "object": "chat.completion",
        "choices": choices,
        "usage": numbers.usage(ends, len(ends)),
        "metrics": numbers.metrics(ends[0]) if len(ends) == 1 else None,
    }
    return Response(msgspec.json.encode(body), media_type="application/json")


async def _chunks(
    generation: Generation, choices: int, head: dict[str, Any], options: StreamOptions
) -> AsyncGenerator[bytes, None]:
    head = {**head, "object": "chat.completion.chunk"}
    started: set[int] = set()
    ends: dict[int, Finished] = {}

    def chunk(index: int, delta: dict[str, Any], **more: Any) -> bytes:
        choice = {"index": index, "delta": delta, "finish_reason": None, **more}
        return data_event({**head, "choices": [choice]})

    async with aclosing(generation.events()) as events:
        async for index, event in events:
            if index not in started:
                started.add(index)
                yield chunk(index, {"role": "assistant", "content": ""})
            if isinstance(event, Finished):
                ends[index] = event
                yield chunk(index, {}, finish_reason=event.finish_reason, stop_reason=event.stop)
            elif options.include_provenance:
                yield chunk(index, {"content": event.text}, x_spec=numbers.provenance(event))
            elif event.text:
                yield chunk(index, {"content": event.text})
    if options.include_usage:
        finished = [ends[index] for index in range(choices)]
        yield data_event(
            {
                **head,
                "choices": [],
                "usage": numbers.usage(finished, choices),
                "metrics": numbers.metrics(finished[0]) if choices == 1 else None,
            }
        )
    yield DONE


def _error_event(error: ApiError) -> bytes:
    return data_event({"error": error.openai()})
