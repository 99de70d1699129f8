"""What a benchmark leaves behind: files that can be written, whatever else goes wrong."""

from __future__ import annotations

import argparse
import csv
import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from app.bench import command, table
from app.bench.finish import finish, output_files
from app.bench.running import Measurement
from app.cli import main
from app.failures import Failure, SettingsError
from tests.app.bench.fake_server import fake_server
from tests.app.bench.test_bench_report import full, result, run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A place for three files, the first of which is there."""
    (tmp_path / "out.json").write_text("last night's", "utf-8")
    return tmp_path


def asked(folder: Path) -> argparse.Namespace:
    names = ("json", "csv", "html")
    return argparse.Namespace(**{name: str(folder / f"out.{name}") for name in names})


def measured() -> Any:
    return result(full(), [run("none")])


def test_a_result_is_written_in_every_form(folder: Path, capsys: pytest.CaptureFixture[str]):
    assert finish(measured(), output_files(asked(folder)), False) == 0
    assert json.loads((folder / "out.json").read_bytes())["base"] == "none"
    assert sorted(path.name for path in folder.iterdir()) == ["out.csv", "out.html", "out.json"]
    assert capsys.readouterr().out.count("Written to") == 3


def test_the_files_are_there_even_if_the_table_cannot_be_shown(
    folder: Path, monkeypatch: pytest.MonkeyPatch
):
    def broken(*_: object) -> None:
        raise OSError("the terminal is gone")

    monkeypatch.setattr(table, "show", broken)
    with pytest.raises(OSError, match="the terminal is gone"):
        finish(measured(), output_files(asked(folder)), False)
    assert json.loads((folder / "out.json").read_bytes())["rows"]
    assert "<svg" in (folder / "out.html").read_text("utf-8")


def test_a_file_that_cannot_be_written_costs_no_other(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    files = output_files(asked(folder))
    writing = Path.write_bytes

    def full_disk(path: Path, content: bytes) -> int:
        if path.name.startswith("out.json"):
            writing(path, content[:10])
            raise OSError(28, "No space left on device")
        return writing(path, content)

    monkeypatch.setattr(Path, "write_bytes", full_disk)
    assert finish(measured(), files, False) == 1
    said = capsys.readouterr()
    assert f"{folder / 'out.json'} could not be written: No space left on device." in said.err
    assert "tokens/s" in said.out
    assert (folder / "out.json").read_text("utf-8") == "last night's"
    assert sorted(path.name for path in folder.iterdir()) == ["out.csv", "out.html", "out.json"]
    assert finish(measured(), files, True) == 1  # more than that it was interrupted


def test_without_a_request_nothing_is_written(folder: Path, capsys: pytest.CaptureFixture[str]):
    files = output_files(asked(folder))
    assert finish(result([], []), files, True) == 130
    assert finish(result([], []), files, False) == 1
    assert (folder / "out.json").read_text("utf-8") == "last night's"
    assert not (folder / "out.csv").exists()
    assert "Nothing was measured, so nothing is stored." in capsys.readouterr().err


def test_a_run_stopped_while_it_warms_up_stores_and_records_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    async def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    def record(*_: object) -> str:
        raise AssertionError("nothing is recorded")

    monkeypatch.setattr(Measurement, "_warm_up", stopped)
    monkeypatch.setattr(command, "check_recordable", lambda *_: None)
    monkeypatch.setattr(command, "record", record)
    with fake_server() as fake:
        arguments = ["bench", "--arm", f"one={fake.url}", "--prompts", "adversarial", "--record"]
        out = folder / "out.json"
        assert main([*arguments, "--key", "k", "--json", str(out)]) == 130
    assert out.read_text("utf-8") == "last night's"
    assert "Files of earlier runs are as they were." in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_run_that_is_ended_keeps_what_was_answered(
    number: signal.Signals, folder: Path, capsys: pytest.CaptureFixture[str]
):
    prompts, out = folder / "prompts.txt", folder / "out.json"
    prompts.write_text("fine\nstall\n", "utf-8")

    def end() -> None:
        while len(fake.bodies) < 3:  # the warm-up, and both prompts
            time.sleep(0.01)
        os.kill(os.getpid(), number)

    with fake_server() as fake:
        ending = threading.Thread(target=end)
        ending.start()
        arguments = ["bench", "--arm", f"one={fake.url}", "--prompts", str(prompts)]
        assert main([*arguments, "--json", str(out)]) == 130
        ending.join()
    found = json.loads(out.read_bytes())
    assert found["settings"]["interrupted"]
    assert [(run["cut"], len(run["samples"])) for run in found["runs"]] == [(True, 1)]
    (row,) = found["rows"]
    assert (row["requests"], row["failed"], row["tokens_per_s"]) == (1, 0, 0.0)
    assert "Written to" in capsys.readouterr().out


@pytest.mark.parametrize(("status", "passes"), [(400, True), (401, False), (403, False)])
def test_whether_the_rows_may_be_recorded_is_asked_before_the_run(
    status: int, passes: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.delenv("PACELINE_API_KEY", raising=False)
    monkeypatch.delenv("PACELINE_ADMIN_KEY", raising=False)
    begun: list[str] = []

    async def warm_up(*_: object) -> None:
        begun.append("run")
        raise Failure("it ran")

    monkeypatch.setattr(Measurement, "_warm_up", warm_up)
    with fake_server() as fake:
        fake.recording = status
        arguments = ["bench", "--arm", f"one={fake.url}", "--prompts", "adversarial", "--record"]
        arguments += ["--url", fake.url]
        assert main(arguments) == 2
        assert "No API key" in capsys.readouterr().err
        assert main([*arguments, "--key", "k"]) == 1
    shown = capsys.readouterr().err
    assert begun == (["run"] if passes else [])
    assert ("it ran" in shown) == passes
    assert ("could not be recorded" in shown) == (not passes)


def test_two_forms_in_one_file_are_refused(tmp_path: Path):
    both = asked(tmp_path)
    both.html = both.csv
    with pytest.raises(SettingsError, match="--csv and --html name the same file"):
        output_files(both)


def test_categories_are_shown_and_stored_as_they_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """They come out of files of prompts: no markup of the terminal, no formula of a spreadsheet."""
    names = ["[/INST]", "translation [de]", '=HYPERLINK("http://x")', "\tx", ":smile:"]
    prompts = tmp_path / "prompts.jsonl"
    lines = [json.dumps({"category": name, "turns": ["fine"]}) for name in names]
    prompts.write_text("\n".join(lines), "utf-8")
    out, rows = tmp_path / "out.json", tmp_path / "out.csv"
    with fake_server() as fake:
        arguments = ["bench", "--arm", f"one={fake.url}", "--prompts", str(prompts)]
        assert main([*arguments, "--json", str(out), "--csv", str(rows)]) == 0
        phase = ["--phase", "name=[/INST] [de],requests=2"]
        assert main([*arguments, *phase]) == 0
    shown = capsys.readouterr().out
    for name in (*names, "[/INST] [de] c1"):
        assert name.strip() in shown
    found = [row["category"] for row in json.loads(out.read_bytes())["rows"]]
    assert found == [*names, "all"]
    with rows.open(encoding="utf-8", newline="") as file:
        stored = [line["category"] for line in csv.DictReader(file)]
    assert stored == [*names[:2], f"'{names[2]}", f"'{names[3]}", names[4], "all"]
