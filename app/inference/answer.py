"""The answer of chat and completions, whole or as a stream: what the two endpoints share."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec
from litestar import Request, Response

from app.errors import ApiError
from app.inference import numbers
from app.inference.framing import DONE, data_event
from app.inference.generation import Numbered, event_stream, while_connected
from app.inference.limits import StreamOptions
from engine.wire import Delta, Finished, Piece, PromptLogprobs


@dataclass(slots=True)
class Outcome:
    """All that the engine sent for one choice."""

    end: Finished
    pieces: list[Piece] = field(default_factory=list)
    prompt: PromptLogprobs | None = None

    @property
    def text(self) -> str:
        return "".join(piece.text for piece in self.pieces)


class Shape(Protocol):
    """How an endpoint words its answer: each method makes the body's part that holds choices."""

    kind: str
    chunk_kind: str

    def whole(self, outcomes: list[Outcome]) -> dict[str, Any]: ...

    def start(self, index: int, prompt: PromptLogprobs | None) -> dict[str, Any] | None:
        """The chunk before the first token of a choice, or None when it has none."""
        ...

    def part(self, index: int, delta: Delta) -> dict[str, Any] | None:
        """The chunk of one step, or None when the step has nothing for the client."""
        ...

    def end(self, index: int, end: Finished) -> dict[str, Any]: ...


@dataclass(frozen=True, slots=True)
class Plan:
    """An answer to be given. per_prompt: choices of each prompt, which stand side by side.
    stream: the options of a stream, None for a whole answer. prompt_tokens: those of each prompt,
    for a stream whose every chunk tells the usage so far."""

    id: str
    model: str
    shape: Shape
    choices: int
    per_prompt: int
    stream: StreamOptions | None
    prompt_tokens: Sequence[int] | None = None


async def respond(
    request: Request[Any, Any, Any], events: AsyncGenerator[Numbered, None], plan: Plan
) -> Response[Any]:
    """The HTTP answer. Raises ApiError as `Generation.events`, for a stream only before its
    start; later errors are its last event."""
    head = {"id": plan.id, "created": int(time.time()), "model": plan.model}
    if plan.stream is not None:
        chunks = _chunks(events, plan, plan.stream, {**head, "object": plan.shape.chunk_kind})
        return await event_stream(request, chunks, _error_event)
    outcomes = await while_connected(request, _collect(events, plan.choices))
    body = {
        **head,
        "object": plan.shape.kind,
        **plan.shape.whole(outcomes),
        **_numbers([outcome.end for outcome in outcomes], plan),
    }
    return Response(msgspec.json.encode(body), media_type="application/json")


async def _collect(events: AsyncGenerator[Numbered, None], choices: int) -> list[Outcome]:
    pieces: list[list[Piece]] = [[] for _ in range(choices)]
    prompts: dict[int, PromptLogprobs] = {}
    ends: dict[int, Finished] = {}
    async with aclosing(events):
        async for index, event in events:
            match event:
                case Finished():
                    ends[index] = event
                case PromptLogprobs():
                    prompts[index] = event
                case Delta():
                    pieces[index].extend(event.pieces)
    return [Outcome(ends[i], pieces[i], prompts.get(i)) for i in range(choices)]


async def _chunks(
    events: AsyncGenerator[Numbered, None], plan: Plan, options: StreamOptions, head: dict[str, Any]
) -> AsyncGenerator[bytes, None]:
    shape = plan.shape
    started: set[int] = set()
    ends: dict[int, Finished] = {}
    written = [0] * plan.choices  # output tokens so far

    def encoded(index: int, chunk: dict[str, Any]) -> bytes:
        if plan.prompt_tokens is None:
            return data_event({**head, **chunk})
        usage = numbers.usage_so_far(plan.prompt_tokens[index // plan.per_prompt], written[index])
        return data_event({**head, **chunk, "usage": usage})

    async with aclosing(events):
        async for index, event in events:
            if index not in started:
                started.add(index)
                prompt = event if isinstance(event, PromptLogprobs) else None
                if (chunk := shape.start(index, prompt)) is not None:
                    yield encoded(index, chunk)
            if isinstance(event, Finished):
                ends[index] = event
                written[index] = event.completion_tokens
                yield encoded(index, shape.end(index, event))
            elif isinstance(event, Delta):
                written[index] += len(event.pieces)
                if (chunk := shape.part(index, event)) is not None:
                    yield encoded(index, chunk)
    if options.include_usage:
        finished = [ends[index] for index in range(plan.choices)]
        yield data_event({**head, "choices": [], **_numbers(finished, plan)})
    yield DONE


def _numbers(ends: list[Finished], plan: Plan) -> dict[str, Any]:
    """usage and metrics; the latter describe one engine request, so several have none."""
    return {
        "usage": numbers.usage(ends, plan.per_prompt),
        "metrics": numbers.metrics(ends[0]) if len(ends) == 1 else None,
    }


def _error_event(error: ApiError) -> bytes:
    return data_event({"error": error.openai()})
