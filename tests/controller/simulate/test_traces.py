"""Acceptance traces read from files."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from controller.simulate.traces import matches, read_traces, traced_drafters
from tests.controller.simulate.small import write_trace


def record(**changes: object) -> dict[str, object]:
    return {
        "prompt_token_ids": [1, 2, 3, 4],
        "generated_token_ids": [1, 2, 3, 4],
        "acc_eagle": {"acc_len": [1, 3, 2, 1]},
        "acc_ngram": {"acc_len": [1, 1, 1, 2]},
        **changes,
    }


def write(path: Path, *records: object) -> Path:
    path.write_text("".join(json.dumps(one) + "\n" for one in records))
    return path


def test_accepted_tokens_are_the_emitted_ones_without_the_targets_own(tmp_path: Path) -> None:
    (text,) = read_traces(write(tmp_path / "a.jsonl", record()))
    assert text.prompt == 4
    assert text.accepted["eagle"].tolist() == [0, 2, 1, 0]
    assert text.accepted["ngram"].tolist() == [0, 0, 0, 1]


def test_texts_with_a_list_that_is_not_as_long_as_the_output_are_left_out(tmp_path: Path) -> None:
    short = record(acc_eagle={"acc_len": [1, 2, 3]})
    assert len(read_traces(write(tmp_path / "a.jsonl", short, record(), short))) == 1


def test_a_match_is_found_in_tokens_with_its_length_and_where_it_lies() -> None:
    length, source = matches([7, 1, 2, 3, 4, 9], [1, 2, 3, 4, 5, 2, 3, 4])
    assert length.tolist() == [0, 0, 0, 3, 4, 0, 0, 0]
    assert source.tolist() == [0, 0, 0, 1, 1, 0, 0, 0]
    assert matches([5], [1, 2, 3, 1, 2, 3, 8])[1].tolist() == [0, 0, 0, 0, 0, 0, 2]


def test_the_end_of_a_text_does_not_match_itself() -> None:
    assert not matches([1, 2, 3], [4])[0].any()


def test_what_was_accepted_has_a_match_whatever_the_index_of_the_trace(tmp_path: Path) -> None:
    (text,) = read_traces(write(tmp_path / "a.jsonl", record()))
    assert text.match["ngram"].tolist() == [0, 0, 0, 3]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ({"prompt_token_ids": [1]}, "generated_token_ids"),
        (record(acc_eagle={"acc_len": [0, 1, 1, 1]}), "1 to 21"),
        (record(acc_eagle={"acc_len": [1, 1, 1, 22]}), "1 to 21"),
        (record(acc_eagle={"acc_len": [1, 1, 1, 10**30]}), "1 to 21"),
        (record(acc_eagle={"acc_len": [1, 1, 1, math.inf]}), "1 to 21"),
        (record(acc_eagle={"acc_len": [1, 1, 1, 1.5]}), "1 to 21"),
        (record(acc_eagle={"acc_len": [1, 1, 1, True]}), "1 to 21"),
        (record(acc_eagle={"acc_len": [[1], [1], [1], [1]]}), "1 to 21"),
        (record(acc_eagle={"acc_len": "1111"}), "no list"),
        (record(acc_eagle=3), "int"),
        (record(generated_token_ids="text"), "no list"),
        (record(generated_token_ids=[[1], [2], [3], [4]]), "unhashable"),
        ([], "no JSON object"),
    ],
)
def test_a_line_that_is_no_trace_is_named(tmp_path: Path, line: object, problem: str) -> None:
    with pytest.raises(ValueError, match=r"a\.jsonl, line 2") as error:
        read_traces(write(tmp_path / "a.jsonl", record(), line))
    assert problem in str(error.value)


def test_a_file_without_an_aligned_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="every output position"):
        read_traces(write(tmp_path / "a.jsonl", record(acc_eagle={"acc_len": []})))


def test_other_files_are_told_apart(tmp_path: Path) -> None:
    assert traced_drafters(write_trace(tmp_path / "a.jsonl")) == ("eagle", "ngram")
    assert not traced_drafters(write(tmp_path / "b.jsonl", {"turns": ["hello"]}))
    for content in (b"\xff\xfe", b"[" * 10**5, b'[{"acc_x": 1}]', b""):
        (tmp_path / "c.jsonl").write_bytes(content)
        assert not traced_drafters(tmp_path / "c.jsonl")
