"""What the stages after generating give: vocabulary, shards, checkpoints, measurements."""

from __future__ import annotations

import json
import signal
from array import array
from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.bench.modes import Mode
from engine.build import Target
from engine.config import EngineConfig
from engine.draft_models.tied import open_tied
from engine.errors import StartError
from engine.loading import load_words
from engine.mtp.opening import open_head
from engine.text import Text
from engine.training import extract as extracting
from engine.training import fitting
from engine.training.answers import Answers
from engine.training.evaluate import (
    Evaluation,
    acceptance_length,
    check_models,
    needed,
    read_mode,
)
from engine.training.extract import extract
from engine.training.extraction import check_space, check_taps, choose, default_taps, shard_bytes
from engine.training.fitting import read_job, train
from engine.training.job import Evaluate, Fit, Prompt
from engine.training.model_digest import template_digest, weights_digest
from engine.training.shards import path_of, paths, read, texts
from engine.training.vocabulary_ranking import (
    held_out_coverage,
    pick,
    read_ids,
    special_ids,
    write_ids,
)
from engine.wire import Message
from tests.engine.exactness import PLAIN, decode

TAPS = (15, 27, 30)
QUESTIONS = ("Count to ten.", "Name three seas.", "Say blue five times.")


def silent(*told: Any) -> None:
    pass


def answers_of(*tokens: Sequence[int], prompts: int = 1) -> Answers:
    """Answers to `prompts` prompts in turn."""
    return Answers(
        prompts=[np.array([1, 2], dtype=np.int32)] * prompts,
        prompt_index=np.arange(len(tokens)) % prompts,
        temperature=np.zeros(len(tokens)),
        tokens=[np.array(one, dtype=np.int32) for one in tokens],
    )


@pytest.fixture(scope="module")
def greedy(target: Target, config: EngineConfig) -> list[tuple[array[int], int]]:
    """Prompts with the target's own greedy answers, and where these begin."""
    found, _ = decode(target, config, PLAIN, QUESTIONS, 10, 3)
    asked = [target.text.render((Message("user", text),)) for text in QUESTIONS]
    return [
        (array("i", [*prompt, *answer]), len(prompt))
        for prompt, answer in zip(asked, found, strict=True)
    ]


