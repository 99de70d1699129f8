"""Tokens per target step of drafters, through the engine: every step counts, D = 0 too."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np
from numpy.typing import NDArray

from controller.contract import Setting, StepOutcome
from controller.controller import AdaptiveController
from controller.cost import CostModel
from engine.bench.job import Prompt
from engine.bench.timing import Timed
from engine.build import Target, open_engine
from engine.config import EngineConfig
from engine.drafters.corpus import CorpusHolder
from engine.drafters.registry import DRAFTERS
from engine.loop import Engine
from engine.request import Request
from engine.wire import Deltas, Failed, Finished, Message, PromptLogprobs, Sampling, Submit

Done = Callable[[int], None]
"""Called with the number of prompts answered since the last call."""

FREE_MS = 1000.0
"""What a step costs at any number of rows where rows are free."""


@dataclass(frozen=True)
class Mode:
    """drafters: those that may draft; with several the controller chooses one per request and
    step. warm: the corpus is loaded first."""

    name: str
    drafters: tuple[str, ...]
    warm: bool = False


@dataclass
class Tally:
    """Of requests: verify steps, tokens they committed, drafted and accepted tokens, prompts.
    The token that a prefill gives is no step's and not counted."""

    prompts: int = 0
    steps: int = 0
    tokens: int = 0
    drafted: int = 0
    accepted: int = 0

    def add(self, request: Request) -> None:
        self.prompts += 1
        self.steps += request.steps
        self.tokens += max(0, request.produced - 1)
        self.drafted += request.drafted
        self.accepted += request.accepted

    def numbers(self) -> dict[str, float]:
        steps, drafted = max(1, self.steps), max(1, self.drafted)
        return {
            "prompts": self.prompts,
            "steps": self.steps,
            "tokens": self.tokens,
            "tokens_per_step": round(self.tokens / steps, 4),
            "drafted_per_step": round(self.drafted / steps, 4),
            "acceptance_rate": round(self.accepted / drafted, 4),
        }


@dataclass
class Result:
    """Of one run of one mode. drafting_s: CPU seconds of the drafters; steps_s: of whole steps in
    the loop's own thread."""

    whole: Tally = field(default_factory=Tally)
    by_category: dict[str, Tally] = field(default_factory=dict)
    drafting_s: float = 0.0
    steps_s: float = 0.0


class FreeRows(CostModel):
    """Every step costs the same, whatever its rows: the controller then drafts for the most
    tokens per step, and chooses between drafters by what they are expected to get accepted."""

    def verify_ms(self, requests: int, rows: int, context_tokens: int) -> float:
        return FREE_MS

    def verify_curve(self, requests: int, extra: int, context_tokens: int) -> NDArray[np.float64]:
        return np.full(extra + 1, FREE_MS)

    def overhead_ms(self, requests: int, drafting: bool) -> float:
        return 0.0

    def observe(self, outcome: StepOutcome, looked: bool = True) -> None:
        pass


def controller(mode: Mode, draft_length: int) -> AdaptiveController:
    """Drafts with the mode's drafters only: always `draft_length` tokens with a single one,
    otherwise as FreeRows says."""
    setting = Setting(mode="off", max_draft_length=draft_length)
    if len(mode.drafters) == 1:
        setting = Setting("pinned", mode.drafters[0], draft_length, draft_length)
    elif mode.drafters:
        setting = Setting(max_draft_length=draft_length)
    chosen = AdaptiveController(tuple(DRAFTERS), FreeRows(), setting)
    for name in DRAFTERS:
        chosen.set_enabled(name, name in mode.drafters)
    return chosen


class Run:
    """One mode over prompts, on a fresh engine: nothing is known from another mode's answers."""

    def __init__(
        self, target: Target, config: EngineConfig, mode: Mode, corpus: Sequence[Sequence[int]]
    ) -> None:
        config = msgspec.structs.replace(config, prefix_cache="off")
        chosen = controller(mode, config.max_draft_length)
        self.engine, self.intake = open_engine(config, target, chosen, _ignore)
        if mode.warm:
            load(self.engine, corpus)
        self._timed = _timed(self.engine)

    def answer(
        self, prompts: Sequence[Prompt], max_tokens: int, concurrency: int, done: Done
    ) -> Result:
        """Greedy answers, `concurrency` requests at a time."""
        result = Result()
        before = sum(drafter.seconds for drafter in self._timed)
        begin = time.thread_time()
        waiting = list(enumerate(prompts))
        running: list[tuple[Prompt, Request]] = []
        while waiting or running:
            while waiting and len(running) < concurrency:
                number, prompt = waiting.pop(0)
                running.append((prompt, self._submit(f"{number}", prompt, max_tokens)))
            self.engine.step()
            ended = [pair for pair in running if pair[1].output.finish_reason is not None]
            for prompt, request in ended:
                result.whole.add(request)
                result.by_category.setdefault(prompt.category, Tally()).add(request)
            running = [pair for pair in running if pair[1].output.finish_reason is None]
            done(len(ended))
        result.steps_s = time.thread_time() - begin
        result.drafting_s = sum(drafter.seconds for drafter in self._timed) - before
        return result

    def _submit(self, name: str, prompt: Prompt, max_tokens: int) -> Request:
        sampling = Sampling(temperature=0.0, max_tokens=max_tokens)
        messages = (Message("user", prompt.text),)
        request = self.intake.request(Submit(id=name, sampling=sampling, messages=messages))
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
