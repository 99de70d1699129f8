"""`paceline train`: what a user may type wrong, and what is shown."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console

from app.cli import main
from app.options import build_parser
from app.progress import Bars
from app.train import excluded, with_options
from app.train_process import _Sparing, read_line
from app.train_report import show
from engine.training.job import Line

STAGE = (sys.executable, "-c")
FIT = ("train", "fit", "mtp", "out", "--shards", "s", "--draft-ids", "i.npy")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("train", "generate", "a.npz", "--greedy-share", "1.5"), "not a number from 0 to 1"),
        (("train", "generate", "a.npz", "--greedy-share", "nan"), "not a number from 0 to 1"),
        (("train", "generate", "a.npz", "--temperatures", "0.7,3"), "not a number from 0 to 2"),
        (("train", "generate", "a.npz", "--own-prompts", "0"), "not a positive number"),
        (("train", "generate", "a.npz", "--seed", "-1"), "is not a whole number from 0"),
        (("train", "generate", "a.npz", "--answer-tokens", "many"), "many is not a whole number"),
        (("train", "vocabulary", "i.npy"), "answers"),
        (("train", "extract", "s", "a.npz", "--taps", "1,x"), "--taps"),
        (("train", "fit", "medusa", "out"), "invalid choice"),
        (("train", "fit", "mtp", "out"), "--shards"),
        ((*FIT, "--rate", "2"), "not a number from 0 to 1"),
        ((*FIT, "--precision", "int8"), "invalid choice"),
        ((*FIT, "--processes", "0"), "not a whole number from 1"),
        (("train", "evaluate"), "--prompts"),
    ],
)
def test_a_wrong_option_is_told(
    arguments: tuple[str, ...], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (("train", "generate", "a.npz"), 2, "--own-prompts"),
        (("train", "mtp", "{}/work", "--only-given"), 2, "--answers"),
        (("train", "mtp", "{}/work"), 2, "--own-prompts"),
        (("train", "evaluate", "--prompts", "{}/none.jsonl"), 2, "none.jsonl"),
        (("train", "mtp", "/proc/none", "--own-prompts", "1"), 1, "/proc/none"),
        (("train", "generate", "a.npz", "--prompts", "x", "--device", "cuda:9"), 2, "--device"),
    ],
)
def test_what_cannot_be_run_is_told_in_a_line(
    arguments: tuple[str, ...],
    code: int,
    told: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    try:
        found = main([one.format(tmp_path) for one in arguments])
    except SystemExit as stopped:
        found = stopped.code
    assert found == code
    error = capsys.readouterr().err
    assert told in error
    assert "Traceback" not in error


def test_what_a_stage_says_of_a_mistake_is_what_the_user_reads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"turns": ["One?"]}\n{"turns": 1}\n')
    assert main(["train", "generate", str(tmp_path / "a.npz"), "--prompts", str(file)]) == 1
    error = capsys.readouterr().err
    assert f"--prompts {file}, line 2" in error
    assert "Traceback" not in error
    out = str(tmp_path / "head")
    missing = ("--shards", str(tmp_path), "--draft-ids", str(tmp_path / "i.npy"))
    model = ("--model", str(tmp_path / "no-model"))
    assert main(["train", "fit", "mtp", out, *missing, *model]) == 1
    assert "no-model" in capsys.readouterr().err
    told = json.loads((tmp_path / "head.run" / "job.json").read_bytes())
    assert told["options"]["kind"] == "mtp"


def test_both_kinds_have_the_options_of_every_stage() -> None:
    parser = build_parser()
    stages = {
        "generate": ["a.npz"],
        "vocabulary": ["i.npy", "a.npz"],
        "extract": ["s", "a.npz"],
        "fit": list(FIT[2:]),
        "evaluate": ["--prompts", "p"],
    }
    own = {"out", "run", "shards", "draft_ids", "kind", "modes", "json", "answers"}
    models = {"max_draft_length", "mtp", "draft_model", "draft_vocabulary"}
    for kind in ("mtp", "draft"):
        whole = vars(parser.parse_args(["train", kind, "work"]))
        for stage, rest in stages.items():
            options = set(vars(parser.parse_args(["train", stage, *rest])))
            assert options - own - models <= set(whole), stage


def test_options_of_a_stage_are_those_of_the_whole_run_but_for_what_it_writes() -> None:
    whole = build_parser().parse_args(["train", "mtp", "work", "--seed", "7"])
    changed = with_options(whole, out="x")
    assert (changed.out, changed.seed, changed.folder) == ("x", 7, "work")
    assert not hasattr(whole, "out")


def test_what_a_drafter_is_tested_with_is_kept_out_of_its_training() -> None:
    parser = build_parser()
    asked = ["train", "mtp", "work", "--exclude", "a.jsonl"]
    assert excluded(parser.parse_args(asked)) == ["a.jsonl"]
    for tested, expected in (("t.jsonl", ["a.jsonl", "t.jsonl"]), ("a.jsonl", ["a.jsonl"])):
        assert excluded(parser.parse_args([*asked, "--test-prompts", tested])) == expected


def test_what_a_library_prints_among_the_progress_is_no_line_of_it() -> None:
    line = msgspec.json.encode(Line("fit", 0.5, "loss 2"))
    assert read_line(line + b"\n") == msgspec.json.decode(line)
    for other in (b"[W] a warning\n", b"\xff\xfe\n", b"\n", b"3\n", b'{"loss": 2}\n', b"null\n"):
        assert read_line(other) is None


def test_progress_in_a_log_is_a_line_now_and_then() -> None:
    text = io.StringIO()
    with Bars(Console(file=text, force_terminal=False)) as bars:
        shown = _Sparing(bars)
        for done in range(1, 101):
            shown.update("answers", done / 100, f"{done} of 100")
        shown.update("extract", 0.1, "tokens")
    lines = text.getvalue().splitlines()
    assert lines[0].startswith("answers: 1 of 100")
    assert lines[1].startswith("answers: 100 of 100")
    assert lines[2].startswith("extract: tokens")


def test_every_drafter_of_every_category_is_shown() -> None:
    def numbers(**more: Any) -> dict[str, Any]:
        places = [{"position": 1, "reached": 40, "rate": 0.51}]
        return {
            "prompts": 3,
            "tokens_per_step": 1.87,
            "positions": {"mtp": places, "suffix": places},
            "acceptance_length": {"mtp": 1.51, "suffix": 1.51},
            **more,
        }

    plain = numbers(positions={}, acceptance_length={})
    cost = {"token_ms": 0.5, "plain_step_ms": 10.0, "rho": 0.05}
    found = {
        "modes": {
            "suffix+mtp": {
                "temperatures": {"0": numbers(categories={"qa": numbers(), "rag": plain})},
                "cost": cost,
            }
        },
        "speed": {"none": {"tokens_per_second": 50.0, "over_none": 1.0}},
    }
    text = io.StringIO()
    show(found, Console(file=text, width=120))
    shown = text.getvalue()
    assert shown.count("mtp") == shown.count("suffix") == 4  # twice in titles
    for part in ("qa", "rag", "1.870", "0.51", "rho 0.050", "50.0"):
        assert part in shown


def test_a_stage_ends_with_the_command_that_runs_it(tmp_path: Path) -> None:
    """However it is ended; SIGTERM is what service managers send."""
    stage = f"import os, time; open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())); "
    stage += "time.sleep(60)"
    command = f"from app.train_process import _results; _results('fit', {(*STAGE, stage)!r}, b'')"
    with subprocess.Popen([sys.executable, "-c", command], stderr=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 60
        while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.terminate()
        process.wait(30)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)
