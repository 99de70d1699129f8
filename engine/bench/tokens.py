"""Tokens per target step of drafters, through the engine: every step counts, D = 0 too."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType

import msgspec
import numpy as np

from controller.cost import CostModel
from engine.bench.job import Prompt
from engine.bench.modes import Mode, controller, setting
from engine.bench.tally import Result
from engine.bench.timing import Timed
from engine.build import Target, open_engine
from engine.config import EngineConfig
from engine.drafters.base import Drafter
from engine.drafters.corpus import CorpusHolder
from engine.loop import Engine
from engine.request import Request
from engine.wire import Deltas, Failed, Finished, Message, PromptLogprobs, Sampling, Submit

Done = Callable[[int], None]
"""Called with the number of prompts answered since the last call."""


class Run:
    """One mode over prompts, on a fresh engine: nothing is known from another mode's answers.

    models: drafters with a model of their own by name; those of the mode are attached to the engine
    until the run is closed. cost: what steps cost, for priced modes."""

    def __init__(
        self,
        target: Target,
        config: EngineConfig,
        mode: Mode,
        corpus: Sequence[Sequence[int]] = (),
        models: Mapping[str, Drafter] | None = None,
        cost: CostModel | None = None,
    ) -> None:
        config = msgspec.structs.replace(config, prefix_cache="off", mtp="off", draft_model="off")
        self._controller = controller(mode, config.max_draft_length, cost)
        self.engine, self.intake = open_engine(config, target, self._controller, _ignore)
        self._timed = _timed(self.engine)
        self._attached = [name for name in mode.drafters if name in (models or {})]
        for name in self._attached:
            self.engine.attach((models or {})[name])
        self._controller.configure(setting(mode, config.max_draft_length))
        if mode.warm:
            load(self.engine, corpus)

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._controller.configure(setting(Mode("none", ()), 0))
        for name in self._attached:
            self.engine.detach(name)

    def answer(
        self,
        prompts: Sequence[Prompt],
        max_tokens: int,
        concurrency: int,
        done: Done,
        temperature: float = 0.0,
    ) -> Result:
        """Answers, `concurrency` requests at a time; above temperature 0 each with its number as
        seed."""
        result = Result()
        categories: dict[int, str] = {}
        full = min(concurrency, len(prompts))
        self._controller.listener = lambda outcome: result.step(outcome, categories, full)
        before = sum(drafter.seconds for drafter in self._timed)
        begin = time.thread_time()
        waiting = list(enumerate(prompts))
        running: list[tuple[Prompt, Request]] = []
        while waiting or running:
            while waiting and len(running) < concurrency:
                number, prompt = waiting.pop(0)
                request = self._submit(number, prompt, max_tokens, temperature)
                categories[request.id] = prompt.category
                running.append((prompt, request))
            self.engine.step()
            ended = [pair for pair in running if pair[1].output.finish_reason is not None]
            for prompt, request in ended:
                result.whole.add(request)
                result.category(prompt.category).add(request)
            running = [pair for pair in running if pair[1].output.finish_reason is None]
            done(len(ended))
        result.steps_s = time.thread_time() - begin
        result.drafting_s = sum(drafter.seconds for drafter in self._timed) - before
        self._controller.listener = None
        return result

    def _submit(self, number: int, prompt: Prompt, max_tokens: int, temperature: float) -> Request:
        sampling = Sampling(
            temperature=temperature, max_tokens=max_tokens, seed=number if temperature else None
        )
        messages = (Message("user", prompt.text),)
        request = self.intake.request(Submit(id=f"{number}", sampling=sampling, messages=messages))
        self.engine.submit(request)
        return request


def load(engine: Engine, corpus: Sequence[Sequence[int]]) -> None:
    """Give the corpus to the drafters that take one, and wait until it is indexed."""
    lengths = np.array([len(text) for text in corpus], dtype=np.int64)
    tokens = np.array([token for text in corpus for token in text], dtype=np.int32)
    for drafter in engine.drafting.drafters.values():
        if isinstance(drafter, CorpusHolder):
            drafter.put_corpus("bench", tokens, lengths, first=True)
    while engine.upkeep():
        pass


def _timed(engine: Engine) -> list[Timed]:
    """Puts a clock around every drafter of the engine."""
    timed: list[Timed] = []
    for guarded in engine.drafting.guarded.values():
        clock = Timed(guarded.drafter)
        guarded.drafter = clock
        timed.append(clock)
    return timed


def _ignore(message: Deltas | PromptLogprobs | Finished | Failed) -> None:
    if isinstance(message, Failed):
        raise RuntimeError(f"request {message.id} failed: {message.message}")
