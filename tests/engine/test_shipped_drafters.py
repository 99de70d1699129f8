"""The trained drafters that ship for the embedded model, found by themselves, on the real model."""

from __future__ import annotations

import subprocess
import sys

import msgspec
import pytest

from engine.build import Target, open_target
from engine.config import EngineConfig
from engine.draft_models.sources import NAMES
from tests.conftest import ROOT
from tests.engine.exactness import PLAIN, Arm, anything, compare, decode
from tests.engine.scripted import ScriptedController

PROMPTS = [
    "What is the capital of France? Say something about its history.",
    "Write a Python function that says whether a number is prime.",
    "Explain why the sky is blue.",
]
TOKENS = 32
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


def test_a_second_start_imports_no_module_of_a_model(config: EngineConfig, target: Target) -> None:
    """What makes it fast: transformers' model code brings half of torch's compiler with it."""
    assert set(NAMES) <= set(target.drafters), "the first start has opened both"
    code = (
        "import sys, msgspec\n"
        "from engine.build import open_target\n"
        "from engine.config import EngineConfig\n"
        "open_target(msgspec.json.decode(sys.argv[1], type=EngineConfig), lambda *_: None)\n"
        "heavy = ('torch._dynamo', 'sympy', 'transformers.modeling_utils', 'accelerate')\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    command = [sys.executable, "-c", code, msgspec.json.encode(config).decode()]
    again = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert again.stdout.strip() == "[]"
