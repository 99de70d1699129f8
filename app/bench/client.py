"""Sends bench requests, streaming, and measures each from the client's side."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import httpx
import msgspec

from app.bench.acceptance import Counts, positions
from app.bench.stream import Answer, Fault, Kind, read_answer
from app.bench.workloads import Prompt

CHAT = "/v1/chat/completions"
REQUEST_S = 600.0
"""The longest a request may take."""


class Place(msgspec.Struct, frozen=True):
    """Where in the benchmark something was measured. concurrency: requests at once, or 0 where they
    arrive at `rate` a second. phase: "" outside phases."""

    mode: str
    concurrency: int = 0
    repeat: int = 0
    chunk: int = 0
    rate: float = 0.0
    phase: str = ""


class Sample(msgspec.Struct, frozen=True):
    """One request. Times in milliseconds seen by the client; counts reported by the server.

    order: number of the prompt in its chunk. counted: tokens is the server's count, else the number
    of events with text. steps, drafted, accepted: verify steps and draft tokens; histogram: steps
    by accepted tokens; drafters: steps by drafter; drafted_by: (drafted, accepted) by drafter;
    positions: see acceptance.Counts. text: SHA-256 of the answer. failure: the kind of error."""

    mode: str
    concurrency: int
    repeat: int
    chunk: int
    category: str
    question: int | str
    rate: float = 0.0
    phase: str = ""
    order: int = 0
    turn: int = 0
    tokens: int = 0
    counted: bool = True
    prompt_tokens: int = 0
    sent_ms: float = 0.0
    ttft_ms: float | None = None
    e2e_ms: float = 0.0
    gaps_ms: list[float] = []
    steps: int = 0
    drafted: int = 0
    accepted: int = 0
    histogram: list[int] = []
    drafters: dict[str, int] = {}
    drafted_by: dict[str, tuple[int, int]] = {}
    positions: Counts = {}
    text: str = ""
    failure: Kind | None = None
    error: str = ""

    @property
    def tpot_ms(self) -> float | None:
        """Mean time per token after the first."""
        if self.tokens < 2 or self.ttft_ms is None:
            return None
        return (self.e2e_ms - self.ttft_ms) / (self.tokens - 1)


class Run(msgspec.Struct, frozen=True):
    """One chunk of prompts in one mode. wall_ms: first request sent to last answer complete. cut:
    it was ended in its middle, so that wall_ms holds the time of answers that are not there."""

    mode: str
    concurrency: int
    repeat: int
    chunk: int
    category: str
    wall_ms: float
    samples: list[Sample]
    rate: float = 0.0
    phase: str = ""
    cut: bool = False

    @property
    def tokens(self) -> int:
        return sum(sample.tokens for sample in self.samples)

    @property
    def tokens_per_s(self) -> float:
        return 1000 * self.tokens / self.wall_ms if self.wall_ms else 0.0


class Sender(msgspec.Struct, frozen=True):
    """How one arm's requests are sent: the client of its server and the fields that all have.

    max_tokens: of an answer where the prompt does not say; limit: the field's name on this server.
    stall_s: the longest silence in a stream. all_turns: also the prompts' later turns."""

    client: httpx.AsyncClient
    body: Mapping[str, Any]
    max_tokens: int
    limit: str = "max_completion_tokens"
    stall_s: float = 60.0
    all_turns: bool = False

    async def converse(
        self, prompt: Prompt, place: Place, order: int, began: float
    ) -> list[Sample]:
        """One prompt: its first turn, or all of them with the answers in between. A failure ends
        the conversation with a sample that has `error` set. began: start of the run
        (perf_counter)."""
        messages: list[dict[str, str]] = []
        found: list[Sample] = []
        for turn, text in enumerate(prompt.turns if self.all_turns else prompt.turns[:1]):
            messages.append({"role": "user", "content": text})
            body = {**self.body, "messages": messages, self.limit: self.max_tokens}
            if prompt.max_tokens:
                body |= {self.limit: prompt.max_tokens, "ignore_eos": True}
            if prompt.temperature is not None:
                body |= drawing(prompt.temperature)
            sample = empty(place, prompt, order, turn, 1000 * (time.perf_counter() - began))
            try:
                answer = await ask(self.client, CHAT, body, self.stall_s)
            except Fault as fault:
                return [*found, failed(sample, fault)]
            found.append(measured(sample, answer))
            messages.append({"role": "assistant", "content": answer.text})
        return found


