"""A scripted target and drafters for exact token-level tests: a Markov chain over few tokens.

The next token's logits depend on the last token and its position: every law can be enumerated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from controller.contract import (
    NONE,
    Allotment,
    BatchView,
    Decision,
    DrafterInfo,
    Features,
    Offer,
    Plan,
    Setting,
    ShadowScore,
    StepOutcome,
    StepRecord,
    WhatIf,
    Wish,
)
from engine.batch import Batch
from engine.device import Device
from engine.drafters.base import Committed
from engine.drafts import Draft
from engine.draw import Draw
from engine.executor import Executor
from engine.loop import Engine
from engine.output import Output
from engine.pages import Pages
from engine.request import Request
from engine.scheduler import Scheduler
from engine.shape import Attend, Shape
from engine.wire import Deltas, Failed, Finished, Piece, PromptLogprobs

Logits = Callable[[int, int], Sequence[float]]
"""(last token, its position) -> logits of the next token."""


class ScriptedDecoder:
    """Stands where the lean decoder stands; hidden states are (token, position)."""

    def __init__(self, vocabulary: int, logits: Logits) -> None:
        self.shape = Shape(1, 1, 1, 8, 8, vocabulary, 4096)
        self._logits = logits

    def forward(self, ids: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        return torch.stack((ids, positions), dim=1)

    def logits(self, hidden: Tensor) -> Tensor:
        rows = [self._logits(int(token), int(position)) for token, position in hidden.tolist()]
        return torch.tensor(rows, dtype=torch.float32).view(-1, self.shape.vocabulary)


class NoAttention:
    name = "none"

    def plan(self, batch: Batch) -> Attend:
        return lambda layer, q, k, v, sinks=None: q


class PlainText:
    """Detokeniser of the scripted vocabulary: token 3 is the letter d."""

    def add(self, token: int) -> str:
        return chr(ord("a") + token % 26)

    def flush(self) -> str:
        return ""

    def spell(self, token: int) -> tuple[str, bytes]:
        text = self.add(token)
        return text, text.encode()


class ScriptedDrafter:
    """Drafts what `script(tokens, length)` says."""

    kind: Literal["model_free", "model"] = "model_free"

    def __init__(
        self,
        script: Callable[[list[int], int], list[int]],
        name: str = "ngram",
        max_length: int = 16,
    ) -> None:
        self.name = name
        self._script = script
        self._max = max_length
        self.forgotten: list[int] = []

    def admit(self, request: Request) -> None:
        return

    def offer(self, requests: Sequence[Request]) -> list[Offer | None]:
        features = Features(match_length=1)
        return [Offer(request.id, self.name, self._max, features) for request in requests]

    def propose(self, requests: Sequence[Request], lengths: Sequence[int]) -> list[Draft]:
        return [
            Draft(self._script(request.tokens, length))
            for request, length in zip(requests, lengths, strict=True)
        ]

    def commit(self, commits: Sequence[Committed]) -> list[tuple[ShadowScore, ...]]:
        return [()] * len(commits)

    def forget(self, request: int) -> None:
        self.forgotten.append(request)


class ScriptedTail(ScriptedDrafter):
    """Also continues other drafts, as `script` says of the text with the draft."""

    def extend(
        self,
        requests: Sequence[Request],
        drafts: Sequence[Sequence[int]],
        lengths: Sequence[int],
    ) -> list[Sequence[int]]:
        return [
            self._script([*request.tokens, *draft], length)
            for request, draft, length in zip(requests, drafts, lengths, strict=True)
        ]


class ScriptedController:
    """Allots what `choose(step, request id, names on offer)` says."""

    attentive = True

    def __init__(self, choose: Callable[[int, int, list[str]], tuple[str, int]]) -> None:
        self._choose = choose
        self.setting = Setting()
        self.outcomes: list[StepOutcome] = []

    def configure(self, setting: Setting) -> None:
        self.setting = setting

    def set_enabled(self, drafter: str, enabled: bool) -> None:
        return

    def add_drafter(self, drafter: DrafterInfo) -> None:
        return

    def remove_drafter(self, name: str) -> None:
        return

    def plan(self, batch: BatchView, offers: Sequence[Offer]) -> Plan:
        offered: dict[int, list[str]] = {view.id: [] for view in batch.requests}
        for offer in offers:
            offered[offer.request].append(offer.drafter)
        allotments = []
        for view in batch.requests:
            names = offered[view.id]
            drafter, length = self._choose(batch.step, view.id, names)
            length = min(length, view.remaining - 1)
            chosen = drafter in names and length > 0
            allotments.append(
                Allotment(view.id, drafter, length) if chosen else Allotment(view.id, NONE, 0)
            )
        return Plan(tuple(allotments))

    def observe(self, outcome: StepOutcome) -> None:
        self.outcomes.append(outcome)

    def forget(self, request: int) -> None:
        return

    def take_decisions(self) -> list[Decision]:
        return []

    def take_step_records(self) -> list[StepRecord]:
        return []

    def harm_totals(self) -> None:
        return None

    def what_if(self, batch_size: int, context_len: int) -> WhatIf:
        raise NotImplementedError

    def report(self) -> dict[str, object]:
        return {}


class Harness:
    """An engine over the scripted target; `run` gives each request's output tokens."""

    def __init__(
        self,
        vocabulary: int,
        logits: Logits,
        drafters: Sequence[ScriptedDrafter] = (),
        choose: Callable[[int, int, list[str]], tuple[str, int]] = lambda s, r, n: (NONE, 0),
        *,
        pages: int = 4096,
        max_batch: int = 4096,
        max_waiting: int = 4096,
        chunk_rows: int = 4096,
    ) -> None:
        device = Device(torch.device("cpu"), torch.float32)
        decoder: Any = ScriptedDecoder(vocabulary, logits)
        self.executor = Executor(decoder, NoAttention(), device, 4)
        self.executor._generator.manual_seed(1234)
        self.events: list[Deltas | PromptLogprobs | Finished | Failed] = []
        self.controller = ScriptedController(choose)
        self.engine = Engine(
            self.executor,
            Scheduler(Pages(pages, 4), max_batch, max_waiting, chunk_rows),
            list(drafters),
            self.controller,
            16,
            self.events.append,
        )
        self._next = 0

    def add(
        self,
        prompt: Sequence[int],
        max_tokens: int,
        draw: Draw | None = None,
        *,
        stop: Sequence[str] = (),
        end_ids: frozenset[int] = frozenset(),
        stop_token_ids: frozenset[int] = frozenset(),
        priority: int = 0,
    ) -> Request:
        self._next += 1
        text: Any = PlainText()
        request = Request(
            id=self._next,
            name=f"r{self._next}",
            tokens=list(prompt),
            prompt_length=len(prompt),
            max_tokens=max_tokens,
            draw=draw or Draw(),
            wish=Wish(),
            tenant="",
            output=Output(
                text,
                stop=stop,
                end_ids=end_ids,
                stop_token_ids=stop_token_ids,
                max_tokens=max_tokens,
                min_tokens=(draw or Draw()).min_tokens,
            ),
            arrived=0.0,
            priority=priority,
        )
        self.engine.submit(request)
        return request

    def drain(self) -> None:
        """Step until idle; all pages add up after every step."""
        while self.engine.step():
            self.engine.scheduler.pages.check()

    def pieces(self, request: Request) -> list[Piece]:
        return [
            piece
            for event in self.events
            if isinstance(event, Deltas)
            for delta in event.items
            if delta.id == request.name
            for piece in delta.pieces
        ]

    def end(self, request: Request) -> Finished | Failed:
        for event in self.events:
            if isinstance(event, Finished | Failed) and event.id == request.name:
                return event
        raise AssertionError(f"{request.name} has not ended")
