"""Every drafter and every attention gives plain decoding's text, whatever happens around it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from engine.build import Target
from engine.draw import Draw
from engine.wire import Message
from tests.engine.conformance import (
    ATTENTIONS,
    MODELS,
    NAMES,
    VOCABULARY,
    Scenario,
    Subject,
    at_random,
    decode,
    differences,
    drafters,
    tiny,
)
from tests.engine.flashinfer_kernels import replace_kernels

SERVED = [
    (attention, family)
    for attention in ATTENTIONS
    for family in MODELS
    if "compiled" not in attention or family in ("llama", "mistral")
]
SCENARIOS = {
    "alone": Scenario(),
    "chunked prefill": Scenario(chunk_rows=5),
    "cancelled neighbours": Scenario(chunk_rows=16, cancelled=(1, 4, 9)),
    "a small page pool": Scenario(pages=24),
    "prefix hits": Scenario(waves=2),
    "all at once": Scenario(pages=26, chunk_rows=9, waves=2, cancelled=(2, 7)),
}


@pytest.fixture(scope="module")
def subjects() -> dict[str, tuple[Subject, list[list[int]]]]:
    """Every tiny model with its plain texts, each decoded alone."""
    known: dict[str, tuple[Subject, list[list[int]]]] = {}
    with torch.no_grad():
        for family in MODELS:
            subject = tiny(family)
            plain = [
                decode(
                    Subject(subject.model, subject.device, [prompt], subject.length),
                    ATTENTIONS["torch"],
                    Scenario(),
                ).texts[0]
                for prompt in subject.prompts
            ]
            known[family] = subject, plain
    return known


@pytest.fixture(autouse=True)
def _kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """FlashInfer runs with torch in its kernels' place, so also without a GPU."""
    replace_kernels(monkeypatch)


def test_the_plain_texts_are_worth_drafting(
    subjects: dict[str, tuple[Subject, list[list[int]]]],
) -> None:
    for family, (subject, plain) in subjects.items():
        answers = [tuple(text[-subject.length :]) for text in plain]
        assert len(set(answers)) == len(answers), family
        assert min(len(set(answer)) for answer in answers) >= 4, family


@pytest.mark.parametrize("drafter", NAMES)
def test_a_drafter_of_any_length_leaves_the_text_alone(
    subjects: dict[str, tuple[Subject, list[list[int]]]], drafter: str
) -> None:
    subject, plain = subjects["llama"]
    hands = [one for one in drafters(VOCABULARY, plain) if one.name == drafter]
    scenario = SCENARIOS["all at once"]
    attention = ATTENTIONS["torch, scattered pages"]
    run = decode(subject, attention, scenario, hands, at_random(1, drafter))
    assert differences(subject, plain, run.texts) == []
    assert run.drafted > 0
    if drafter == "always right":
        assert run.accepted == run.drafted
    if drafter == "always wrong":
        assert run.accepted == 0


@pytest.mark.parametrize(("attention", "family"), SERVED)
@pytest.mark.parametrize("name", SCENARIOS)
def test_any_sequence_of_drafters_and_lengths_gives_the_plain_text(
    subjects: dict[str, tuple[Subject, list[list[int]]]], name: str, attention: str, family: str
) -> None:
    subject, plain = subjects[family]
    scenario = SCENARIOS[name]
    hands = drafters(VOCABULARY, plain)
    run = decode(subject, ATTENTIONS[attention], scenario, hands, at_random(2))
    assert differences(subject, plain, run.texts) == []
    assert len(run.drafters) > 5
    assert 0 < run.accepted < run.drafted
    assert (run.preemptions > 0) == (scenario.pages is not None)
    assert run.cancelled == len(scenario.cancelled) * scenario.waves
    if scenario.chunk_rows < 10:
        assert run.prefill_steps > 3
    if scenario.waves > 1:
        # The second wave finds the pages of the first, except what a small pool needed itself.
        assert run.hit_tokens >= (3 * 16 if scenario.pages is None else 1)


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_a_seed_gives_the_same_text_through_everything(
    subjects: dict[str, tuple[Subject, list[list[int]]]], attention: str
) -> None:
    subject, _ = subjects["llama"]
    draw = Draw(temperature=0.9, top_p=0.95, seed=11)
    plain = decode(subject, ATTENTIONS["torch"], Scenario(), draw=draw).texts
    hands = drafters(VOCABULARY, plain)
    scenario = SCENARIOS["all at once"]
    run = decode(subject, ATTENTIONS[attention], scenario, hands, at_random(3), draw)
    assert run.texts == plain * scenario.waves
    assert run.accepted > 0


def test_the_suite_sees_an_attention_that_mixes_up_the_rows_of_a_chunk(
    subjects: dict[str, tuple[Subject, list[list[int]]]],
) -> None:
    subject, plain = subjects["llama"]

    class Mixed:
        name = "mixed"

        def __init__(self, inner: Any) -> None:
            self._inner = inner

        def plan(self, batch: Any) -> Any:
            attend = self._inner.plan(batch)
            return lambda layer, q, k, v, *rest: attend(layer, q, k, v.roll(1, 0), *rest)

    run = decode(
        subject,
        lambda pool, shape, device: Mixed(ATTENTIONS["torch"](pool, shape, device)),
        SCENARIOS["alone"],
    )
    assert differences(subject, plain, run.texts)


REAL_PROMPTS = (
    "Repeat this list three times: apple, pear, plum, cherry.",
    "Translate to French: The cat sleeps on the red chair. The dog sleeps on the blue chair.",
    "Write a short poem about rain on a tin roof.",
)


def test_the_real_model_passes_too(target: Target) -> None:
    prompts = [target.text.render([Message("user", text)]) for text in REAL_PROMPTS]
    model = target.loaded.decoder
    subject = Subject(model, target.device, prompts, length=36, page_size=8)
    plain = decode(subject, ATTENTIONS["torch"], Scenario()).texts
    hands = drafters(subject.vocabulary, plain)
    scenario = Scenario(pages=24, chunk_rows=40, cancelled=(3,))
    run = decode(subject, ATTENTIONS["torch, scattered pages"], scenario, hands, at_random(5))
    assert differences(subject, plain, run.texts) == []
    assert run.preemptions > 0
    assert run.hit_tokens > 0
    assert run.cancelled == 1
    assert 0 < run.accepted < run.drafted
