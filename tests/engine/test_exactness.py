"""The reduced losslessness matrix on the real model; `make exactness` runs the whole one."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from controller.contract import Setting
from engine.build import Target, open_engine
from engine.config import EngineConfig
from engine.wire import Message, Sampling, Submit
from tests.engine.exactness import (
    PLAIN,
    SWITCHING,
    Outcome,
    compare,
    decode,
    fixed,
    matrix,
    random_lengths,
)
from tests.engine.scripted import ScriptedController

PROMPTS = [
    "Repeat this list three times: apple, pear, plum, cherry.",
    "Summarise: The fox saw the crow. The crow had cheese. The fox praised the crow's song. "
    "The crow sang and the cheese fell. The fox ate the cheese.",
    "Write a Python function that adds two numbers, with a docstring and two examples.",
    "Translate to French: The cat sleeps on the red chair. The dog sleeps on the blue chair.",
]
TOKENS = 28


@pytest.fixture(scope="module")
def outcomes(target: Target, config: EngineConfig) -> dict[tuple[str, int], Outcome]:
    together = len(PROMPTS)
    runs = [(fixed(4), 1), (SWITCHING, 1), (PLAIN, together), (random_lengths(3), together)]
    found = matrix(target, config, PROMPTS, TOKENS, runs)
    return {(outcome.arm, outcome.batch): outcome for outcome in found}


@pytest.mark.parametrize(
    ("arm", "batch"),
    [
        ("ngram D=4", 1),
        (SWITCHING.name, 1),
        ("none", len(PROMPTS)),
        ("ngram, D random each step", len(PROMPTS)),
    ],
)
def test_greedy_text_is_plain_decodings(
    outcomes: dict[tuple[str, int], Outcome], arm: str, batch: int
) -> None:
    outcome = outcomes[arm, batch]
    assert outcome.good, outcome


def test_speculation_is_real(outcomes: dict[tuple[str, int], Outcome]) -> None:
    for outcome in outcomes.values():
        assert outcome.forwards == outcome.steps, "a step is one target forward"
    plain, drafted = outcomes["none", 1], outcomes["ngram D=4", 1]
    assert plain.tokens / plain.forwards <= 1.0
    assert drafted.tokens / drafted.forwards > 1.1


def test_the_comparison_sees_one_wrong_token(target: Target, config: EngineConfig) -> None:
    texts, _ = decode(target, config, PLAIN, PROMPTS[:1], 12, 1)
    broken = [[*texts[0][:5], texts[0][5] + 1, *texts[0][6:]]]
    outcome = Outcome("broken", 1, tokens=12)
    compare(target, PROMPTS[:1], texts, broken, outcome)
    assert outcome.wrong == [0]
    assert not outcome.good


def test_a_seeded_request_gives_the_same_text_with_and_without_drafts(
    target: Target, config: EngineConfig
) -> None:
    texts = []
    for length in (0, 5):
        controller = ScriptedController(lambda s, r, n, length=length: ("ngram", length))
        engine, intake = open_engine(config, target, controller, lambda event: None)
        sampling = Sampling(temperature=0.7, top_p=0.9, seed=42, max_tokens=TOKENS)
        messages = (Message("user", PROMPTS[0]),)
        request = intake.request(Submit(id="a", sampling=sampling, messages=messages))
        engine.submit(request)
        while engine.step():
            engine.scheduler.pages.check()
        texts.append(request.tokens)
        drafted = request.drafted
    assert texts[0] == texts[1]
    assert drafted > 0, "nothing was drafted, so nothing was shown"


def test_breaking_the_verifier_is_seen(
    target: Target, config: EngineConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A verifier that takes one token too many must fail the comparison."""
    plain, _ = decode(target, config, PLAIN, PROMPTS[:1], 24, 1)

    def generous(
        tokens: torch.Tensor, next_drafts: torch.Tensor, leading: torch.Tensor
    ) -> torch.Tensor:
        return torch.full((len(leading),), leading.shape[1] - 1)

    monkeypatch.setattr("engine.executor.accept", generous)
    texts, outcome = decode(target, config, fixed(4), PROMPTS[:1], 24, 1)
    compare(target, PROMPTS[:1], plain, texts, outcome)
    assert outcome.wrong == [0]


def test_the_setting_changes_what_runs_from_the_next_step(
    target: Target, config: EngineConfig
) -> None:
    controller = SWITCHING.controller(config)
    engine, intake = open_engine(config, target, controller, lambda event: None)
    sampling = Sampling(temperature=0.0, max_tokens=60, ignore_eos=True)
    messages = (Message("user", PROMPTS[3]),)
    request = intake.request(Submit(id="a", sampling=sampling, messages=messages))
    engine.submit(request)
    controller.configure(replace(controller.setting, mode="off"))
    for _ in range(20):
        engine.step()
    assert request.drafted == 0
    controller.configure(Setting("pinned", "ngram", 3))
    before = request.steps
    while engine.step():
        pass
    assert request.drafted > 0
    assert request.drafters["ngram"] <= request.steps - before
