"""Sends bench requests, streaming, and measures each from the client's side."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable, Sequence
from typing import Any

import httpx
import msgspec

from app.bench.prompts import Prompt


class Sample(msgspec.Struct, frozen=True):
    """One request. Times in milliseconds seen by the client; counts reported by the server.

    steps, drafted, accepted: verify steps and draft tokens. text: SHA-256 of the answer."""

    mode: str
    concurrency: int
    repeat: int
    chunk: int
    category: str
    question: int | str
    tokens: int = 0
    ttft_ms: float = 0.0
    e2e_ms: float = 0.0
    steps: int = 0
    drafted: int = 0
    accepted: int = 0
    text: str = ""
    error: str = ""

    @property
    def tpot_ms(self) -> float | None:
        """Mean time per token after the first."""
        if self.tokens < 2:
            return None
        return (self.e2e_ms - self.ttft_ms) / (self.tokens - 1)


class Run(msgspec.Struct, frozen=True):
    """One chunk of prompts in one mode. wall_ms: first request sent to last answer complete."""

    mode: str
    concurrency: int
    repeat: int
    chunk: int
    category: str
    wall_ms: float
    samples: list[Sample]

    @property
    def tokens(self) -> int:
        return sum(sample.tokens for sample in self.samples)

    @property
    def tokens_per_s(self) -> float:
        return 1000 * self.tokens / self.wall_ms if self.wall_ms else 0.0


async def run_chunk(
    client: httpx.AsyncClient,
    prompts: Sequence[Prompt],
    body: dict[str, Any],
    place: Sample,
    on_done: Callable[[], None],
) -> Run:
    """Send the chunk with `place.concurrency` requests at once. `place` names mode and chunk."""
    waiting = list(reversed(prompts))
    samples: list[Sample] = []

    async def work() -> None:
        while waiting:
            prompt = waiting.pop()
            samples.append(await send(client, prompt, body, place))
            on_done()

    started = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(min(place.concurrency, len(prompts)))))
    return Run(
        mode=place.mode,
        concurrency=place.concurrency,
        repeat=place.repeat,
        chunk=place.chunk,
        category=place.category,
        wall_ms=1000 * (time.perf_counter() - started),
        samples=samples,
    )


async def send(
    client: httpx.AsyncClient, prompt: Prompt, body: dict[str, Any], place: Sample
) -> Sample:
    """One streamed request. A failure is a sample with `error` set."""
    request = body | {"messages": [{"role": "user", "content": prompt.text}]}
    started = time.perf_counter()
    first: float | None = None
    text: list[str] = []
    usage: dict[str, Any] = {}
    try:
        async with client.stream("POST", "/v1/chat/completions", json=request) as answer:
            if answer.status_code != 200:
                await answer.aread()
                return failed(place, prompt, f"HTTP {answer.status_code}: {answer.text[:300]}")
            async for line in answer.aiter_lines():
                if not line.startswith("data: ") or line == "data: [DONE]":
                    continue
                event = msgspec.json.decode(line[6:])
                if "error" in event:
                    return failed(place, prompt, event["error"].get("message", "stream error"))
                for choice in event["choices"]:
                    if content := choice["delta"].get("content"):
                        first = first or time.perf_counter()
                        text.append(content)
                if event.get("usage"):
                    usage = event
    except (httpx.HTTPError, msgspec.DecodeError) as error:
        return failed(place, prompt, f"{type(error).__name__}: {error}")
    ended = time.perf_counter()
    spec = (usage.get("metrics") or {}).get("speculative_decoding") or {}
    return msgspec.structs.replace(
        place,
        question=prompt.question_id,
        tokens=usage.get("usage", {}).get("completion_tokens", 0),
        ttft_ms=1000 * ((first or ended) - started),
        e2e_ms=1000 * (ended - started),
        steps=spec.get("num_spec_steps", 0),
        drafted=spec.get("num_draft_tokens", 0),
        accepted=spec.get("num_accepted_draft_tokens", 0),
        text=hashlib.sha256("".join(text).encode()).hexdigest()[:16],
    )


def failed(place: Sample, prompt: Prompt, error: str) -> Sample:
    return msgspec.structs.replace(place, question=prompt.question_id, error=error)