@pytest.fixture(scope="module")
def shards(
    target: Target, greedy: list[tuple[array[int], int]], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """One shard for each text."""
    folder = tmp_path_factory.mktemp("shards")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(extracting, "SHARD_TOKENS", 1)
        assert extract(target, greedy, TAPS, folder, target.text.fingerprint(), silent) == 3
    return folder


# --- vocabulary ---------------------------------------------------------------------------------


def test_the_most_frequent_tokens_are_picked_and_the_special_ones_always() -> None:
    answers = answers_of([5, 5, 5, 9, 9], [7, 9, 9, 3])
    assert pick(answers, 12, 4, [0, 11]).to_target.tolist() == [0, 5, 9, 11]
    assert pick(answers, 12, 5, [0, 11]).to_target.tolist() == [0, 3, 5, 9, 11]


def test_coverage_is_of_answers_that_were_not_counted() -> None:
    seen = [[1, 1, 2]] * 9
    assert held_out_coverage(answers_of(*seen, [1, 2, 3, 4], prompts=10), 8, 2, []) == 0.5
    assert held_out_coverage(answers_of([1, 1, 1, 2], [3]), 8, 1, []) == 0.6


@given(st.lists(st.integers(0, 19), min_size=1, max_size=60), st.integers(1, 20))
def test_a_larger_vocabulary_holds_the_smaller_one(tokens: list[int], size: int) -> None:
    small = set(pick(answers_of(tokens), 20, size, [3]).to_target.tolist())
    large = set(pick(answers_of(tokens), 20, min(size + 1, 20), [3]).to_target.tolist())
    assert small <= large
    assert len(small) == size


def test_special_ids_are_those_of_the_template_and_the_end(target: Target) -> None:
    words = load_words(target.loaded.path)
    assert words.stop_ids == target.loaded.stop_ids
    assert words.vocabulary == target.loaded.decoder.shape.vocabulary
    assert Text(words.tokenizer).fingerprint() == target.text.fingerprint()
    found = special_ids(words)
    named = target.text.encode("<|im_start|><|im_end|><|endoftext|>")
    assert {*named, *target.loaded.stop_ids} <= set(found)
    assert target.text.encode("the")[0] not in found


def test_ids_are_read_as_they_were_written(tmp_path: Path) -> None:
    write_ids(tmp_path / "ids.npy", np.array([1, 5, 9]))
    assert read_ids(tmp_path / "ids.npy", 10).tolist() == [1, 5, 9]


@pytest.mark.parametrize("ids", [[5, 1], [1, 1], [1, 10], [-1, 3], [], [1.5], [[1, 2]]])
def test_ids_that_do_not_rise_or_fit_are_refused(tmp_path: Path, ids: list[Any]) -> None:
    np.save(tmp_path / "ids.npy", np.array(ids))
    with pytest.raises(StartError, match="rising token ids"):
        read_ids(tmp_path / "ids.npy", 10)


def test_ids_that_cannot_be_read_or_written_are_told(tmp_path: Path) -> None:
    (tmp_path / "ids.npy").write_text("no")
    with pytest.raises(StartError, match=r"ids\.npy"):
        read_ids(tmp_path / "ids.npy", 10)
    with pytest.raises(StartError, match="cannot write"):
        write_ids(tmp_path / "none" / "ids.npy", np.array([1]))


# --- shards -------------------------------------------------------------------------------------


def test_a_shard_holds_the_texts_and_what_follows_every_answer_token(
    target: Target, shards: Path, greedy: list[tuple[array[int], int]]
) -> None:
    for path, (text, answer) in zip(paths(shards), greedy, strict=True):
        shard, about = read(path)
        assert about.taps == TAPS
        assert about.weights == weights_digest(target.loaded.path)
        assert about.template == template_digest(target.text) != ""
        ((place, top, begin),) = texts(shard)
        assert shard.tokens[place].tolist() == list(text)
        assert begin == answer
        assert shard.top_ids[top, 0].tolist() == list(text[answer:])  # greedy: the likeliest


def test_the_likeliest_tokens_come_first_and_are_a_law(shards: Path) -> None:
    shard, _ = read(path_of(shards, 0))
    logprobs = shard.top_logprobs.float()
    assert bool((logprobs[:, 1:] <= logprobs[:, :-1]).all())
    mass = logprobs.exp().sum(-1)
    assert bool((mass > 0.5).all())
    assert bool((mass < 1.001).all())


def test_features_of_the_last_tap_are_what_the_head_reads(
    target: Target, shards: Path, greedy: list[tuple[array[int], int]]
) -> None:
    decoder: Any = target.executor.decoder
    shard, about = read(path_of(shards, 0))
    text, answer = greedy[0]
    assert shard.features.shape == (len(text), len(TAPS) * about.hidden)
    last = shard.features[answer - 1 : -1, -about.hidden :].float()
    with torch.no_grad():
        drawn = decoder.logits(last).argmax(-1).tolist()
    agreed = sum(a == b for a, b in zip(drawn, text[answer:], strict=True))
    assert agreed >= len(drawn) - 1  # features are rounded to bfloat16


def test_texts_extracted_together_or_alone_give_the_same(
    target: Target, shards: Path, greedy: list[tuple[array[int], int]], tmp_path: Path
) -> None:
    extract(target, greedy, TAPS, tmp_path, target.text.fingerprint(), silent)
    together, _ = read(path_of(tmp_path, 0))
    alone = [read(path)[0] for path in paths(shards)]
    assert together.offsets.tolist() == np.cumsum([0, *(len(text) for text, _ in greedy)]).tolist()
    for name in ("tokens", "top_ids"):
        assert (
            getattr(together, name).tolist()
            == torch.cat([getattr(one, name) for one in alone]).tolist()
        )
    apart = torch.cat([one.features for one in alone]).float()
    torch.testing.assert_close(together.features.float(), apart, rtol=0.02, atol=0.02)


def test_an_interrupted_extraction_writes_only_what_is_missing(
    target: Target,
    shards: Path,
    greedy: list[tuple[array[int], int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(extracting, "SHARD_TOKENS", 1)
    content = {path: path.read_bytes() for path in paths(shards)}
    kept = path_of(shards, 0).stat().st_mtime_ns
    path_of(shards, 1).unlink()
    path_of(shards, 2).rename(path_of(shards, 2).with_suffix(".part"))  # it was being written
    extract(target, greedy, TAPS, shards, target.text.fingerprint(), silent)
    assert {path: path.read_bytes() for path in paths(shards)} == content
    assert path_of(shards, 0).stat().st_mtime_ns == kept


def test_shards_of_other_texts_or_layers_are_refused(
    target: Target, shards: Path, greedy: list[tuple[array[int], int]]
) -> None:
    with pytest.raises(StartError, match="other texts"):
        extract(target, greedy[1:], TAPS, shards, target.text.fingerprint(), silent)
    with pytest.raises(StartError, match="other layers"):
        extract(target, greedy[:1], TAPS[1:], shards, target.text.fingerprint(), silent)


def test_a_broken_shard_is_told(tmp_path: Path) -> None:
    path_of(tmp_path, 0).write_bytes(b"no shard at all")
    with pytest.raises(StartError, match=r"shard-00000\.safetensors"):
        read(path_of(tmp_path, 0))
    with pytest.raises(StartError, match="has no shards"):
        paths(tmp_path / "none")


def test_texts_come_in_the_order_of_the_seed_until_there_are_enough() -> None:
    answers = answers_of(*([token] * 4 for token in range(20)))
    every = choose(answers, 0, 0, 100)
    assert sorted(text[-1] for text, _ in every) == list(range(20))
    assert all(answer == 2 for _, answer in every)
    some = choose(answers, 17, 0, 100)
    assert some == every[:2]  # of six tokens each
    assert choose(answers, 0, 1, 100) != every


def test_texts_that_the_target_cannot_take_in_are_left_out() -> None:
    answers = answers_of([4] * 3, [4] * 30, [])
    assert [list(text) for text, _ in choose(answers, 0, 0, 20)] == [[1, 2, 4, 4, 4]]
    with pytest.raises(StartError, match="no text that can be used"):
        choose(answers, 0, 0, 4)
    with pytest.raises(StartError, match="--most-tokens"):
        choose(answers, 1, 0, 20)


@given(st.integers(1, 200))
def test_the_layers_that_are_stored_by_default_are_allowed_ones(layers: int) -> None:
    found = default_taps(layers)
    check_taps(found, layers)
    assert found[-1] == layers


@pytest.mark.parametrize("taps", [(3, 1), (1, 1), (31,), (0, 31)])
def test_layers_that_there_are_not_are_refused(taps: tuple[int, ...]) -> None:
    with pytest.raises(StartError, match="15,29,30"):
        check_taps(taps, 30)


def test_shards_that_the_disk_has_no_room_for_are_refused(tmp_path: Path) -> None:
    check_space(tmp_path / "new", 1)
    with pytest.raises(StartError, match="--most-tokens"):
        check_space(tmp_path, 1 << 60)


def test_the_size_of_shards_is_known_before(
    shards: Path, greedy: list[tuple[array[int], int]]
) -> None:
    tokens = sum(len(text) for text, _ in greedy)
    taught = sum(len(text) - answer for text, answer in greedy)
    written = sum(path.stat().st_size for path in paths(shards))
    assert written == pytest.approx(shard_bytes(tokens, taught, len(TAPS), 576), rel=0.02)


# --- fitting ------------------------------------------------------------------------------------


@pytest.fixture
def job(config: EngineConfig, shards: Path, tmp_path: Path) -> Fit:
    write_ids(tmp_path / "ids.npy", np.arange(0, 49152, 200))
    return Fit(
        config,
        out=str(tmp_path / "made"),
        run=str(tmp_path / "run"),
        shards=str(shards),
        draft_ids=str(tmp_path / "ids.npy"),
        options={"kind": "mtp", "tokens": 20, "rows": 16, "context": 4, "depth": 2},
    )


def test_a_fitted_head_can_be_served(target: Target, job: Fit) -> None:
    told: list[tuple[str, float, str]] = []
    found = train(job, lambda *line: told.append(line))
    assert found["last"]["tokens"] >= 20
    assert told[-1][1] >= 1.0
    assert "loss" in told[-1][2]
    head = open_head(Path(job.out), target.loaded, target.device, target.text.fingerprint())
    assert head.taps == TAPS
    assert head.vocabulary.to_target.tolist() == list(range(0, 49152, 200))
    weights = (Path(job.out) / "model.safetensors").read_bytes()
    assert train(job, silent)["last"] is None  # nothing is left to train
    assert (Path(job.out) / "model.safetensors").read_bytes() == weights


def test_a_fitted_draft_model_can_be_served(target: Target, job: Fit) -> None:
    options = {"kind": "draft", "layers": 1, "tokens": 10, "rows": 16, "context": 4}
    made = msgspec.structs.replace(job, options=options)
    train(made, silent)
    model = open_tied(Path(made.out), target.loaded, target.device)
    assert model.decoder.shape.layers == 1


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"options": {"kind": "mtp", "depht": 2, "rows": "x"}}, "options of fitting"),
        ({"shards": "/nonexistent"}, "has no shards"),
        ({"draft_ids": "/nonexistent.npy"}, "token ids"),
        ({"config": EngineConfig(model="./nonexistent")}, "no such folder"),
    ],
)
def test_what_fitting_lacks_is_told(job: Fit, change: dict[str, Any], told: str) -> None:
    with pytest.raises(StartError, match=told):
        train(msgspec.structs.replace(job, **change), silent)


