"""The real model through a pool that is too small: preemption and prefix hits change no text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import msgspec

from engine.build import Target, open_engine
from engine.config import EngineConfig
from engine.intake import Intake
from engine.loop import Engine
from engine.request import Request
from engine.wire import Message, Sampling, Submit
from tests.engine.exactness import Outcome, compare
from tests.engine.scripted import ScriptedController

PROMPTS = ["Count from one to ten, again and again.", "Say red, green, blue, again and again."]
TOKENS = 40
PAGES = 8
"""Both prompts fit, both answers do not."""


def opened(target: Target, config: EngineConfig, longest: int) -> tuple[Engine, Intake]:
    controller = ScriptedController(lambda step, request, names: ("ngram", step % (1 + longest)))
    return open_engine(config, target, controller, lambda event: None)


def answers(engine: Engine, intake: Intake, turn: str) -> list[Request]:
    """Both requests, together from first to last token; pages checked after every step."""
    requests: list[Request] = []
    for number, prompt in enumerate(PROMPTS):
        sampling = Sampling(temperature=0.0, max_tokens=TOKENS, ignore_eos=True)
        messages = (Message("user", prompt),)
        submit = Submit(id=f"{turn}{number}", sampling=sampling, messages=messages)
        requests.append(intake.request(submit))
        engine.submit(requests[-1])
    while engine.step():
        engine.scheduler.pages.check()
    return requests


def output(requests: Sequence[Request]) -> list[list[int]]:
    return [request.tokens[request.prompt_length :] for request in requests]


def test_text_through_preemption_and_prefix_hits_is_plain_decodings(
    target: Target, config: EngineConfig
) -> None:
    uncached = msgspec.structs.replace(config, prefix_cache="off")
    plain = output(answers(*opened(target, uncached, 0), "plain"))
    small = replace(target, pool=replace(target.pool, pages=PAGES))
    engine, intake = opened(small, config, 5)
    for turn in ("preempted", "hit"):
        requests = answers(engine, intake, turn)
        assert sum(request.accepted for request in requests) > 0, "nothing was speculated"
        texts = output(requests)
        assert [len(text) for text in texts] == [TOKENS, TOKENS]
        outcome = Outcome(turn, len(PROMPTS), tokens=2 * TOKENS)
        compare(target, PROMPTS, plain, texts, outcome)
        assert outcome.good, outcome
        if turn == "preempted":
            assert engine.scheduler.preemptions > 0, "the pool was not small enough"
    assert engine.scheduler.prefix_hit_tokens > 0
    assert engine.scheduler.pages.free == PAGES
