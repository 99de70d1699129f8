"""The layouts in which prompts come, and what is said of files that are none."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from app.bench import workloads
from app.bench.workloads import read_workload
from app.failures import SettingsError


def written(path: Path, content: str) -> Path:
    path.write_text(content, "utf-8")
    return path


def test_spec_bench_and_mt_bench_lines(tmp_path: Path) -> None:
    path = written(
        tmp_path / "question.jsonl",
        '{"question_id": 81, "category": "writing", "turns": ["a\\u2028b", "then"], "ref": []}'
        '\n\n{"question_id": "x", "category": "qa", "turns": ["c"]}\n',
    )
    first, second = read_workload(path)
    assert (first.question_id, first.category, first.turns) == (81, "writing", ("a\u2028b", "then"))
    assert (second.question_id, second.text) == ("x", "c")


def test_lines_with_turns_alone_are_of_their_source_or_file(tmp_path: Path) -> None:
    path = written(tmp_path / "gsm8k.jsonl", '{"source": "s", "turns": ["a"]}\n{"turns": ["b"]}')
    assert [(p.question_id, p.category) for p in read_workload(path)] == [(1, "s"), (2, "gsm8k")]


SPEED_BENCH = [
    {
        "question_id": f"id-{n}", "category": category, "sub_category": "x",
        "turns": ["one", "two"], "source": "s", "src_id": "1", "difficulty": "hard",
        "multiturn": True,
    }
    for n, category in enumerate(("coding", "low_entropy"))
]  # fmt: skip


def test_speed_bench_as_parquet_and_as_lines(tmp_path: Path) -> None:
    table = pyarrow.Table.from_pylist(SPEED_BENCH)
    pyarrow.parquet.write_table(table, tmp_path / "test-00000-of-00001.parquet")
    lines = "\n".join(json.dumps(row) for row in SPEED_BENCH)
    path = written(tmp_path / "prepared.jsonl", lines)
    found = read_workload(tmp_path / "test-00000-of-00001.parquet")
    assert found == read_workload(path)
    assert [(p.question_id, p.category, p.turns) for p in found] == [
        ("id-0", "coding", ("one", "two")), ("id-1", "low_entropy", ("one", "two")),
    ]  # fmt: skip
    assert len(read_workload(tmp_path)) == 4  # a folder: all files in it


def test_share_gpt(tmp_path: Path) -> None:
    conversations = [
        {"id": "a", "conversations": [
            {"from": "human", "value": "hi"}, {"from": "gpt", "value": "hello"},
            {"from": "human", "value": "why?"},
        ]},
        {"id": "b", "conversations": [{"from": "gpt", "value": "continued"}]},
        {"id": "c", "conversations": []},
        {"conversations": [{"from": "user", "value": "again"}]},
    ]  # fmt: skip
    path = written(tmp_path / "sharegpt.json", json.dumps(conversations))
    assert [(p.question_id, p.category, p.turns) for p in read_workload(path)] == [
        ("a", "sharegpt", ("hi", "why?")), (4, "sharegpt", ("again",)),
    ]  # fmt: skip


def test_plain_text_is_a_prompt_a_line(tmp_path: Path) -> None:
    path = written(tmp_path / "mine.txt", "first\n\n  second  \r\n")
    assert [(p.question_id, p.text, p.category) for p in read_workload(path)] == [
        (1, "first", "mine"), (3, "second", "mine"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.jsonl", '{"turns": ["x"]}\n{', "line 2"),
        ("a.jsonl", '{"turns": "x"}', "line 1: .*array"),
        ("a.jsonl", '{"turns": ["x"], "category": 5}', "line 1: .*category"),
        ("a.jsonl", '{"turns": ["x"], "more": ' + "[" * 100_000, "line 1: .*nested too deeply"),
        ("a.json", '[{"conversations": [], "more": ' + "[" * 100_000, "nested too deeply"),
        ("a.json", '{"conversations": []}', "array"),
        ("a.json", '[{"id": 1}]', "entry 1: .*conversations"),
        ("a.parquet", "no parquet", "a.parquet: "),
        ("a.csv", "x", "not one of .jsonl, .json, .parquet, .txt"),
        ("a.jsonl", json.dumps({"turns": [workloads.PLACEHOLDER + " FROM"]}), "prepare_data.py"),
    ],
)
def test_a_file_that_is_wrong_is_refused_with_its_place(
    tmp_path: Path, name: str, content: str, says: str
) -> None:
    with pytest.raises(SettingsError, match=says):
        read_workload(written(tmp_path / name, content))


def test_parquet_without_turns_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([{"prompt": "x"}]), path)
    with pytest.raises(SettingsError, match=r"row 1: .*turns"):
        read_workload(path)


def test_missing_and_empty_places_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot read"):
        read_workload(tmp_path / "gone.txt")
    with pytest.raises(SettingsError, match="no file of"):
        read_workload(tmp_path)
    with pytest.raises(SettingsError, match=r"cannot read it: .*File name too long"):
        read_workload(Path("A whole prompt is no file. " * 20))


def test_files_and_sets_have_a_largest_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path / "a.txt", "a\nb\nc\n")
    monkeypatch.setattr(workloads, "MOST_PROMPTS", 2)
    with pytest.raises(SettingsError, match="3 prompts; at most 2"):
        read_workload(path)
    monkeypatch.setattr(workloads, "LARGEST_FILE", 5)
    with pytest.raises(SettingsError, match="6 bytes; at most 5"):
        read_workload(path)
