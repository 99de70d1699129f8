"""Runs a benchmark's groups, the arms in turn, and keeps what each request did."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

import httpx
import msgspec

from app.bench.arms import Arm
from app.bench.client import Place, Run, Sender, drawing, run_chunk
from app.bench.prompts import MIXED
from app.bench.schedule import Group, Slice, rotated
from app.bench.workloads import Prompt
from app.failures import Failure
from app.progress import Bars

WARM_UP_TOKENS = 16


class Measurement(msgspec.Struct):
    """How to measure. positions: ask our server where each token came from, which acceptance by
    position needs. ignore_eos: every answer has max_tokens."""

    arms: Sequence[Arm]
    groups: Sequence[Group]
    max_tokens: int = 128
    temperature: float = 0.0
    ignore_eos: bool = False
    repeat: int = 1
    warm_up: int = 1
    stall_s: float = 60.0
    all_turns: bool = False
    positions: bool = False

    @property
    def requests(self) -> int:
        """How many conversations it runs."""
        once = sum(len(one.prompts) for group in self.groups for one in group)
        return once * len(self.arms) * self.repeat

    async def run(self, runs: list[Run], bars: Bars) -> None:
        """Run all groups and put each slice on `runs` as it is done: what was measured is there
        whatever ends the run. For each group the arms follow one another, so that drift of the
        machine meets all alike. Each arm and repeat has a cache salt of its own: it finds neither
        prompts nor answers of another. Raises Failure when an arm does not answer at all."""
        run_id = secrets.token_hex(4)
        total, done = self.requests, 0

        def count() -> None:
            nonlocal done
            done += 1
            bars.update("bench", done / total, f"{done} of {total} requests")

        async with self._senders() as senders:
            await self._warm_up(senders, bars)
            for repeat in range(self.repeat):
                for number, group in enumerate(self.groups):
                    for name in rotated([arm.name for arm in self.arms], number + repeat):
                        for one in group:
                            sender = self._slice_sender(senders[name], one, f"{run_id}-{repeat}")
                            place = Place(
                                name, one.concurrency, repeat, one.number, one.rate, one.phase
                            )
                            await run_chunk(
                                sender,
                                one.prompts,
                                one.category,
                                place,
                                count,
                                runs,
                                one.arrivals,
                            )

    @contextlib.asynccontextmanager
    async def _senders(self) -> AsyncGenerator[dict[str, Sender]]:
        async with contextlib.AsyncExitStack() as stack:
            found: dict[str, Sender] = {}
            for arm in self.arms:
                client = await stack.enter_async_context(client_of(arm))
                limit = "max_completion_tokens" if arm.ours else "max_tokens"  # older servers
                found[arm.name] = Sender(
                    client, self._body(arm), self.max_tokens, limit, self.stall_s, self.all_turns
                )
            yield found

    async def _warm_up(self, senders: Mapping[str, Sender], bars: Bars) -> None:
        prompts = [prompt for group in self.groups for one in group for prompt in one.prompts]
        for arm in self.arms:
            bars.update("bench", 0.0, f"warming up {arm.name}")
            sender = msgspec.structs.replace(
                senders[arm.name], max_tokens=WARM_UP_TOKENS, all_turns=False
            )
            chosen = [
                Prompt(prompt.question_id, prompt.category, prompt.turns)
                for prompt in prompts[: self.warm_up]
            ]
            run = await run_chunk(sender, chosen, MIXED, Place(arm.name, 1), lambda: None, [])
            for sample in run.samples:
                if sample.error:
                    what = f"Mode {arm.name}" if arm.ours else f"Arm {arm.name} ({arm.url})"
                    raise Failure(f"{what} does not work on this server: {sample.error}")

    def _slice_sender(self, sender: Sender, one: Slice, run_id: str) -> Sender:
        body = dict(sender.body)
        if one.temperature is not None:
            body |= drawing(one.temperature)
        if "cache_salt" in body:
            load = "phases" if one.phase else f"{one.concurrency}-{one.rate:g}"
            body["cache_salt"] = f"bench-{run_id}-{body['cache_salt']}-{load}"
        most = one.max_tokens or sender.max_tokens
        return msgspec.structs.replace(sender, body=body, max_tokens=most)

    def _body(self, arm: Arm) -> dict[str, Any]:
        """The fields that an arm's requests have. Only our server is sent what is ours."""
        body: dict[str, Any] = {
            "model": arm.model,
            "stream": True,
            "stream_options": {"include_usage": True},
            **drawing(self.temperature),
        }
        if self.ignore_eos:
            body["ignore_eos"] = True
        if arm.ours:
            body["cache_salt"] = arm.name
            if arm.wish is not None:
                body["speculation"] = arm.wish
            if self.positions:
                body["stream_options"] = {"include_usage": True, "include_provenance": True}
        return body


def client_of(arm: Arm) -> httpx.AsyncClient:
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    return httpx.AsyncClient(base_url=arm.url, headers=arm.headers, limits=limits, trust_env=False)