def drawing(temperature: float) -> dict[str, Any]:
    """A seed makes every arm draw the same text, as far as the server keeps to it."""
    return {"temperature": temperature} | ({"seed": 1} if temperature else {})


async def ask(
    client: httpx.AsyncClient, path: str, body: Mapping[str, Any], stall_s: float
) -> Answer:
    """One streamed request. Raises Fault, whatever goes wrong on the way."""
    limits = httpx.Timeout(stall_s, connect=min(stall_s, 10.0))
    began = time.perf_counter()
    try:
        async with (
            asyncio.timeout(REQUEST_S),
            client.stream("POST", path, json=body, timeout=limits) as response,
        ):
            return await read_answer(response, began)
    except httpx.ReadTimeout:
        raise Fault("stalled", f"nothing came for {stall_s:g} s") from None
    except TimeoutError:
        raise Fault("stalled", f"the answer took more than {REQUEST_S:g} s") from None
    except httpx.RemoteProtocolError as error:
        raise Fault("cut", f"the connection ended: {error}") from None
    except httpx.DecodingError as error:
        raise Fault("malformed", f"the body cannot be decoded: {error}") from None
    except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
        raise Fault("connection", f"{type(error).__name__}: {error}") from None


async def run_chunk(
    sender: Sender,
    prompts: Sequence[Prompt],
    category: str,
    place: Place,
    on_done: Callable[[], None],
    runs: list[Run],
    arrivals: Sequence[float] | None = None,
) -> Run:
    """Send the chunk: `place.concurrency` requests at once, or each at its time of arrival (seconds
    from the start), whatever is still running then. The run is put on `runs`; when it is cancelled
    in its middle, what was answered until then, marked as cut."""
    waiting = list(enumerate(prompts))[::-1]
    samples: list[Sample] = []
    began = time.perf_counter()

    async def one(order: int, prompt: Prompt) -> None:
        samples.extend(await sender.converse(prompt, place, order, began))
        on_done()

    async def work() -> None:
        while waiting:
            await one(*waiting.pop())

    async def arrive(order: int, prompt: Prompt, at_s: float) -> None:
        await asyncio.sleep(max(0.0, began + at_s - time.perf_counter()))
        await one(order, prompt)

    if arrivals is None:
        tasks = [work() for _ in range(min(place.concurrency, len(prompts)))]
    else:
        due = zip(prompts, arrivals, strict=True)
        tasks = [arrive(order, prompt, at) for order, (prompt, at) in enumerate(due)]
    cut = True
    try:
        await asyncio.gather(*tasks)
        cut = False
    finally:
        run = Run(
            mode=place.mode,
            concurrency=place.concurrency,
            repeat=place.repeat,
            chunk=place.chunk,
            category=category,
            wall_ms=1000 * (time.perf_counter() - began),
            samples=sorted(samples, key=lambda sample: (sample.order, sample.turn)),
            rate=place.rate,
            phase=place.phase,
            cut=cut,
        )
        if samples:
            runs.append(run)
    return run


def empty(place: Place, prompt: Prompt, order: int, turn: int, sent_ms: float) -> Sample:
    """The sample of a request that is about to be sent."""
    return Sample(
        mode=place.mode,
        concurrency=place.concurrency,
        repeat=place.repeat,
        chunk=place.chunk,
        category=prompt.category,
        question=prompt.question_id,
        rate=place.rate,
        phase=place.phase,
        order=order,
        turn=turn,
        sent_ms=round(sent_ms, 3),
    )


def failed(sample: Sample, fault: Fault) -> Sample:
    return msgspec.structs.replace(sample, failure=fault.kind, error=str(fault))


def measured(sample: Sample, answer: Answer) -> Sample:
    spec = answer.spec
    return msgspec.structs.replace(
        sample,
        tokens=answer.tokens,
        counted=answer.counted,
        prompt_tokens=answer.prompt_tokens,
        ttft_ms=answer.ttft_ms if answer.ttft_ms is not None else answer.e2e_ms,
        e2e_ms=answer.e2e_ms,
        gaps_ms=answer.gaps_ms,
        steps=spec.num_spec_steps,
        drafted=spec.num_draft_tokens,
        accepted=spec.num_accepted_draft_tokens,
        histogram=list(spec.acceptance_histogram),
        drafters=dict(spec.drafters),
        drafted_by={
            name: (part.num_draft_tokens, part.num_accepted_draft_tokens)
            for name, part in spec.drafted_by.items()
        },
        positions=positions(answer.steps),
        text=hashlib.sha256(answer.text.encode()).hexdigest()[:16],
    )
