"""What training reads and keeps: prompts, overlaps, finished texts, files of answers."""

from __future__ import annotations

import json
import os
import signal
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.build import Target
from engine.errors import StartError
from engine.training.answers import (
    Answers,
    read_all,
    read_answers,
    read_corpus,
    run_of,
    write_answers,
)
from engine.training.corpus import make_corpus
from engine.training.journal import PART_TEXTS, Journal
from engine.training.overlap import Overlap, words_of
from engine.training.own_prompts import Sieve
from engine.training.prompts import frame, read_prompts, read_texts
from engine.training.seeds import seed_of

WORDS = st.lists(st.sampled_from(["a", "b", "c", "d", "e"]), max_size=12)
VOCABULARY = 49152


def runs(words: list[str], length: int) -> set[tuple[str, ...]]:
    return {tuple(words[at : at + length]) for at in range(len(words) - length + 1)}


def ids(*tokens: int) -> Any:
    return np.array(tokens, dtype=np.int32)


def some_answers(tokenizer: str = "") -> Answers:
    return Answers(
        prompts=[ids(1, 2, 3), ids(4, 5)],
        prompt_index=np.array([0, 0, 1]),
        temperature=np.array([0.0, 1.0, 0.5]),
        tokens=[ids(7, 8, 2), ids(9), ids(10, 11)],
        tokenizer=tokenizer,
    )


# --- overlaps -----------------------------------------------------------------------------------


@given(WORDS, WORDS, st.integers(1, 4))
def test_texts_overlap_when_they_share_a_run_of_words(
    one: list[str], other: list[str], length: int
) -> None:
    shared = bool(runs(one, length) & runs(other, length))
    same = bool(one) and one == other
    assert Overlap([" ".join(one)], length).shares(" ".join(other)) == (shared or same)


def test_case_and_punctuation_do_not_hide_an_overlap() -> None:
    text = "Tell me, please: how do the tides of the northern sea come about?"
    changed = "Well! TELL ME please how do the tides OF the northern sea, come about. Thanks"
    assert Overlap([text]).shares(changed)
    assert not Overlap([text]).shares("Tell me, please: how do the tides of a lake come about?")


def test_eleven_words_in_common_are_no_overlap() -> None:
    words = [f"w{number}" for number in range(20)]
    excluded = Overlap([" ".join(words)])
    assert not excluded.shares(" ".join([*words[:11], "else", *words[12:]]))
    assert excluded.shares(" ".join(["else", *words[3:15], "else"]))


def test_a_short_excluded_text_excludes_only_itself() -> None:
    excluded = Overlap(["What is a tide?"])
    assert excluded.shares("what is a tide")
    assert not excluded.shares("What is a tide, and why are there two of them every day?")


def test_the_sieve_keeps_the_first_of_equal_texts_and_none_without_words() -> None:
    sieve = Sieve(Overlap(["What is a tide?"]))
    texts = ["Name a sea.", "name a sea", "", "?!", "What is a tide?", "Name a lake."]
    assert [text for text in texts if sieve.keeps(text)] == ["Name a sea.", "Name a lake."]


def test_words_of_other_scripts_count() -> None:
    assert words_of("Gib mir ÄPFEL, 2 и хлеб") == ("gib", "mir", "äpfel", "2", "и", "хлеб")


# --- prompts ------------------------------------------------------------------------------------


def test_the_first_turn_of_every_line_is_a_prompt(tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    lines = [
        {"question_id": 1, "category": "qa", "turns": ["One?", "And then?"]},
        {"source": "x", "turns": ["Two?"]},
        {"turns": ["  "]},
        {"text": "kept out only"},
    ]
    file.write_text("\n\n".join(map(json.dumps, lines)))
    assert [one.text for one in read_prompts(str(file))] == ["One?", "Two?"]
    assert read_texts([str(file)]) == ["One?", "And then?", "Two?", "  ", "kept out only"]


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ('{"turns": ["a"]}\n{"turns": "a"}', "line 2"),
        ('{"turns": ["a"]}\nnot json', "line 2"),
        ("", "holds no prompts"),
        ('{"category": "qa"}', "holds no prompts"),
    ],
)
def test_a_broken_file_of_prompts_is_told_with_its_line(
    tmp_path: Path, content: str, told: str
) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text(content)
    with pytest.raises(StartError, match=told) as error:
        read_prompts(str(file))
    assert str(file) in error.value.message


def test_a_missing_file_of_prompts_is_told(tmp_path: Path) -> None:
    with pytest.raises(StartError, match="No such file"):
        read_texts([str(tmp_path / "none.jsonl")])


def test_the_frame_is_the_template_up_to_the_users_text(target: Target) -> None:
    framed = frame(target.text, target.loaded.stop_ids)
    written = target.text._fast.decode(framed.before, skip_special_tokens=False)
    assert written.endswith("<|im_start|>user\n")
    assert framed.end_ids == frozenset(target.text.encode("<|im_end|>"))


# --- seeds --------------------------------------------------------------------------------------


