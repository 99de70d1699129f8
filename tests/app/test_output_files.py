"""Files that commands write: refused before the work, whole or not at all."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from app import output_files
from app.failures import Failure
from app.output_files import output_file, output_folder, replacing, write


def test_places_where_nothing_can_be_written_are_refused_before_a_run(tmp_path: Path) -> None:
    with pytest.raises(Failure, match=r"--json .* is a folder: give the name of a file"):
        output_file(str(tmp_path))
    with pytest.raises(Failure, match=r"--csv .*: there is no folder .*gone"):
        output_file(str(tmp_path / "gone" / "x.csv"), "--csv")
    with pytest.raises(Failure, match=r"cannot write there: File name too long\."):
        output_file(str(tmp_path / ("x" * 252)))
    (tmp_path / "x.part").mkdir()
    with pytest.raises(Failure, match="cannot write there"):
        output_file(str(tmp_path / "x"))
    assert output_file(str(tmp_path / "y")) == tmp_path / "y"
    assert not list(tmp_path.glob("y*"))
    assert output_file(None) is output_file("") is None


def test_a_protected_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out.json"
    out.touch()
    monkeypatch.setattr(output_files.os, "access", lambda path, mode: path != out)  # root may all
    with pytest.raises(Failure, match="is write-protected"):
        output_file(str(out))


def test_a_folder_is_made_and_a_file_is_none(tmp_path: Path) -> None:
    assert output_folder(None, "--plots") is None
    folder = output_folder(str(tmp_path / "a" / "b"), "--plots")
    assert folder == tmp_path / "a" / "b"
    assert list((tmp_path / "a" / "b").iterdir()) == []
    (tmp_path / "file").touch()
    with pytest.raises(Failure, match=r"--plots .*file is a file"):
        output_folder(str(tmp_path / "file"), "--plots")
    with pytest.raises(Failure, match=r"--plots .*Not a directory"):
        output_folder(str(tmp_path / "file" / "under"), "--plots")


def test_a_folder_without_room_or_leave_to_write_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def touch(self: Path) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(Path, "touch", touch)
    with pytest.raises(Failure, match=r"--plots .*cannot write there: Read-only file system"):
        output_folder(str(tmp_path), "--plots")


def parts(out: Path, *some: bytes, seen: str | None = None, then: Exception | None = None) -> None:
    with replacing(out) as place, place.open("wb") as file:
        for part in some:
            file.write(part)
            assert seen is None or out.read_text() == seen
        if then is not None:
            raise then


def test_what_was_there_stays_until_the_new_is_whole(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    out.write_text("old")
    with pytest.raises(OSError, match="full"):
        parts(out, b"n", b"ew", seen="old", then=OSError(errno.ENOSPC, "full"))
    assert (out.read_text(), len(list(tmp_path.iterdir()))) == ("old", 1)
    parts(out, b"n", b"ew", seen="old")
    assert (out.read_text(), len(list(tmp_path.iterdir()))) == ("new", 1)


@pytest.mark.parametrize("written", [write, parts])
def test_a_link_stays_one_and_a_pipe_is_written_as_it_stands(
    written: Callable[[Path, bytes], None], tmp_path: Path
) -> None:
    (tmp_path / "real").write_text("old", "utf-8")
    (tmp_path / "link").symlink_to("real")
    assert output_file(str(tmp_path / "link")) is not None
    written(tmp_path / "link", b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text("utf-8") == "new"
    os.mkfifo(tmp_path / "pipe")
    assert output_file(str(tmp_path / "pipe")) is not None
    end = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        written(tmp_path / "pipe", b"through")
        assert os.read(end, 100) == b"through"
    finally:
        os.close(end)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "pipe", "real"]
