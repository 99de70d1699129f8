"""One streamed answer of an OpenAI-compatible server, timed event by event, whatever it sends."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Annotated, Literal

import httpx
import msgspec
from msgspec import Meta, Raw

from app.bench.acceptance import Step
from app.foreign_json import decode
from app.remote import message_of

LONGEST_LINE = 8 << 20
LONGEST_STREAM = 256 << 20
LONGEST_ERROR = 1 << 20

Count = Annotated[int, Meta(ge=0, le=1 << 40)]
Kind = Literal["refused", "connection", "stalled", "cut", "malformed", "failed", "too_long"]
"""How a request fails: an HTTP status, no connection, nothing for too long, a stream that ended
before the answer did, one that is no stream of chunks, an error in the stream, out of bounds."""


class Fault(Exception):
    """A request that failed; the message says how."""

    def __init__(self, kind: Kind, message: str) -> None:
        super().__init__(message)
        self.kind: Kind = kind


class Delta(msgspec.Struct, frozen=True):
    content: str | None = None
    reasoning_content: str | None = None


class Choice(msgspec.Struct, frozen=True):
    """Of a chat chunk (delta) or of a completion's (text)."""

    delta: Delta | None = None
    text: str | None = None
    finish_reason: str | None = None
    x_spec: Raw = Raw()

    @property
    def content(self) -> str:
        if self.delta is None:
            return self.text or ""
        return (self.delta.reasoning_content or "") + (self.delta.content or "")


class Usage(msgspec.Struct, frozen=True):
    prompt_tokens: Count = 0
    completion_tokens: Count = 0


class Chunk(msgspec.Struct, frozen=True):
    choices: list[Choice] | None = None
    usage: Usage | None = None
    metrics: Raw = Raw()
    error: Raw = Raw()


class Part(msgspec.Struct, frozen=True):
    num_draft_tokens: Count = 0
    num_accepted_draft_tokens: Count = 0


class Speculation(msgspec.Struct, frozen=True):
    """metrics.speculative_decoding, ours or vLLM's; each server gives a part of it."""

    num_spec_steps: Count = 0
    num_draft_tokens: Count = 0
    num_accepted_draft_tokens: Count = 0
    acceptance_histogram: Annotated[list[Count], Meta(max_length=4096)] = []
    drafters: dict[str, Count] = {}
    drafted_by: dict[str, Part] = {}


class Metrics(msgspec.Struct, frozen=True):
    speculative_decoding: Speculation | None = None


class Piece(msgspec.Struct, frozen=True):
    kind: str


class Provenance(msgspec.Struct, frozen=True):
    """x_spec."""

    drafter: str
    drafted: Count
    accepted: Count
    pieces: list[Piece] = []


class Answer(msgspec.Struct):
    """What one stream brought. Times in milliseconds from the sending; gaps between events with
    text. counted: whether `tokens` is the server's count, or the number of events."""

    text: str = ""
    tokens: int = 0
    prompt_tokens: int = 0
    counted: bool = False
    ttft_ms: float | None = None
    e2e_ms: float = 0.0
    gaps_ms: list[float] = []
    spec: Speculation = Speculation()
    steps: list[Step] = []


async def read_answer(response: httpx.Response, began: float) -> Answer:
    """Read the stream of a request that was sent at `began` (perf_counter). Raises Fault, or what
    httpx raises."""
    if response.status_code != 200:
        raise Fault("refused", f"HTTP {response.status_code}: {await error_text(response)}")
    answer = Answer()
    texts: list[str] = []
    last: float | None = None
    finished = False
    async for line, at in lines(response):
        data = payload(line)
        if data is None:
            continue
        if data == b"[DONE]":
            finished = True
            break
        chunk = decoded(data)
        if there(chunk.error):
            raise Fault("failed", message_of(bytes(chunk.error)))
        for choice in chunk.choices or ():
            if content := choice.content:
                texts.append(content)
                if last is None:
                    answer.ttft_ms = 1000 * (at - began)
                else:
                    answer.gaps_ms.append(round(1000 * (at - last), 3))
                last = at
            if there(choice.x_spec):
                answer.steps.append(step_of(choice.x_spec))
            finished = finished or choice.finish_reason is not None
        if chunk.usage is not None:
            answer.tokens, answer.counted = chunk.usage.completion_tokens, True
            answer.prompt_tokens = chunk.usage.prompt_tokens
        if there(chunk.metrics):
            answer.spec = speculation_of(chunk.metrics)
    if not finished:
        raise Fault("cut", f"the stream ended early, after {len(texts)} events with text")
    answer.e2e_ms = 1000 * (time.perf_counter() - began)
    answer.text = "".join(texts)
    if not answer.counted:
        answer.tokens = len(texts)
    return answer


async def lines(response: httpx.Response) -> AsyncIterator[tuple[bytes, float]]:
    """Lines without their ends, each with the time at which its last byte came."""
    rest = b""
    total = 0
    async for part in response.aiter_bytes():
        at = time.perf_counter()
        total += len(part)
        *whole, rest = (rest + part).split(b"\n")
        for line in whole:
            yield line.rstrip(b"\r"), at
        if len(rest) > LONGEST_LINE or total > LONGEST_STREAM:
            raise Fault("too_long", f"the stream is longer than any answer ({total:,} bytes)")
    if rest:
        yield rest.rstrip(b"\r"), time.perf_counter()


def payload(line: bytes) -> bytes | None:
    """The data of a line, None for comments, other fields and empty lines."""
    return line[5:].strip() if line.startswith(b"data:") else None


def decoded(data: bytes) -> Chunk:
    try:
        return decode(data, Chunk)
    except msgspec.MsgspecError as error:
        shown = data[:80].decode("utf-8", "replace")
        raise Fault("malformed", f"an event is no chunk ({error}): {shown}") from None


def there(raw: Raw) -> bool:
    """Whether a field that is decoded later was given, and not as null."""
    return bytes(raw) not in (b"", b"null")


def step_of(raw: Raw) -> Step:
    """A verify step from x_spec. A text that ends with a drafted token was cut: no token of the
    target's own came after it."""
    try:
        found = decode(raw, Provenance)
    except msgspec.MsgspecError as error:
        raise Fault("malformed", f"x_spec: {error}") from None
    cut = bool(found.pieces) and found.pieces[-1].kind == "accepted"
    return Step(found.drafter, found.drafted, found.accepted, cut)


def speculation_of(raw: Raw) -> Speculation:
    """Other servers may call something else `metrics`; then there is nothing to report."""
    try:
        return decode(raw, Metrics).speculative_decoding or Speculation()
    except msgspec.MsgspecError:
        return Speculation()


async def error_text(response: httpx.Response) -> str:
    body = b""
    async for part in response.aiter_bytes():
        body += part
        if len(body) > LONGEST_ERROR:
            break
    return message_of(body)
