"""The stage that has the target answer prompts, and write some itself, with our own engine."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from controller.contract import Controller, Setting
from controller.controller import AdaptiveController
from controller.cost import CostModel
from engine.build import Target, adaptive, calibrate, open_target
from engine.drafters.registry import DRAFTERS
from engine.errors import RequestError, StartError
from engine.training.answers import Answers, run_of, write_answers
from engine.training.asking import Asking, Question
from engine.training.job import Generate, Say
from engine.training.journal import Ids, Journal
from engine.training.model_digest import template_digest, weights_digest
from engine.training.overlap import Overlap
from engine.training.own_prompts import Sieve, Writer
from engine.training.prompts import frame, read_prompts, read_texts
from engine.training.seeds import seed_of
from engine.wire import Message, Sampling


def generate(job: Generate, say: Say) -> dict[str, Any]:
    """Write the file of answers; what an interrupted run had is taken over. Raises StartError."""
    given = [one.text for one in read_prompts(job.prompts)] if job.prompts else []
    excluded = read_texts(job.exclude)
    target = open_target(job.config, say)
    points = calibrate(job.config, target, say).points if job.speculation else None
    controller = plain() if points is None else adaptive(job.config, points)
    asking = Asking(target, job.config, controller)
    return Generation(job, target, asking, say).run(given, excluded)


def plain() -> Controller:
    """Nothing is drafted."""
    return AdaptiveController(tuple(DRAFTERS), CostModel(), Setting(mode="off"))


class Generation:
    """One run over a loaded target. Its file and its parts depend on the job, the prompts and the
    model, not on where and how fast the texts are made."""

    def __init__(self, job: Generate, target: Target, asking: Asking, say: Say) -> None:
        self._job, self._target, self._asking, self._say = job, target, asking, say
        self._out = Path(job.out)
        self._parts = self._out.with_name(self._out.name + ".parts")

    def run(self, given: Sequence[str], excluded: Sequence[str]) -> dict[str, Any]:
        """given: prompts of the file. excluded: texts that no prompt may overlap with."""
        run = self._identity(given, excluded)
        try:
            if self._out.exists():
                if run_of(self._out) != run:
                    raise StartError(
                        "out_exists",
                        f"{self._out} exists and was made with other options or prompts, or with "
                        "another model. Give another file, or remove it.",
                    )
                return {"out": str(self._out), "made": False}
            return self._run(run, given, excluded)
        except BrokenPipeError:
            raise  # who is told of the progress is gone
        except OSError as error:
            raise StartError(
                "out_not_writable",
                f"cannot write {error.filename or self._out}: {error.strerror or error}. Free "
                "space there, or give another file.",
            ) from error

    def _run(self, run: str, given: Sequence[str], excluded: Sequence[str]) -> dict[str, Any]:
        job, target = self._job, self._target
        sieve = Sieve(Overlap(excluded))
        texts = [text for text in given if sieve.keeps(text)]
        if job.own_prompts:
            texts += self._own(Journal(self._parts / "prompts", run), sieve)
        prompts = self._rendered(texts)
        if not prompts:
            raise StartError(
                "prompts_empty",
                f"none of the {len(given)} prompts can be used: they overlap with --exclude or "
                "are longer than --longest-prompt.",
            )
        journal = Journal(self._parts / "answers", run)
        wanted = self._wanted(len(prompts))
        question = partial(self._question, prompts, wanted)
        self._asking.fill(
            journal, range(len(wanted)), question, "answers", self._say, seconds=job.seconds
        )
        answers = collect(prompts, wanted, journal, target.text.fingerprint())
        if not len(answers):
            raise StartError(
                "no_answers",
                "no prompt was answered: the engine failed, or --generate-seconds are too few.",
            )
        vocabulary = target.loaded.decoder.shape.vocabulary
        write_answers(self._out, answers, vocabulary, run)
        Journal.remove(self._parts)
        return {
            "out": str(self._out),
            "made": True,
            "prompts": len(prompts),
            "left_out": len(given) + job.own_prompts - len(prompts),
            "answers": len(answers),
            "not_answered": len(wanted) - len(answers),
            "tokens": answers.token_count,
        }

    def _own(self, journal: Journal, sieve: Sieve) -> list[str]:
        job, target = self._job, self._target
        framed = frame(target.text, target.loaded.stop_ids)
        writer = Writer(target.text, framed, job.prompt_tokens, job.seed)
        return writer.prompts(
            job.own_prompts,
            journal,
            sieve,
            lambda tries, ask: self._asking.fill(journal, tries, ask, "prompts", self._say),
        )

    def _rendered(self, texts: Sequence[str]) -> list[Ids]:
        """Under the chat template, without those that are too long."""
        job, shape = self._job, self._target.loaded.decoder.shape
        room = min(job.longest_prompt, shape.context_length - job.answer_tokens)
        try:
            found = (self._target.text.render((Message("user", text),)) for text in texts)
            return [np.array(ids, dtype=np.int32) for ids in found if len(ids) <= room]
        except RequestError as error:
            raise StartError("template_unusable", error.message) from error

    def _wanted(self, prompts: int) -> list[tuple[int, float]]:
        """(prompt, temperature) of every answer. Those to a prompt follow one another, so that
        they share its computed pages."""
        share = self._job.greedy_share
        wanted: list[tuple[int, float]] = []
        for place in range(prompts):
            wanted += [(place, temperature) for temperature in self._job.temperatures]
            if int((place + 1) * share) > int(place * share):
                wanted.append((place, 0.0))
        return wanted

    def _question(
        self, prompts: Sequence[Ids], wanted: Sequence[tuple[int, float]], number: int
    ) -> Question:
        place, temperature = wanted[number]
        sampling = Sampling(
            temperature=temperature,
            seed=seed_of(self._job.seed, "answer", number),
            max_tokens=self._job.answer_tokens,
        )
        return Question(tuple(prompts[place].tolist()), sampling)

    def _identity(self, given: Sequence[str], excluded: Sequence[str]) -> str:
        told = msgspec.to_builtins(self._job)
        for name in ("config", "out", "prompts", "exclude", "speculation", "seconds"):
            del told[name]
        told["model"] = f"{self._target.loaded.architecture} {self._target.loaded.decoder.shape}"
        told["weights"] = weights_digest(self._target.loaded.path)
        told["template"] = template_digest(self._target.text)
        told["tokenizer"] = self._target.text.fingerprint()
        told["texts"] = [given, excluded]
        return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()


def collect(
    prompts: list[Ids], wanted: Sequence[tuple[int, float]], journal: Journal, tokenizer: str
) -> Answers:
    """The answers in order, without those that the engine could not give."""
    given = [number for number in range(len(wanted)) if len(journal.texts.get(number, ()))]
    return Answers(
        prompts=prompts,
        prompt_index=np.array([wanted[number][0] for number in given], dtype=np.int64),
        temperature=np.array([wanted[number][1] for number in given]),
        tokens=[journal.texts[number] for number in given],
        tokenizer=tokenizer,
    )
