"""JSON lines from outside: bounded before they are read, errors with file and line."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from controller.simulate import json_lines
from controller.simulate.json_lines import first_object, objects
from controller.simulate.recording import is_recording, read_recording
from controller.simulate.traces import read_traces


def write(folder: Path, content: bytes) -> Path:
    path = folder / "a.jsonl"
    path.write_bytes(content)
    return path


def test_objects_come_with_their_lines_and_blank_ones_are_passed_over(tmp_path: Path) -> None:
    path = write(tmp_path, b'\n{"a": 1}\n \r\n{"b": "\xc3\xa4"}')
    assert list(objects(path)) == [(2, {"a": 1}), (4, {"b": "\xe4"})]
    assert first_object(path) == {"a": 1}


BROKEN = {
    b"not json": "no JSON: Expecting value, column 1",
    b"[1]": "no JSON object",
    b'{"a": "\xff"}': "no UTF-8 text",
    b"[" * 100_000: "nested too deeply",
    b'{"a": ' * 100_000: "nested too deeply",
}


@pytest.mark.parametrize("line", BROKEN, ids=list(BROKEN.values()))
def test_a_line_that_is_no_object_is_named(tmp_path: Path, line: bytes) -> None:
    path = write(tmp_path, b"{}\n" + line + b"\n")
    with pytest.raises(ValueError, match=rf"a\.jsonl, line 2: .*{BROKEN[line]}"):
        list(objects(path))


@pytest.mark.parametrize("read", [read_traces, read_recording, lambda path: list(objects(path))])
def test_a_line_without_an_end_is_refused_without_reading_it_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: object
) -> None:
    monkeypatch.setattr(json_lines, "MOST_LINE_BYTES", 1000)
    path = write(tmp_path, b'{"a": "' + b"x" * 10_000)
    taken: list[int] = []

    class Watched(io.BytesIO):
        def readline(self, size: int | None = -1, /) -> bytes:
            taken.append(len(line := super().readline(size)))
            return line

    content = path.read_bytes()
    with monkeypatch.context() as patched:
        patched.setattr(Path, "open", lambda self, mode: Watched(content))
        with pytest.raises(ValueError, match=r"a\.jsonl, line 1: it is longer than 16 MB"):
            read(path)  # type: ignore[operator]
    assert taken == [1001]
    assert list(objects(write(tmp_path, b'{"a": "' + b"x" * 991 + b'"}')))


def test_what_cannot_be_read_has_no_first_object(tmp_path: Path) -> None:
    assert first_object(tmp_path / "none.jsonl") == {}
    for line in (*BROKEN, b""):
        assert first_object(write(tmp_path, line)) == {}
        assert not is_recording(tmp_path / "a.jsonl")
