"""The simulator's files: refused before the work, whole or not at all, one error for each."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from app.failures import Failure
from app.simulate import command
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
