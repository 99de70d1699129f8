"""POST /v1/completions: raw text prompts or token ids, streamed and not."""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Annotated, Any

from litestar import Request, Response, post
from litestar.di import NamedDependency
from litestar.params import JSONBody
from msgspec import Meta
from msgspec.structs import replace

from app.errors import bad_request, unsupported
from app.inference import numbers
from app.inference.answer import Outcome, Plan, respond
from app.inference.formats import ResponseFormat
from app.inference.generation import Numbered
from app.inference.limits import (
    MAX_BODY_BYTES,
    MAX_PROMPTS,
    Choices,
    Logprobs,
    Name,
    StreamOptions,
    check_stream_options,
    wish,
)
from app.inference.logprobs import TextLogprobs, joined, prompt_entries
from app.inference.prompts import One, Prompt, Reading, prompts, readings, token_counts
from app.inference.sampling import Sampled, numbered
from app.service import Service
from engine.wire import Delta, Finished, Piece, PromptLogprobs, Submit

DEFAULT_MAX_TOKENS = 16

# 0 is for an echoed prompt that is scored and not continued.
MaxTokens = Annotated[int, Meta(ge=0, le=2**31 - 1)]


class CompletionRequest(Sampled, kw_only=True):
    """OpenAI's completion request with vLLM's additions. Unknown fields are accepted and
    ignored."""

    model: Name
    prompt: Prompt
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: MaxTokens | None = None
    n: Choices | None = None
    echo: bool | None = None
    logprobs: Logprobs | None = None
    prompt_logprobs: Logprobs | None = None
    response_format: ResponseFormat | None = None
    return_token_ids: bool | None = None
    add_special_tokens: bool | None = None
    max_completion_tokens: Any = None
    top_logprobs: Any = None
    text: Any = None
    include: Any = None

    @property
    def scores_only(self) -> bool:
        """True when the prompt is to be echoed and not continued."""
        return self.max_tokens == 0

    def submits(self, id: str, found: list[One]) -> list[Submit]:
        """One engine request per prompt and choice, choices of a prompt side by side."""
        self.check_refused("max_completion_tokens", "top_logprobs", "text", "include")
        if self.add_special_tokens is False:
            raise unsupported("add_special_tokens")
        if self.scores_only and not self.echo:
            raise bad_request("max_tokens may be 0 only when echo is true.", "max_tokens")
        # The engine gives at least one token; `_without_output` drops the one too many.
        max_tokens = DEFAULT_MAX_TOKENS if self.max_tokens is None else max(self.max_tokens, 1)
        echoed = self.logprobs if self.echo else None
        scored = [top for top in (self.prompt_logprobs, echoed) if top is not None]
        base = self.sampling(
            max_tokens,
            ("response_format", self.response_format.grammar() if self.response_format else None),
            logprobs=self.logprobs,
            prompt_logprobs=max(scored, default=None),
        )
        choices = self.n or 1
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
                priority=self.priority or 0,
                cache_salt=self.cache_salt or "",
            )
            for number, prompt in enumerate(found)
            for index in range(choices)
        ]

    def field_names(self) -> dict[str, str]:
        """The engine's names of fields -> those that this request used."""
        names = self.names("response_format")
        if self.prompt_logprobs is None:  # then it is the echo that scores the prompt
            names["prompt_logprobs"] = "logprobs"
        return names


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
    found = prompts(data.prompt)
    submits = data.submits(id, found)
    read = await readings(service, found) if data.echo or data.return_token_ids else None
    shape = _Shape(data, options, len(submits), read)
    transport = "sse" if data.stream else "http"
    generation = service.generate(
        submits, request.user, "/v1/completions", transport, data.field_names()
    )
    lengths: list[int] | None = None
    if options.continuous:
        lengths = await generation.beside(token_counts(service, found))
    stream = options if data.stream else None
    plan = Plan(id, data.model, shape, len(submits), data.n or 1, stream, lengths)
    events = generation.events()
    return await respond(request, _without_output(events) if data.scores_only else events, plan)


