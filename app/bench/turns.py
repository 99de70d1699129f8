"""Engines in turn on batch after batch of token ids: ours over HTTP, peers in their processes."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import time
from collections.abc import Callable, Generator, Sequence
from typing import Annotated, Any, Protocol

import httpx
import msgspec
from msgspec import Meta

from app.bench.arms import Arm
from app.bench.client import Place, Run, empty
from app.bench.peers.process import PeerError
from app.bench.prompts import category
from app.bench.schedule import rotated
from app.bench.workloads import Prompt
from app.failures import Failure
from app.foreign_json import decode
from app.progress import Bars
from app.remote import reason

REQUEST_S = 1800.0
WARM_UP_TOKENS = 8

Ids = Sequence[Sequence[int]]


class Engine(Protocol):
    """Ours or a peer. Raises PeerError when it fails."""

    name: str
    batches: bool

    async def generate(self, prompts: Ids, max_tokens: int) -> tuple[float, list[list[int]]]: ...


TokenIds = list[Annotated[int, Meta(ge=0)]]


class OfChoice(msgspec.Struct, frozen=True):
    token_ids: TokenIds


class Completion(msgspec.Struct, frozen=True):
    choices: Annotated[list[OfChoice], Meta(min_length=1)]


class Tokenized(msgspec.Struct, frozen=True):
    tokens: TokenIds


class Ours:
    """One mode of our server, over HTTP: its answers travel, the peers' do not.

    A prompt that comes again gets another cache salt: nothing of its first answer is found, as the
    peers find nothing of theirs."""

    batches = True

    def __init__(self, arm: Arm, client: httpx.AsyncClient, salt: str) -> None:
        self.name = arm.name
        self._client = client
        self._salt = f"compare-{salt}-{arm.name}"
        self._asked: dict[tuple[int, ...], int] = {}
        self._body: dict[str, Any] = {
            "model": arm.model,
            "temperature": 0,
            "ignore_eos": True,
            "return_token_ids": True,
        }
        if arm.wish is not None:
            self._body["speculation"] = arm.wish

    async def generate(self, prompts: Ids, max_tokens: int) -> tuple[float, list[list[int]]]:
        keys = [tuple(prompt) for prompt in prompts]
        turn = 1 + max(self._asked.get(key, 0) for key in keys)
        self._asked |= dict.fromkeys(keys, turn)
        body = {**self._body, "cache_salt": f"{self._salt}-{turn}", "max_tokens": max_tokens}
        began = time.perf_counter()
        tokens = await asyncio.gather(*(self._one({**body, "prompt": key}) for key in keys))
        return time.perf_counter() - began, tokens

    async def _one(self, body: dict[str, Any]) -> list[int]:
        try:
            answer = await self._client.post("/v1/completions", json=body, timeout=REQUEST_S)
            if answer.status_code != 200:
                raise PeerError(f"HTTP {answer.status_code}: {reason(answer)}")
            return decode(answer.content, Completion).choices[0].token_ids
        except (httpx.HTTPError, msgspec.MsgspecError) as error:
            raise PeerError(f"{type(error).__name__}: {error}") from None


class Turns:
    """The engines in turn on batch after batch. One that fails is dropped, and said."""

    def __init__(
        self,
        engines: dict[str, Engine],
        prompts: Sequence[Prompt],
        ids: Ids,
        options: argparse.Namespace,
        told: dict[str, str],
    ) -> None:
        self._engines, self._prompts, self._ids = engines, prompts, ids
        self._options, self._told = options, told

    async def run(self, runs: list[Run], bars: Bars) -> None:
        for name in list(self._engines):
            bars.update("bench", 0.0, f"warming up {name}")
            with self._dropping(name):
                await self._engines[name].generate(self._ids[:1], WARM_UP_TOKENS)
        batches = [
            (repeat, size, number)
            for repeat in range(self._options.repeat)
            for size in self._options.concurrency
            for number in range(len(self._prompts) // size)
        ]
        for done, (repeat, size, number) in enumerate(batches):
            if not self._engines:
                break
            bars.update("bench", done / len(batches), f"batch {done + 1} of {len(batches)}")
            for name in rotated(list(self._engines), done):
                if name in self._engines and (size == 1 or self._engines[name].batches):
                    runs.append(await self._batch(Place(name, size, repeat, number)))

    async def _batch(self, place: Place) -> Run:
        """A batch of one engine. Every request counts as taking as long as the whole batch, since
        the peers tell no more."""
        begin = place.chunk * place.concurrency
        chosen = slice(begin, begin + place.concurrency)
        prompts, ids = self._prompts[chosen], self._ids[chosen]
        samples = [empty(place, prompt, order, 0, 0.0) for order, prompt in enumerate(prompts)]
        wall_ms = 0.0

        def fail(error: PeerError) -> None:
            for order, sample in enumerate(samples):
                samples[order] = msgspec.structs.replace(sample, failure="failed", error=str(error))

        with self._dropping(place.mode, fail):
            seconds, tokens = await self._engines[place.mode].generate(
                ids, self._options.max_tokens
            )
            wall_ms = 1000 * seconds
            samples = [
                msgspec.structs.replace(
                    sample,
                    tokens=len(found),
                    e2e_ms=wall_ms,
                    text=hashlib.sha256(repr(list(found)).encode()).hexdigest()[:16],
                )
                for sample, found in zip(samples, tokens, strict=True)
            ]
        return Run(
            mode=place.mode,
            concurrency=place.concurrency,
            repeat=place.repeat,
            chunk=place.chunk,
            category=category(prompts),
            wall_ms=wall_ms,
            samples=samples,
        )

    @contextlib.contextmanager
    def _dropping(
        self, name: str, on_failed: Callable[[PeerError], None] = lambda error: None
    ) -> Generator[None]:
        try:
            yield
        except PeerError as error:
            del self._engines[name]
            self._told[name] = f"dropped: {error}"
            on_failed(error)


def left_out(prompts: int, sizes: Sequence[int]) -> dict[int, int]:
    """By batch size, how many prompts make no whole batch and are not run: in a shorter one fewer
    requests would run at once than its row says. Only sizes that leave some out."""
    return {size: rest for size in sizes if (rest := prompts % size)}


async def token_ids(client: httpx.AsyncClient, name: str, prompt: Prompt) -> list[int]:
    """The prompt under the model's chat template, as all engines get it. Raises Failure."""
    body = {"model": name, "messages": [{"role": "user", "content": prompt.text}]}
    try:
        answer = await client.post("/tokenize", json=body, timeout=60.0)
        if answer.status_code == 200:
            return decode(answer.content, Tokenized).tokens
        why = reason(answer)
    except (httpx.HTTPError, msgspec.MsgspecError) as error:
        why = f"{type(error).__name__}: {error}"
    raise Failure(f"Prompt {prompt.question_id} cannot be tokenised: {why}")
