"""`paceline corpus` against the scripted engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.cli import main
from tests.app.conftest import Api
from tests.app.scripted_engine import ROOM


def corpus(api: Api, *arguments: object) -> int:
    return main(["corpus", *map(str, arguments), "--url", api.url, "--key", api.admin_key])


def test_files_of_every_kind_are_loaded_listed_and_removed(
    api: Api, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, lines, arrays = (tmp_path / name for name in ("a.txt", "b.jsonl", "c.npz"))
    text.write_text("hällo", "utf-8")
    lines.write_text('{"text": "ab"}\n{"token_ids": [1, 2, 3]}\n', "utf-8")
    tokens, offsets = np.arange(200, dtype=np.uint16), np.array([10, 50, 50, 200], np.uint32)
    np.savez(arrays, tokens=tokens, offsets=offsets)
    for name, file, documents, count in (
        ("text", text, "1 document", 6),
        ("lines", lines, "2 documents", 5),
        ("arrays", arrays, "2 documents", 190),
    ):
        assert corpus(api, "load", name, file) == 0
        out = capsys.readouterr().out
        assert f"Loaded {name}: {documents}, {count} tokens" in out
        assert "upload: " in out
        assert "index: " in out
    assert corpus(api, "list") == 0
    rows = {line.split()[0]: line.split() for line in capsys.readouterr().out.splitlines()}
    assert rows["arrays"][:4] == ["arrays", "ready", "2", "190"]
    for name in ("text", "lines", "arrays"):
        assert corpus(api, "remove", name) == 0
    assert "Removed arrays" in capsys.readouterr().out
    assert corpus(api, "remove", "arrays") == 1
    assert "There is no corpus 'arrays'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "content", "code", "says"),
    [
        ("a.pdf", b"x", 2, "is none of .txt, .jsonl"),
        ("a.txt", b"\xff", 1, "HTTP 400: The text is not UTF-8"),
        ("a.jsonl", b'{"text": 1}', 1, "line 1.text"),
        ("a.npz", b"x", 2, "is not an .npz file"),
        ("missing.txt", None, 2, "No such file"),
        ("missing.npz", None, 2, "No such file"),
        ("missing", None, 2, "No such file"),
    ],
)
def test_a_wrong_file_is_one_clear_line(
    api: Api, tmp_path: Path, capsys: Any, name: str, content: Any, code: int, says: str
) -> None:
    file = tmp_path / name
    if content is not None:
        file.write_bytes(content)
    assert corpus(api, "load", "wrong", file) == code
    error = capsys.readouterr().err
    assert says in error
    assert len(error.splitlines()) == 1


@pytest.mark.parametrize(
    "arrays",
    [
        {"tokens": [1, 2]},
        {"tokens": [1, 2], "offsets": [0, 3]},
        {"tokens": [1, 2], "offsets": [2, 0]},
        {"tokens": [1.5], "offsets": [0, 1]},
        {"tokens": [[1]], "offsets": [0, 1]},
        {"tokens": [1], "offsets": [0]},
        {"tokens": ["a"], "offsets": ["b", "c"]},
    ],
)
def test_wrong_arrays_are_refused(
    api: Api, tmp_path: Path, capsys: pytest.CaptureFixture[str], arrays: Any
) -> None:
    np.savez(tmp_path / "a.npz", **arrays)
    assert corpus(api, "load", "wrong", tmp_path / "a.npz") == 2
    assert "a.npz" in capsys.readouterr().err


def test_a_corpus_that_the_engine_refuses_ends_with_its_reason(
    api: Api, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.txt").write_text("x" * (ROOM + 1), "utf-8")
    assert corpus(api, "load", "too-much", tmp_path / "a.txt") == 1
    assert "is stored but cannot be used: the memory is full" in capsys.readouterr().err
    assert corpus(api, "list") == 0
    lines = capsys.readouterr().out.splitlines()
    place = next(place for place, line in enumerate(lines) if line.startswith("too-much "))
    assert lines[0].split() == ["name", "state", "documents", "tokens", "MiB", "loaded", "by"]
    assert lines[place].split()[1:5] == ["failed", "1", "-", "0.02"]
    assert lines[place].endswith("bootstrap")
    assert lines[place + 1] == "    the memory is full; remove a corpus."
    assert corpus(api, "remove", "too-much") == 0


def test_a_corpus_that_is_removed_while_it_is_stored_is_said(
    api: Api, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    library = api.service.corpora
    put = library.put

    async def put_and_remove(name: str, *more: Any) -> None:
        await put(name, *more)
        await library.remove(name)

    monkeypatch.setattr(library, "put", put_and_remove)
    (tmp_path / "a.txt").write_text("abc", "utf-8")
    assert corpus(api, "load", "gone", tmp_path / "a.txt") == 1
    assert "The corpus gone was removed or replaced meanwhile" in capsys.readouterr().err


def test_a_server_that_is_away_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["corpus", "list", "--url", "http://127.0.0.1:9", "--key", "k"]) == 3
    assert "Is the server running?" in capsys.readouterr().err
