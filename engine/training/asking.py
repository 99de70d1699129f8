"""Asks our own engine many things, as many at a time as it decodes together."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from controller.contract import Controller
from engine.build import Target, open_engine
from engine.config import EngineConfig
from engine.errors import RequestError
from engine.request import Request
from engine.training.job import Say
from engine.training.journal import Journal
from engine.wire import Deltas, Failed, Finished, PromptLogprobs, Sampling, Submit


@dataclass(frozen=True)
class Question:
    """A prompt as token ids, and how its answer is drawn."""

    prompt: tuple[int, ...]
    sampling: Sampling


Answered = Callable[[int, list[int]], None]
"""(number, the answer's token ids). No ids: the engine could not answer it."""


class Asking:
    """One engine over a loaded target."""

    def __init__(self, target: Target, config: EngineConfig, controller: Controller) -> None:
        self.engine, self._intake = open_engine(config, target, controller, self._told)
        self._outstanding = config.max_batch + min(config.max_batch, config.max_waiting)
        self._asked: dict[str, tuple[int, Request]] = {}
        self._ended: list[tuple[int, list[int]]] = []

    def ask(self, questions: Iterable[tuple[int, Question]], answered: Answered) -> None:
        """Answer all of them, each with its number; `answered` is called as each one ends."""
        waiting = iter(questions)
        more = True
        while more or self._asked:
            while more and len(self._asked) < self._outstanding:
                numbered = next(waiting, None)
                if numbered is None:
                    more = False
                else:
                    self._submit(*numbered)
            self.engine.step()
            for number, tokens in self._ended:
                answered(number, tokens)
            self._ended.clear()

    def fill(
        self,
        journal: Journal,
        numbers: Sequence[int],
        question: Callable[[int], Question],
        stage: str,
        say: Say,
        seconds: float = 0.0,
    ) -> None:
        """Answer into the journal what it lacks of these numbers. What the engine fails to answer
        is still lacking then, and is asked again by the next run. seconds: ask for no more after so
        long, 0 never."""
        missing = [number for number in numbers if number not in journal.texts]
        total, done = max(1, len(numbers)), len(numbers) - len(missing)
        made, begin = 0, time.monotonic()

        def answered(number: int, tokens: list[int]) -> None:
            nonlocal done, made
            if tokens:
                journal.add(number, tokens)
            done += 1
            made += len(tokens)
            rate = made / max(time.monotonic() - begin, 1e-9)
            say(stage, done / total, f"{done:,} of {total:,}, {rate:,.0f} tokens/s")

        def wanted() -> Iterator[int]:
            for number in missing:
                if seconds and time.monotonic() - begin > seconds:
                    return
                yield number

        try:
            self.ask(((number, question(number)) for number in wanted()), answered)
        finally:
            journal.write()

    def _submit(self, number: int, question: Question) -> None:
        name = str(number)
        submit = Submit(id=name, sampling=question.sampling, prompt_ids=question.prompt)
        try:
            request = self._intake.request(submit)
        except RequestError:
            self._ended.append((number, []))
            return
        self._asked[name] = (number, request)
        self.engine.submit(request)

    def _told(self, message: Deltas | PromptLogprobs | Finished | Failed) -> None:
        if isinstance(message, Finished | Failed):
            number, request = self._asked.pop(message.id)
            tokens = request.tokens[request.prompt_length :]
            self._ended.append((number, tokens if isinstance(message, Finished) else []))
