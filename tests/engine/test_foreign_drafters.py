"""Draft models from folders, through the whole engine: no text changes, whatever drafts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from engine.build import open_engine, open_target
from engine.config import EngineConfig
from engine.wire import Sampling, Submit
from tests.engine.scripted import ScriptedController
from tests.engine.test_draft_checkpoints import folder
from tests.engine.vocabularies import byte_level, sentencepiece

PROMPT = "The value of the expression is"
SAMPLINGS = {
    "greedy": Sampling(temperature=0.0, max_tokens=40, ignore_eos=True),
    "seeded": Sampling(temperature=0.9, top_p=0.95, seed=7, max_tokens=40, ignore_eos=True),
}
DRAFTERS: dict[str, dict[str, Any]] = {
    "padded rows": {"tokenizer": byte_level(), "vocab_size": 960},
    "another tokenizer": {"tokenizer": sentencepiece()},
    "a shorter context": {"tokenizer": byte_level(), "max_position_embeddings": 24},
    "a transformers module": {"tokenizer": sentencepiece(), "family": "gpt_neox"},
}


@dataclass(frozen=True)
class Outcome:
    tokens: list[int]
    drafted: int
    accepted: int


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("target")
    return folder(path, "llama", byte_level(), tie_word_embeddings=True)


def serve(target: Path, draft: Path | None, sampling: Sampling, **more: Any) -> Outcome:
    """A request that is drafted for at every step, three tokens each."""
    config = EngineConfig(
        model=str(target),
        draft_model="off" if draft is None else str(draft),
        mtp="off",
        dtype="float32",
        device="cpu",
        kv_tokens=512,
        threads=1,
        **more,
    )
    opened = open_target(config, lambda stage, fraction, message: None)
    controller = ScriptedController(lambda step, request, names: ("draft_model", 3))
    engine, intake = open_engine(config, opened, controller, lambda event: None)
    request = intake.request(Submit(id="a", sampling=sampling, prompt=PROMPT))
    engine.submit(request)
    while engine.step():
        engine.scheduler.pages.check()
    return Outcome(request.tokens, request.drafted, request.accepted)


@pytest.mark.parametrize("kind", SAMPLINGS)
@pytest.mark.parametrize("name", DRAFTERS)
def test_a_text_is_the_targets_whatever_model_drafts(
    target: Path, name: str, kind: str, tmp_path: Path
) -> None:
    settings = dict(DRAFTERS[name])
    family, tokenizer = settings.pop("family", "qwen2"), settings.pop("tokenizer")
    draft = folder(tmp_path, family, tokenizer, **settings)
    plain, drafted = (serve(target, one, SAMPLINGS[kind]) for one in (None, draft))
    assert plain.drafted == 0
    assert drafted.drafted > 0
    assert drafted.tokens == plain.tokens


def test_nothing_is_drafted_past_the_end_of_a_drafters_context(
    target: Path, tmp_path: Path
) -> None:
    prompt = serve(target, None, SAMPLINGS["greedy"]).tokens[:-40]
    own = len(prompt) + 9
    draft = folder(tmp_path, "qwen2", byte_level(), max_position_embeddings=own)
    drafted = serve(target, draft, SAMPLINGS["greedy"])
    assert 0 < drafted.drafted <= 3 * 9
    assert len(drafted.tokens) == len(prompt) + 40


@pytest.mark.parametrize("kind", SAMPLINGS)
def test_the_target_as_its_own_drafter_is_always_right(target: Path, kind: str) -> None:
    drafted = serve(target, target, SAMPLINGS[kind])
    assert drafted.accepted == drafted.drafted > 0


@pytest.mark.parametrize("kind", SAMPLINGS)
def test_a_reduced_vocabulary_is_wrong_only_outside_it(target: Path, kind: str) -> None:
    plain = serve(target, None, SAMPLINGS[kind])
    drafted = serve(target, target, SAMPLINGS[kind], draft_vocabulary=450)
    assert drafted.tokens == plain.tokens
    assert 0 < drafted.accepted < drafted.drafted
