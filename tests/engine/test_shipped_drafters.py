"""The trained drafters that ship for the embedded model, found by themselves, on the real model."""

from __future__ import annotations

import msgspec
import pytest

from engine.build import Target, open_target
from engine.config import EngineConfig
from engine.draft_models.sources import NAMES
from tests.engine.exactness import PLAIN, Arm, anything, compare, decode
from tests.engine.scripted import ScriptedController

PROMPTS = [
    "What is the capital of France? Say something about its history.",
    "Write a Python function that says whether a number is prime.",
    "Tom has 3 apples and buys 5 more. He gives 2 away. How many has he left?",
    "Explain why the sky is blue.",
]
TOKENS = 64
LEAST = {"mtp": 1.4, "draft_model": 1.2}
"""Tokens of a step with three drafted tokens; a random drafter gets 1.0."""


@pytest.fixture(scope="module")
def config(config: EngineConfig) -> EngineConfig:
    return msgspec.structs.replace(config, mtp="auto", draft_model="auto")


@pytest.fixture(scope="module")
def target(config: EngineConfig) -> Target:
    return open_target(config, lambda stage, fraction, message: None)


@pytest.fixture(scope="module")
def plain(config: EngineConfig, target: Target) -> list[list[int]]:
    return decode(target, config, PLAIN, PROMPTS, TOKENS, 1)[0]


@pytest.mark.parametrize("name", list(NAMES))
def test_it_drafts_what_the_target_writes(
    name: str, config: EngineConfig, target: Target, plain: list[list[int]]
) -> None:
    arm = Arm(name, lambda _: ScriptedController(lambda s, r, n: (name, 3)))
    texts, outcome = decode(target, config, arm, PROMPTS, TOKENS, 1)
    compare(target, PROMPTS, plain, texts, outcome)
    assert outcome.good
    assert outcome.tokens / outcome.forwards > LEAST[name]


def test_any_drafter_at_any_length_leaves_the_text_as_it_is(
    config: EngineConfig, target: Target, plain: list[list[int]]
) -> None:
    texts, outcome = decode(target, config, anything(3), PROMPTS, TOKENS, len(PROMPTS))
    compare(target, PROMPTS, plain, texts, outcome)
    assert outcome.good
