"""POST /v1/chat/completions, streamed and not."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

from litestar import Request, Response, post
from litestar.di import NamedDependency
from litestar.params import JSONBody
from msgspec.structs import replace

from app.errors import bad_request
from app.inference import logprobs, numbers
from app.inference.answer import Outcome, Plan, respond
from app.inference.formats import ResponseFormat
from app.inference.limits import (
    MAX_BODY_BYTES,
    Choices,
    Logprobs,
    Name,
    StreamOptions,
    Tokens,
    check_stream_options,
    wish,
)
from app.inference.messages import InputMessage, chat_messages
from app.inference.sampling import Sampled, numbered
from app.service import Service
from engine.wire import Delta, Finished, Piece, PromptLogprobs, Submit, Tokenize


class ChatRequest(Sampled, kw_only=True):
    """OpenAI's chat request with vLLM's additions. Unknown fields are accepted and ignored."""

    model: Name
    messages: list[InputMessage]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Tokens | None = None
    max_completion_tokens: Tokens | None = None
    n: Choices | None = None
    logprobs: bool | None = None
    top_logprobs: Logprobs | None = None
    prompt_logprobs: Logprobs | None = None
    response_format: ResponseFormat | None = None
    return_token_ids: bool | None = None
    echo: Any = None
    add_special_tokens: Any = None
    text: Any = None
    include: Any = None

    def submits(self, id: str) -> list[Submit]:
        """One engine request per choice; a seed is counted up so that choices differ."""
        self.check_refused("echo", "add_special_tokens", "text", "include")
        if self.top_logprobs and not self.logprobs:
            raise bad_request("top_logprobs needs logprobs to be true.", "top_logprobs")
        messages = chat_messages(self.messages, "messages")
        base = self.sampling(
            self.max_completion_tokens or self.max_tokens,
            ("response_format", self.response_format.grammar() if self.response_format else None),
            logprobs=(self.top_logprobs or 0) if self.logprobs else None,
            prompt_logprobs=self.prompt_logprobs,
        )
        # The choices have one prompt, so one of them scores it.
        rest = replace(base, prompt_logprobs=None)
        return [
            Submit(
                id if self.n in (None, 1) else f"{id}-{index}",
                numbered(rest if index else base, index),
                messages=messages,
                speculation=wish(self.speculation),
                priority=self.priority or 0,
                cache_salt=self.cache_salt or "",
            )
            for index in range(self.n or 1)
        ]

    def field_names(self) -> dict[str, str]:
        """The engine's names of fields -> those that this request used."""
        names = self.names("response_format") | {"logprobs": "top_logprobs"}
        if self.max_completion_tokens is not None:
            names["max_tokens"] = "max_completion_tokens"
        return names


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
    transport = "sse" if data.stream else "http"
    generation = service.generate(
        submits, request.user, "/v1/chat/completions", transport, data.field_names()
    )
    prompt_ids: list[int] = []
    if data.return_token_ids or options.continuous:
        work = service.call(Tokenize(messages=submits[0].messages))
        prompt_ids = (await generation.beside(work))["tokens"]
    shape = _Shape(data, options, prompt_ids if data.return_token_ids else None)
    choices = len(submits)
    stream = options if data.stream else None
    lengths = [len(prompt_ids)] if options.continuous else None
    plan = Plan(id, data.model, shape, choices, choices, stream, lengths)
    return await respond(request, generation.events(), plan)


class _Shape:
    """The body of a chat answer and its chunks."""

    kind = "chat.completion"
    chunk_kind = "chat.completion.chunk"

    def __init__(
        self, data: ChatRequest, options: StreamOptions, prompt_ids: list[int] | None
    ) -> None:
        """prompt_ids: those of the prompt, when token ids were asked for."""
        self._data = data
        self._options = options
        self._prompt_ids = prompt_ids
        self._parted: set[int] = set()  # choices that a chunk had tokens of

    def whole(self, outcomes: list[Outcome]) -> dict[str, Any]:
        choices = [
            {
                "index": index,
                "message": {"role": "assistant", "content": outcome.text, "refusal": None},
                "logprobs": self._logprobs(outcome.pieces),
                "finish_reason": outcome.end.finish_reason,
                "stop_reason": outcome.end.stop,
                **self._token_ids(outcome.pieces),
            }
            for index, outcome in enumerate(outcomes)
        ]
        return {"choices": choices, **self._prompt(outcomes[0].prompt)}

    def start(self, index: int, prompt: PromptLogprobs | None) -> dict[str, Any]:
        chunk = self._chunk(index, {"role": "assistant", "content": ""})
        return chunk | (self._prompt(prompt) if index == 0 else {})

    def part(self, index: int, delta: Delta) -> dict[str, Any] | None:
        more: dict[str, Any] = self._token_ids(delta.pieces)
        if self._options.include_provenance:
            more["x_spec"] = numbers.provenance(delta)
        if not (delta.text or more or self._data.logprobs):
            return None
        self._parted.add(index)
        found = self._logprobs(delta.pieces)
        return self._chunk(index, {"content": delta.text}, logprobs=found, **more)

    def end(self, index: int, end: Finished) -> dict[str, Any]:
        more: dict[str, Any] = {}
        if index not in self._parted:  # as a whole answer without tokens has it
            more = {"logprobs": self._logprobs(()), **self._token_ids(())}
        return self._chunk(index, {}, finish_reason=end.finish_reason, stop_reason=end.stop, **more)

    def _chunk(self, index: int, delta: dict[str, Any], **more: Any) -> dict[str, Any]:
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None, **more}
        return {"choices": [choice]}

    def _logprobs(self, pieces: Sequence[Piece]) -> dict[str, Any] | None:
        if not self._data.logprobs:
            return None
        return {"content": logprobs.contents(pieces), "refusal": None}

    def _token_ids(self, pieces: Sequence[Piece]) -> dict[str, Any]:
        if self._prompt_ids is None:
            return {}
        return {"token_ids": [piece.token for piece in pieces]}

    def _prompt(self, prompt: PromptLogprobs | None) -> dict[str, Any]:
        """What was asked for of the prompt; it stands beside the choices."""
        found: dict[str, Any] = {}
        if prompt is not None:
            top = self._data.prompt_logprobs or 0
            found["prompt_logprobs"] = logprobs.prompt_entries(prompt.items, top)
        if self._prompt_ids is not None:
            found["prompt_token_ids"] = self._prompt_ids
        return found
