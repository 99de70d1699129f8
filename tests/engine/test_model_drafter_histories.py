"""The state of model drafters after any history: cancellations, shortages, failing forwards."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from controller.contract import NONE
from engine.attention import TorchAttention
from engine.draw import Draw
from engine.executor import Executor
from engine.kv import KvPool
from engine.loop import Engine
from engine.pages import Pages
from engine.request import Request
from engine.scheduler import Scheduler
from engine.wire import Deltas, Failed, Finished, PromptLogprobs
from tests.engine.conformance import (
    ATTENTIONS,
    CPU,
    MAX_DRAFT,
    Scenario,
    Subject,
    decode,
    request_of,
    tiny,
)
from tests.engine.model_drafters import draft_model, own_pool, tiny_head
from tests.engine.scripted import ScriptedController
from tests.engine.test_model_drafters import CheckedHead, checked

SIZE, PAGES = 4, 24


class Failing:
    """The target, some of whose next forwards fail before or after the hidden states are read."""

    def __init__(self, model: Any) -> None:
        self.shape = model.shape
        self._model = model
        self.faults: list[tuple[str, type[Exception]]] = []

    def _fail(self, where: str) -> None:
        if self.faults and self.faults[0][0] == where:
            raise self.faults.pop(0)[1](f"a fault {where} the hidden states are read")

    def forward(self, *arguments: Any) -> Tensor:
        self._fail("before")
        return self._model.forward(*arguments)

    def features(self, *arguments: Any) -> tuple[Tensor, Tensor]:
        self._fail("before")
        return self._model.features(*arguments)

    def logits(self, hidden: Tensor) -> Tensor:
        self._fail("after")
        return self._model.logits(hidden)


class History:
    """An engine over the target with the head and with the target itself as a draft model, in which
    anything happens. Whenever the head drafts, CheckedHead compares it with everything computed
    afresh."""

    def __init__(self, subject: Subject, plain: list[list[int]], seed: int) -> None:
        self.chance = random.Random(seed)
        self.subject, self.plain = subject, plain
        self.model = Failing(subject.model)
        self.pages = Pages(PAGES, SIZE)
        pool = own_pool(subject.model.shape, CPU, KvPool((), (), PAGES, SIZE))
        executor = Executor(self.model, TorchAttention(pool, subject.model.shape), CPU, SIZE)
        self.events: list[Deltas | PromptLogprobs | Finished | Failed] = []
        self.engine = Engine(
            executor,
            Scheduler(self.pages, 3, 64, 7),
            (),
            ScriptedController(self.choose),
            MAX_DRAFT,
            self.events.append,
        )
        made: list[CheckedHead] = []
        head = tiny_head(subject.model)
        self.engine.attach(checked(subject, head, made)(pool, CPU, MAX_DRAFT))
        self.engine.attach(draft_model(subject.model, chunk_rows=9)(pool, CPU, MAX_DRAFT))
        self.head = made[0]
        self.requests: list[Request] = []

    def choose(self, step: int, request: int, names: list[str]) -> tuple[str, int]:
        name = self.chance.choices(["mtp", "draft_model", NONE], [3, 2, 4])[0]
        return name, self.chance.randint(1, 6)

    def submit(self) -> None:
        """A prompt, or a later turn: it goes on with a part of the answer."""
        number, which = len(self.requests) + 1, self.chance.randrange(len(self.plain))
        answered = self.chance.choice([0, self.chance.randint(0, 30)])
        prompt = self.plain[which][: len(self.subject.prompts[which]) + answered]
        length = self.chance.randint(1, 20)
        request = request_of(number, f"{number}", prompt, length, Draw())
        request.priority = self.chance.randint(0, 1)
        self.requests.append(request)
        self.engine.submit(request)

    def cancel(self) -> None:
        if self.requests:
            self.engine.cancel(self.chance.choice(self.requests[-4:]).name)

    def fail(self) -> None:
        where, kind = self.chance.choice(["before", "after"]), RuntimeError
        self.model.faults = [(where, kind)] * self.chance.randint(1, 3)

    def run(self, rounds: int) -> None:
        for _ in range(rounds):
            event = self.chance.choices([self.submit, self.cancel, self.fail], [6, 1, 1])[0]
            event()
            for _ in range(self.chance.randint(1, 9)):
                self.step()
        self.model.faults.clear()
        while self.step():
            pass
        ended = {event.id for event in self.events if isinstance(event, Finished | Failed)}
        assert ended == {request.name for request in self.requests}
        assert self.pages.free == PAGES

    def step(self) -> bool:
        more = self.engine.step()
        self.pages.check()
        for request in self.requests:
            length = len(request.tokens)
            assert any(request.tokens == text[:length] for text in self.plain)
            drafted, accepted = request.parts.get("draft_model", (0, 0))
            assert accepted == drafted
        return more


def test_model_drafters_draft_the_same_after_any_history() -> None:
    preemptions = hits = checks = 0
    with torch.no_grad():
        subject = tiny("llama")
        plain = decode(replace(subject, length=52), ATTENTIONS["torch"], Scenario()).texts
        for seed in range(12):
            history = History(subject, plain, seed)
            history.run(40)
            assert history.head.missed == 0, seed
            preemptions += history.engine.scheduler.preemptions
            hits += history.engine.scheduler.prefix_hit_tokens
            checks += history.head.checked
    assert preemptions > 10
    assert hits > 5_000
    assert checks > 500