def test_a_file_that_is_no_job_is_told(job: Fit, tmp_path: Path) -> None:
    file = tmp_path / "job.json"
    file.write_bytes(msgspec.json.encode(job))
    assert read_job([str(file)]) == job
    for arguments in ([], [str(tmp_path / "none.json")], [str(file), "more"]):
        with pytest.raises(StartError, match="paceline train fit"):
            read_job(arguments)
    file.write_text("{}")
    with pytest.raises(StartError, match="paceline train fit"):
        read_job([str(file)])


def test_every_process_under_torchrun_tells_its_error(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(signal, "signal", lambda *told: None)  # it is the process of the tests
    for rank, told_by in (("0", 0), ("3", 1)):
        monkeypatch.setenv("RANK", rank)
        assert fitting.main(["/nonexistent.json"]) == 1
        told = capfd.readouterr()
        assert "/nonexistent.json" in told[told_by]
        assert not told[1 - told_by]
    assert told.err.startswith("process 3: ")


# --- measuring ----------------------------------------------------------------------------------


def test_the_acceptance_length_is_what_a_step_is_expected_to_commit() -> None:
    rates = [0.5, 0.4, 0.25]
    chances = [0.5, 0.5 * 0.6, 0.5 * 0.4 * 0.75, prod(rates)]  # of 1, 2, 3 and 4 tokens
    expected = sum(tokens * chance for tokens, chance in enumerate(chances, 1))
    assert acceptance_length(rates) == pytest.approx(expected)
    assert acceptance_length([]) == 1.0


def test_modes_are_a_drafter_with_its_length_or_several() -> None:
    assert read_mode("mtp:3", 16) == Mode("mtp:3", ("mtp",), length=3)
    assert read_mode("suffix+mtp", 16) == Mode("suffix+mtp", ("suffix", "mtp"))
    assert read_mode("draft_model", 16) == Mode("draft_model", ("draft_model",))


@pytest.mark.parametrize("name", ["", "none", "mpt:3", "mtp+mtp", "mtp:0", "mtp:17", "mtp:x",
                                  "suffix+mtp:3"])  # fmt: skip
def test_modes_that_there_are_not_are_refused(name: str) -> None:
    with pytest.raises(StartError, match="--modes"):
        read_mode(name, 16)


def test_models_that_no_mode_names_are_not_loaded() -> None:
    config = needed(EngineConfig(), [read_mode("suffix+mtp", 16)])
    assert (config.mtp, config.draft_model) == ("auto", "off")


def test_a_mode_whose_model_is_missing_is_told() -> None:
    check_models([read_mode("suffix", 16)], {})
    with pytest.raises(StartError, match="--draft-model"):
        check_models([read_mode("draft_model:3", 16)], {})


def test_drafters_are_measured_through_the_engine(
    target: Target, config: EngineConfig, tmp_path: Path
) -> None:
    prompts = (
        Prompt("repeat", "Say this again, word by word: one two three one two three one two"),
        Prompt("list", "Name three seas."),
    )
    job = Evaluate(config, prompts, ("suffix:4",), answer_tokens=16, concurrency=2)
    found = Evaluation(job, target, {}, (), silent).mode(read_mode("suffix:4", 16))
    numbers = found["temperatures"]["0"]
    assert set(numbers["categories"]) == {"repeat", "list"}
    assert numbers["prompts"] == 2
    assert numbers["tokens"] == sum(one["tokens"] for one in numbers["categories"].values())
    assert 1.0 <= numbers["tokens_per_step"] <= 5.0
    places = numbers["positions"]["suffix"]
    assert len(places) <= 4
    assert numbers["acceptance_length"]["suffix"] == acceptance_length(
        [one["rate"] for one in places]
    )
    json.dumps(found)


def test_a_corpus_of_the_very_answers_is_drafted_from(
    target: Target, config: EngineConfig, greedy: list[tuple[array[int], int]]
) -> None:
    corpus = [list(text[answer:]) for text, answer in greedy]
    prompts = tuple(Prompt("qa", text) for text in QUESTIONS)
    job = Evaluate(config, prompts, answer_tokens=10)
    mode = read_mode("suffix:4", 16)
    cold = Evaluation(job, target, {}, (), silent).mode(mode)
    warm = Evaluation(job, target, {}, corpus, silent).mode(mode)
    steps = [one["temperatures"]["0"]["steps"] for one in (cold, warm)]
    assert steps[1] < steps[0]
