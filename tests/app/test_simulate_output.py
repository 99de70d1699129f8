"""The simulator's files: refused before the work, whole or not at all, one error for each."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from app.failures import Failure
from app.simulate import command
from app.simulate.output import output_folder, replacing
from tests.app.test_simulate_command import CLOSED, config, main
from tests.controller.simulate.small import write_trace


def full(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """The disk has no room for the content of files of these names."""
    inner = Path.write_bytes

    def written(self: Path, data: bytes) -> int:
        if self.name.removesuffix(".part") in names:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return inner(self, data)

    monkeypatch.setattr(Path, "write_bytes", written)


def test_what_cannot_be_written_is_said_before_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "simulate", None)
    monkeypatch.setattr(command, "bounds", None)
    path = config(tmp_path, CLOSED)
    for option in ("--json", "--plot"):
        for out, problem in ((tmp_path, "is a folder"), (tmp_path / "no" / "x", "no folder")):
            with pytest.raises(Failure, match=rf"{option} .*{problem}"):
                main(["simulate", "run", str(path), option, str(out)])


def test_a_disk_that_is_full_costs_one_file_and_neither_the_table_nor_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    full(monkeypatch, "out.json")
    out, plot = tmp_path / "out.json", tmp_path / "out.svg"
    out.write_text("old")
    path = config(tmp_path, CLOSED)
    assert main(["simulate", "run", str(path), "--json", str(out), "--plot", str(plot)]) == 1
    shown = capsys.readouterr()
    assert "best static (" in shown.out
    assert f"{out} could not be written: No space left on device" in shown.err
    assert f"Written to {plot}" in shown.out
    assert out.read_text() == "old"
    assert plot.read_text().startswith("<svg")
    assert {one.name for one in tmp_path.iterdir()} == {"out.json", "out.svg", "run.toml"}


def test_a_suite_whose_plot_cannot_be_written_writes_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    full(monkeypatch, "regret.svg")
    monkeypatch.setattr(command, "run_all", lambda work, processes: [])
    traces, plots = tmp_path / "traces", tmp_path / "plots"
    traces.mkdir()
    write_trace(traces / "a.jsonl")
    given = ["simulate", "suite", "--traces", str(traces), "--plots", str(plots)]
    assert main(given) == 1
    assert f"{plots / 'regret.svg'} could not be written" in capsys.readouterr().err
    assert {one.name for one in plots.iterdir()} == {"throughput.svg", "choice.svg"}


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


# --- a file that comes in parts -------------------------------------------------------------------


def parts(out: Path, *some: bytes, seen: str | None = None, then: Exception | None = None) -> None:
    with replacing(out) as file:
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


def test_a_link_stays_and_what_it_points_to_is_written(tmp_path: Path) -> None:
    target, link = tmp_path / "target.jsonl", tmp_path / "latest.jsonl"
    link.symlink_to(target)
    parts(link, b"found")
    assert link.is_symlink()
    assert target.read_bytes() == b"found"


def test_a_pipe_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        parts(pipe, b"found")
        assert os.read(reader, 100) == b"found"
    finally:
        os.close(reader)
    assert pipe.is_fifo()