async def _without_output(
    events: AsyncGenerator[Numbered, None],
) -> AsyncGenerator[Numbered, None]:
    """The events of requests whose prompt alone is wanted."""
    async with aclosing(events):
        async for index, event in events:
            if isinstance(event, Finished):
                yield index, replace(event, finish_reason="length", stop=None, completion_tokens=0)
            elif isinstance(event, PromptLogprobs):
                yield index, event


class _Shape:
    """The body of a completion and its chunks."""

    kind = "text_completion"
    chunk_kind = "text_completion"

    def __init__(
        self,
        data: CompletionRequest,
        options: StreamOptions,
        choices: int,
        read: list[Reading] | None,
    ) -> None:
        """read: the prompts, when the answer repeats them or their ids."""
        self._data = data
        self._options = options
        self._read = read
        self._logprobs = [TextLogprobs() for _ in range(choices)]
        self._parted: set[int] = set()  # choices that a chunk had tokens of

    def whole(self, outcomes: list[Outcome]) -> dict[str, Any]:
        choices: list[dict[str, Any]] = []
        for index, outcome in enumerate(outcomes):
            text, found = self._echo(index, outcome.prompt)
            after = self._output(index, outcome.pieces)
            choices.append(
                {
                    "index": index,
                    "text": text + outcome.text,
                    "logprobs": joined(found, after) if found and after else after,
                    "finish_reason": outcome.end.finish_reason,
                    "stop_reason": outcome.end.stop,
                    **self._prompt(index, outcome.prompt),
                    **self._token_ids(outcome.pieces),
                }
            )
        return {"choices": choices}

    def start(self, index: int, prompt: PromptLogprobs | None) -> dict[str, Any] | None:
        more = self._prompt(index, prompt)
        if not (self._data.echo or more):
            return None
        text, found = self._echo(index, prompt)
        return self._chunk(index, text, logprobs=found, **more)

    def part(self, index: int, delta: Delta) -> dict[str, Any] | None:
        more: dict[str, Any] = self._token_ids(delta.pieces)
        if self._options.include_provenance:
            more["x_spec"] = numbers.provenance(delta)
        found = self._output(index, delta.pieces)
        if not (delta.text or found or more):
            return None
        self._parted.add(index)
        return self._chunk(index, delta.text, logprobs=found, **more)

    def end(self, index: int, end: Finished) -> dict[str, Any]:
        more: dict[str, Any] = {}
        if index not in self._parted:  # as a whole answer without tokens has it
            more = {"logprobs": self._output(index, ()), **self._token_ids(())}
        return self._chunk(index, "", finish_reason=end.finish_reason, stop_reason=end.stop, **more)

    def _chunk(self, index: int, text: str, **more: Any) -> dict[str, Any]:
        choice = {"index": index, "text": text, "logprobs": None, "finish_reason": None, **more}
        return {"choices": [choice]}

    def _reading(self, index: int) -> Reading | None:
        return self._read[index // (self._data.n or 1)] if self._read else None

    def _echo(self, index: int, prompt: PromptLogprobs | None) -> tuple[str, dict[str, Any] | None]:
        """The prompt as the beginning of the choice's text, with its logprobs."""
        read, top = self._reading(index), self._data.logprobs
        if not self._data.echo or read is None:
            return "", None
        if top is None or prompt is None:
            self._logprobs[index].skip(read.text)
            return read.text, None
        return read.text, self._logprobs[index].prompt(read.text, prompt.items, top)

    def _output(self, index: int, pieces: Sequence[Piece]) -> dict[str, Any] | None:
        top = self._data.logprobs
        return None if top is None else self._logprobs[index].output(pieces, top)

    def _prompt(self, index: int, prompt: PromptLogprobs | None) -> dict[str, Any]:
        """What was asked for of the prompt besides its echo."""
        found: dict[str, Any] = {}
        top, read = self._data.prompt_logprobs, self._reading(index)
        if top is not None and prompt is not None:
            found["prompt_logprobs"] = prompt_entries(prompt.items, top)
        if self._data.return_token_ids and read is not None:
            found["prompt_token_ids"] = read.ids
        return found

    def _token_ids(self, pieces: Sequence[Piece]) -> dict[str, Any]:
        if not self._data.return_token_ids:
            return {}
        return {"token_ids": [piece.token for piece in pieces]}