def test_seeds_differ_by_run_and_place_and_fit_a_request() -> None:
    found = {seed_of(run, "answer", place) for run in range(10) for place in range(100)}
    found |= {seed_of(0, "prompt", place) for place in range(100)}
    assert len(found) == 1100
    assert all(0 <= seed < 2**63 for seed in found)


# --- finished texts -----------------------------------------------------------------------------


def test_a_journal_has_again_what_it_wrote(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "parts", "run")
    journal.add(4, [1, 2, 3])
    journal.add(0, [])
    journal.write()
    journal.add(2, [9])
    again = Journal(tmp_path / "parts", "run")
    assert {number: text.tolist() for number, text in again.texts.items()} == {4: [1, 2, 3], 0: []}
    again.add(2, [9])
    again.write()
    assert sorted(Journal(tmp_path / "parts", "run").texts) == [0, 2, 4]


def test_a_journal_loses_no_more_than_its_last_part(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "parts", "run")
    for number in range(PART_TEXTS + 5):
        journal.add(number, [number])
    assert len(Journal(tmp_path / "parts", "run").texts) == PART_TEXTS


def test_a_part_that_was_removed_does_not_make_the_next_overwrite_another(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "parts", "run")
    for number in range(3):
        journal.add(number, [number])
        journal.write()
    (tmp_path / "parts" / "part-000001.npz").unlink()
    again = Journal(tmp_path / "parts", "run")
    again.add(7, [7])
    again.write()
    assert sorted(Journal(tmp_path / "parts", "run").texts) == [0, 2, 7]


def test_a_signal_waits_for_the_part_that_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace = os.replace

    def interrupted(source: Path, goal: Path) -> None:
        signal.raise_signal(signal.SIGINT)
        replace(source, goal)

    journal = Journal(tmp_path / "parts", "run")
    journal.add(3, [1])
    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        journal.write()
    monkeypatch.undo()
    assert sorted(Journal(tmp_path / "parts", "run").texts) == [3]
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_a_part_that_was_being_written_is_passed_over(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "parts", "run")
    journal.add(1, [5])
    journal.write()
    (tmp_path / "parts" / "part-000001.tmp").write_bytes(b"PK half")
    again = Journal(tmp_path / "parts", "run")
    again.add(2, [6])
    again.write()
    assert sorted(Journal(tmp_path / "parts", "run").texts) == [1, 2]


def test_a_journal_of_another_run_is_refused(tmp_path: Path) -> None:
    Journal(tmp_path / "parts", "run")
    with pytest.raises(StartError, match="other options"):
        Journal(tmp_path / "parts", "another")


def test_a_broken_part_is_told(tmp_path: Path) -> None:
    Journal(tmp_path / "parts", "run")
    (tmp_path / "parts" / "part-000000.npz").write_bytes(b"nonsense")
    with pytest.raises(StartError, match=r"part-000000\.npz"):
        Journal(tmp_path / "parts", "run")


# --- files of answers ---------------------------------------------------------------------------


def test_answers_are_read_as_they_were_written(tmp_path: Path, target: Target) -> None:
    path = tmp_path / "answers.npz"
    write_answers(path, some_answers(target.text.fingerprint()), VOCABULARY, "run")
    found = read_answers(path, target.text, VOCABULARY)
    assert [found.text(place)[0].tolist() for place in range(3)] == [
        [1, 2, 3, 7, 8, 2],
        [1, 2, 3, 9],
        [4, 5, 10, 11],
    ]
    assert [found.text(place)[1] for place in range(3)] == [3, 3, 2]
    assert found.temperature.tolist() == [0.0, 1.0, 0.5]
    assert run_of(path) == "run"
    with np.load(path) as arrays:
        assert arrays["tokens"].dtype == arrays["prompts"].dtype == np.uint16


def test_large_vocabularies_are_written_with_wider_numbers(tmp_path: Path, target: Target) -> None:
    path = tmp_path / "answers.npz"
    answers = Answers([ids(70_000)], np.array([0]), np.array([0.0]), [ids(99_999)])
    write_answers(path, answers, 100_000, "")
    assert read_answers(path, target.text, 100_000).text(0)[0].tolist() == [70_000, 99_999]


def test_answers_without_prompts_take_them_from_the_lines(tmp_path: Path, target: Target) -> None:
    path, lines = tmp_path / "answers.npz", tmp_path / "prompts.jsonl"
    lines.write_text('{"turns": ["One?"]}\n{"turns": ["Two?"]}\n')
    np.savez(
        path,
        prompt_index=np.array([1, 0], dtype=np.uint16),
        temperature=np.array([0.7, 1.0], dtype=np.float16),
        offsets=np.array([0, 2, 3], dtype=np.uint32),
        tokens=np.array([11, 12, 13], dtype=np.uint16),
    )
    found = read_answers(path, target.text, VOCABULARY, str(lines))
    assert "Two?" in target.text.decode(found.text(0)[0][:-2].tolist())
    assert found.text(1)[0][-1] == 13
    with pytest.raises(StartError, match="--prompts"):
        read_answers(path, target.text, VOCABULARY)


