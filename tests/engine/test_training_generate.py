"""Generating a target's answers: what is asked, what is kept, and going on after an end."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from engine.build import Target
from engine.config import EngineConfig
from engine.errors import StartError
from engine.text import Text
from engine.training.answers import Answers, read_answers
from engine.training.asking import Asking, Question
from engine.training.generate import Generation, plain
from engine.training.job import Generate, Say
from engine.training.journal import Journal
from engine.training.own_prompts import MOST_TRIES
from engine.wire import Sampling
from tests.engine.exactness import fixed

PROMPTS = [
    "Name three seas.",
    "Count to ten.",
    "Say it again: blue, blue, blue.",
    "Why is ice cold?",
]


def job(config: EngineConfig, out: Path, **more: Any) -> Generate:
    return Generate(config, str(out), **{"answer_tokens": 4, "prompt_tokens": 24, **more})


def generation(target: Target, made: Generate, say: Any = None, drafts: bool = False) -> Generation:
    controller = fixed(3).controller(made.config) if drafts else plain()
    asking = Asking(target, made.config, controller)
    return Generation(made, target, asking, say or (lambda stage, done, text: None))


def run(
    target: Target,
    made: Generate,
    prompts: Sequence[str] = PROMPTS,
    excluded: Sequence[str] = (),
    **more: Any,
) -> dict[str, Any]:
    return generation(target, made, **more).run(prompts, excluded)


def read(target: Target, made: Generate) -> Answers:
    return read_answers(Path(made.out), target.text, target.loaded.decoder.shape.vocabulary)


def stored(path: Path) -> dict[str, list[Any]]:
    with np.load(path) as arrays:
        return {name: arrays[name].tolist() for name in arrays.files}


class Stop(Exception):
    pass


def test_every_prompt_is_answered_at_every_temperature_and_some_greedily(
    target: Target, config: EngineConfig, tmp_path: Path
) -> None:
    made = job(config, tmp_path / "a.npz", greedy_share=0.5, temperatures=(0.7, 1.0))
    found = run(target, made)
    answers = read(target, made)
    assert found["answers"] == len(answers) == 10
    assert answers.prompt_index.tolist() == [0, 0, 1, 1, 1, 2, 2, 3, 3, 3]
    assert answers.temperature.round(3).tolist() == [0.7, 1, 0.7, 1, 0, 0.7, 1, 0.7, 1, 0]
    assert all(1 <= len(tokens) <= 4 for tokens in answers.tokens)
    for place, prompt in enumerate(PROMPTS):
        written = target.text._fast.decode(answers.prompts[place], skip_special_tokens=False)
        assert written.endswith(f"<|im_start|>user\n{prompt}<|im_end|>\n<|im_start|>assistant\n")


def test_the_end_token_is_kept(target: Target, config: EngineConfig, tmp_path: Path) -> None:
    made = job(config, tmp_path / "a.npz", temperatures=(0.0,), greedy_share=0, answer_tokens=40)
    run(target, made, ["What is the capital of France? Answer with one word."])
    (answer,) = read(target, made).tokens
    assert len(answer) < 40
    assert answer[-1] in target.loaded.stop_ids


def test_a_run_that_was_killed_goes_on_to_the_very_same_file(
    target: Target, config: EngineConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.training.journal.PART_TEXTS", 3)
    wanted: dict[str, Any] = {"own_prompts": 1, "prompt_tokens": 14, "answer_tokens": 4}
    run(target, job(config, tmp_path / "whole.npz", **wanted), PROMPTS[:1])
    expected = stored(tmp_path / "whole.npz")

    for stage, at in (("prompts", 4), ("answers", 4)):
        made = job(config, tmp_path / f"{stage}.npz", **wanted)
        parts, left = tmp_path / f"{stage}.npz.parts", tmp_path / stage
        with pytest.raises(Stop):
            run(target, made, PROMPTS[:1], say=kill(stage, at, parts, left))
        assert not Path(made.out).exists()
        shutil.rmtree(parts)
        left.rename(parts)
        run(target, made, PROMPTS[:1])
        assert stored(Path(made.out)) == expected
        assert not parts.exists()


def kill(stage: str, at: int, parts: Path, left: Path) -> Say:
    """Ends the run when it tells of the stage for the `at`-th time, and keeps what lies on disk
    then: what it still writes, a killed one would not."""
    seen = 0

    def say(now: str, done: float, text: str) -> None:
        nonlocal seen
        seen += now == stage
        if seen == at:
            shutil.copytree(parts, left)
            raise Stop

    return say


def test_what_an_interrupted_run_finished_is_not_asked_again(
    target: Target, config: EngineConfig, tmp_path: Path
) -> None:
    made = job(config, tmp_path / "a.npz")
    told: list[str] = []

    def interrupted(stage: str, done: float, text: str) -> None:
        told.append(text)
        if len(told) == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(target, made, say=interrupted)
    again: list[str] = []
    found = run(target, made, say=lambda stage, done, text: again.append(text))
    assert len(again) == found["answers"] - 4


def test_what_the_engine_failed_to_answer_is_asked_again(
    target: Target, config: EngineConfig, tmp_path: Path
) -> None:
    asking = Asking(target, config, plain())
    prompt = tuple(target.text.encode("One, two, three"))
    good = Question(prompt, Sampling(max_tokens=2))
    bad = Question(prompt, Sampling(max_tokens=0))
    journal = Journal(tmp_path / "parts", "run")
    told: list[str] = []
    asking.fill(
        journal, (0, 1), (good, bad).__getitem__, "answers", lambda *line: told.append(line[2])
    )
    assert told[-1].startswith("2 of 2")
    again = Journal(tmp_path / "parts", "run")
    assert list(again.texts) == [0]
    asking.fill(again, (0, 1), (bad, good).__getitem__, "answers", lambda *line: None)
    assert sorted(again.texts) == [0, 1]


def test_a_run_that_is_out_of_time_writes_the_answers_that_there_are(
    target: Target, config: EngineConfig, tmp_path: Path
) -> None:
    whole = job(config, tmp_path / "whole.npz")
    run(target, whole)
    made = job(config, tmp_path / "a.npz", seconds=1e-9)
    with pytest.raises(StartError, match="--generate-seconds are too few"):
        run(target, made)
    journal = Journal(
        tmp_path / "a.npz.parts" / "answers", generation(target, made)._identity(PROMPTS, ())
    )
    expected = read(target, whole).tokens
    for number in (0, 1, 2):
        journal.add(number, expected[number].tolist())
    journal.write()
    found = run(target, made)
    assert (found["answers"], found["not_answered"]) == (3, len(expected) - 3)
    for one, other in zip(read(target, made).tokens, expected, strict=False):
        assert one.tolist() == other.tolist()


def test_speculation_does_not_change_the_texts(
    target: Target, config: EngineConfig, tmp_path: Path
) -> None:
    plainly, drafting = job(config, tmp_path / "a.npz"), job(config, tmp_path / "b.npz")
    run(target, plainly)
    run(target, drafting, drafts=True)
    assert stored(tmp_path / "a.npz") == stored(tmp_path / "b.npz")


def test_a_file_that_is_there_is_not_made_again(
    target: Target, config: EngineConfig, tmp_path: Path
) -> None:
    made = job(config, tmp_path / "a.npz")
    run(target, made)
    written = (tmp_path / "a.npz").stat().st_mtime_ns
    assert run(target, made)["made"] is False
    assert (tmp_path / "a.npz").stat().st_mtime_ns == written
    with pytest.raises(StartError, match="other options"):
        run(target, job(config, tmp_path / "a.npz", seed=1))
    with pytest.raises(StartError, match="other options"):
        run(target, made, PROMPTS[:2])


def test_a_run_with_other_options_does_not_go_on_with_the_parts(
    target: Target, config: EngineConfig, tmp_path: Path
) -> None:
    def stop(stage: str, done: float, text: str) -> None:
        raise Stop

    with pytest.raises(Stop):
        run(target, job(config, tmp_path / "a.npz"), say=stop)
    with pytest.raises(StartError, match="beginning of a run with other options"):
        run(target, job(config, tmp_path / "a.npz", answer_tokens=5))


def test_the_target_writes_prompts_and_answers_them(
    target: Target, config: EngineConfig, tmp_path: Path
) -> None:
    made = job(config, tmp_path / "a.npz", own_prompts=2, prompt_tokens=21, seed=9)
    found = run(target, made, ())
    answers = read(target, made)
    assert found["prompts"] == len(answers.prompts) == 2
    texts = [target.text._fast.decode(one, skip_special_tokens=False) for one in answers.prompts]
    own = [text.partition("<|im_start|>user\n")[2].partition("<|im_end|>")[0] for text in texts]
    assert len(set(own)) == 2
    assert all(text.strip() == text != "" for text in own)


def test_excluded_copied_and_long_prompts_are_left_out(
    target: Target, config: EngineConfig, tmp_path: Path
) -> None:
    made = job(config, tmp_path / "a.npz", longest_prompt=80, temperatures=(0.7,), greedy_share=0)
    prompts = [PROMPTS[0], "name THREE seas", "Count to ten.", "ten " * 200]
    found = run(target, made, prompts, ["Count to ten!"])
    assert (found["prompts"], found["left_out"], found["answers"]) == (1, 3, 1)
    with pytest.raises(StartError, match="none of the 1 prompts"):
        run(target, job(config, tmp_path / "b.npz"), ["Count to ten."], ["Count to ten!"])


def test_a_target_that_writes_no_usable_prompts_is_given_up(
    target: Target, config: EngineConfig, tmp_path: Path
) -> None:
    made = job(config, tmp_path / "a.npz", own_prompts=2, prompt_tokens=1)
    with pytest.raises(StartError, match=f"0 usable prompts in {max(64, 2 * MOST_TRIES)} tries"):
        run(target, made, ())


def test_a_place_that_cannot_be_written_is_told(
    target: Target, config: EngineConfig, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StartError, match="cannot write"):
        run(target, job(config, tmp_path / "file" / "a.npz"))


def test_the_identity_of_a_run_is_not_its_speed(
    target: Target, config: EngineConfig, tmp_path: Path
) -> None:
    out = tmp_path / "a.npz"
    one = generation(target, job(config, out))
    fast = generation(target, job(config, tmp_path / "b.npz", speculation=False, seconds=9.0))
    assert one._identity(PROMPTS, ()) == fast._identity(PROMPTS, ())
    other = [
        generation(target, job(config, out, **change))._identity(PROMPTS, ())
        for change in ({"seed": 1}, {"temperatures": (0.7,)}, {"greedy_share": 0.1})
    ]
    assert len({one._identity(PROMPTS, ()), one._identity(PROMPTS[1:], ()), *other}) == 5


def test_the_identity_of_a_run_is_of_the_weights_and_the_template(
    target: Target, config: EngineConfig, tmp_path: Path
) -> None:
    made = job(config, tmp_path / "a.npz")
    found = {generation(target, made)._identity(PROMPTS, ())}
    folder = tmp_path / "other"
    folder.mkdir()
    for name in ("config.json", "tokenizer.json"):
        shutil.copy(target.loaded.path / name, folder / name)
    save_file({str(i): torch.ones(3) for i in range(30)}, folder / "model.safetensors")
    other = replace(target, loaded=replace(target.loaded, path=folder))
    found.add(generation(other, made)._identity(PROMPTS, ()))
    tokenizer = copy(target.loaded.tokenizer)
    tokenizer.chat_template = "{{ messages[0]['content'] }}"
    other = replace(target, text=Text(tokenizer))
    found.add(generation(other, made)._identity(PROMPTS, ()))
    assert len(found) == 3