def test_several_files_are_one(tmp_path: Path, target: Target) -> None:
    for name in ("a", "b"):
        write_answers(tmp_path / name, some_answers(), VOCABULARY, "")
    names = [str(tmp_path / "a"), str(tmp_path / "b")]
    found = read_all(names, "", target.text, VOCABULARY)
    assert found.text(5)[0].tolist() == found.text(2)[0].tolist() == [4, 5, 10, 11]
    assert (len(found), found.token_count) == (6, 12)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"offsets": np.array([0, 2, 1, 6])}, "rise"),
        ({"offsets": np.array([0, 2, 3, 99])}, "rise"),
        ({"tokens": np.array([1, 2, 3, 4, 5, 50_000])}, "49151"),
        ({"tokens": np.array([1.0] * 6)}, "whole numbers"),
        ({"prompt_index": np.array([0, 0, 2])}, "2 prompts"),
        ({"prompt_index": np.array([0, 0])}, "differ in length"),
        ({"tokenizer": np.array("another")}, "another tokenizer"),
    ],
)
def test_a_file_that_holds_no_answers_is_told(
    tmp_path: Path, target: Target, change: dict[str, Any], told: str
) -> None:
    path = tmp_path / "answers.npz"
    write_answers(path, some_answers(), VOCABULARY, "")
    with np.load(path) as stored:
        arrays = {**stored, **change}
    np.savez(path, **arrays)
    with pytest.raises(StartError, match=told) as error:
        read_answers(path, target.text, VOCABULARY)
    assert str(path) in error.value.message


@pytest.mark.parametrize("content", [b"", b"text", b"PK\x03\x04broken"])
def test_a_file_that_is_no_npz_is_told(tmp_path: Path, target: Target, content: bytes) -> None:
    path = tmp_path / "answers.npz"
    path.write_bytes(content)
    with pytest.raises(StartError, match=r"answers\.npz"):
        read_answers(path, target.text, VOCABULARY)
    with pytest.raises(StartError, match=r"answers\.npz"):
        read_corpus(str(path), VOCABULARY)


def test_what_is_cut_or_flipped_inside_an_npz_is_told(tmp_path: Path, target: Target) -> None:
    path = tmp_path / "answers.npz"
    write_answers(path, some_answers(), VOCABULARY, "")
    whole = path.read_bytes()
    with zipfile.ZipFile(path) as stored:
        begin = stored.getinfo("tokens.npy").header_offset + 60
    for broken in (
        whole[: len(whole) // 2],
        whole[:begin]
        + bytes(255 - byte for byte in whole[begin : begin + 30])
        + whole[begin + 30 :],
    ):
        path.write_bytes(broken)
        for reading in (
            lambda: read_answers(path, target.text, VOCABULARY),
            lambda: make_corpus(path, tmp_path / "out.npz"),
        ):
            with pytest.raises(StartError, match=r"answers\.npz"):
                reading()
    np.save(path.with_suffix(""), np.arange(3))  # one array, no archive of them
    path.with_suffix(".npy").rename(path)
    with pytest.raises(StartError, match=r"answers\.npz"):
        make_corpus(path, tmp_path / "out.npz")
    assert not (tmp_path / "out.npz").exists()


def test_a_corpus_has_the_name_it_was_given_and_is_there_whole_or_not(tmp_path: Path) -> None:
    path = tmp_path / "answers.npz"
    write_answers(path, some_answers(), VOCABULARY, "")
    assert make_corpus(path, tmp_path / "corpus") == (3, 6)
    assert read_corpus(str(tmp_path / "corpus"), VOCABULARY) == [[7, 8, 2], [9], [10, 11]]
    (tmp_path / "full.tmp").symlink_to("/dev/full")
    with pytest.raises(StartError, match="cannot write"):
        make_corpus(path, tmp_path / "full")
    assert sorted(one.name for one in tmp_path.iterdir()) == ["answers.npz", "corpus"]


@pytest.mark.parametrize(
    "change",
    [{"prompt_index": np.array([0])}, {"offsets": np.array([0, 9])}, {"tokens": np.ones(6)}],
)
def test_a_corpus_is_made_of_a_sound_file_only(tmp_path: Path, change: dict[str, Any]) -> None:
    path = tmp_path / "answers.npz"
    write_answers(path, some_answers(), VOCABULARY, "")
    with np.load(path) as stored:
        arrays = {**stored, **change}
    np.savez(path, **arrays)
    with pytest.raises(StartError, match=r"answers\.npz is no file of answers"):
        make_corpus(path, tmp_path / "out.npz")


def test_answers_are_a_corpus_too(tmp_path: Path) -> None:
    path = tmp_path / "answers.npz"
    write_answers(path, some_answers(), VOCABULARY, "")
    assert read_corpus(str(path), VOCABULARY) == [[7, 8, 2], [9], [10, 11]]
    assert read_corpus("", VOCABULARY) == []
