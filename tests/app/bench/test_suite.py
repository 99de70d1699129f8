"""`paceline bench suite`: the shipped list, and what becomes of commands that end in any way."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from app.bench import suite
from app.bench.experiments import PROGRAMS, Experiment, chosen, read, shipped, values_of
from app.bench.local import local_server
from app.bench.summary import numbers, summary
from app.cli import main
from app.failures import SettingsError, StartError
from app.options import build_parser

VALUES = {
    "prompts": "P", "corpus": "C", "traces": "T", "llama": "L", "vllm": "V",
    "out": "O", "url": "http://u",
}  # fmt: skip
NEVER = float("inf")


def experiment(code: str, **more: object) -> Experiment:
    command = f"python -c '{code}'"
    return Experiment(
        **{"name": "x", "title": "X", "command": command, "about": 2.0, "minutes": 5.0, **more}
    )


def test_the_shipped_commands_are_command_lines_of_this_version() -> None:
    parser = build_parser()
    own = [one for one in shipped() if one.command.startswith("paceline ")]
    assert len(own) > 3
    for one in own:
        arguments = one.arguments(VALUES)[len(PROGRAMS["paceline"]) :]
        assert parser.parse_args(arguments).json == "O"


def test_the_shipped_scripts_are_in_the_source_tree() -> None:
    scripts = [one for one in shipped() if one.tree]
    assert scripts
    for one in scripts:
        module = one.arguments(VALUES)[2]
        assert (Path(suite.ROOT) / (module.replace(".", "/") + ".py")).is_file(), module


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('command = "rm -rf x"', "not one of paceline, python"),
        ('command = "paceline bench --url {url}"', "come together"),
        ('command = "paceline bench"\nserve = []', "come together"),
        ('command = "python -V"\nspeed = 3', "speed"),
    ],
)
def test_a_list_that_is_wrong_is_refused(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        read(f'[[experiment]]\nname = "x"\ntitle = "X"\nabout = 1\nminutes = 1\n{text}\n')


def test_a_value_stays_one_argument_whatever_is_in_it() -> None:
    one = experiment("print(1)", command="python -m x --prompts {prompts}")
    arguments = one.arguments({"prompts": "a b; {out} $HOME"})
    assert arguments == [sys.executable, "-m", "x", "--prompts", "a b; {out} $HOME"]


def test_what_is_missing_is_said_and_skipped(tmp_path: Path) -> None:
    one = experiment("", command="python -m x {prompts} {corpus}")
    outcome = suite.run(one, {"corpus": "c"}, tmp_path, NEVER)
    assert (outcome.status, outcome.note) == ("skipped", "needs --set prompts=…")


def test_the_result_is_what_was_written_or_else_the_last_line(tmp_path: Path) -> None:
    code = 'import sys; open(sys.argv[1], "w").write("{\\"a\\": 1, \\"runs\\": [5]}"); print("{}")'
    one = experiment("", command=f"python -c '{code}' {{out}}")
    outcome = suite.run(one, {}, tmp_path, NEVER)
    assert (outcome.status, outcome.result, outcome.output) == ("done", {"a": 1}, [])
    outcome = suite.run(experiment('print("noise"); print("{\\"b\\": 2}")'), {}, tmp_path, NEVER)
    assert outcome.result == {"b": 2}  # what the run before wrote is not taken for this one's
    outcome = suite.run(experiment('print("one"); print("two")'), {}, tmp_path, NEVER)
    assert (outcome.result, outcome.output) == (None, ["one", "two"])


def test_a_failing_command_is_told_with_its_last_words(tmp_path: Path) -> None:
    outcome = suite.run(experiment('import sys; sys.exit("no luck")'), {}, tmp_path, NEVER)
    assert (outcome.status, outcome.note) == ("failed", "exit code 1: no luck")


def test_a_command_ends_at_its_limit_with_all_that_it_started(tmp_path: Path) -> None:
    code = (
        "import subprocess, sys, time; "
        'child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]); '
        "print(child.pid, flush=True); time.sleep(60)"
    )
    outcome = suite.run(experiment(code, minutes=4 / 60), {}, tmp_path, NEVER)
    assert outcome.status == "timed out"
    pid = outcome.output[0]
    deadline = time.monotonic() + 20
    while running(pid) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not running(pid)


def test_what_a_command_measured_until_its_limit_is_kept(tmp_path: Path) -> None:
    code = (
        "import sys, time\n"
        "from app.signals import terminable\n"
        "with terminable():\n"
        "    try: time.sleep(60)\n"
        "    except KeyboardInterrupt: open(sys.argv[1], 'w').write('{\"a\": 1}')"
    )
    program = tmp_path / "measure.py"
    program.write_text(code, "utf-8")
    one = experiment("", command=f"python {program} {{out}}", minutes=3 / 60)
    outcome = suite.run(one, {}, tmp_path, NEVER)
    assert (outcome.status, outcome.result) == ("timed out", {"a": 1})


def test_a_suite_that_is_told_to_end_ends_what_it_started(tmp_path: Path) -> None:
    code = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
    program = (
        "import sys; from app.bench import suite; from app.bench.experiments import Experiment; "
        "suite.shipped = lambda: [Experiment(name='x', title='X', command=sys.argv[1], about=1.0, "
        "minutes=5.0)]; from app.cli import main; "
        "sys.exit(main(['bench', 'suite', '--out', sys.argv[2]]))"
    )
    command = [sys.executable, "-c", program, f"python -c '{code}'", str(tmp_path)]
    with subprocess.Popen(command, cwd=suite.ROOT) as process:
        log = tmp_path / "x.log"
        while not (log.exists() and log.read_text().endswith("\n")):
            assert process.poll() is None
            time.sleep(0.1)
        process.terminate()
        assert process.wait(30) != 0
    assert not running(log.read_text().strip())


def running(pid: str) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().split(")")[1].split()[0]
    except OSError:
        return False


def test_the_budget_ends_what_runs_and_begins_nothing_more(tmp_path: Path) -> None:
    slow = experiment("import time; time.sleep(60)")
    outcome = suite.run(slow, {}, tmp_path, time.monotonic() + 0.5)
    assert (outcome.status, outcome.note) == ("out of budget", "ended at its limit")
    outcome = suite.run(slow, {}, tmp_path, time.monotonic() - 1)
    assert (outcome.status, outcome.note, outcome.seconds) == ("out of budget", "not begun", 0)


def test_the_suite_writes_what_it_found_as_json_and_markdown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    experiments = [
        experiment(
            'print("{\\"speed\\": {\\"batch\\": [1.5, 2]}}")', name="good", title="Good one"
        ),
        experiment('import sys; sys.exit("a | b")', name="bad"),
        experiment("", name="needy", command="python -m x {prompts}"),
    ]
    monkeypatch.setattr(suite, "shipped", lambda: experiments)
    out = tmp_path / "results"
    assert main(["bench", "suite", "--out", str(out)]) == 1
    result = json.loads((out / "suite.json").read_bytes())
    assert [one["status"] for one in result["outcomes"]] == ["done", "failed", "skipped"]
    assert result["machine"]["cores"]
    text = (out / "suite.md").read_text("utf-8")
    assert "| speed.batch.1 | 2 |" in text
    assert "exit code 1: a \\| b" in text
    assert "needs --set prompts=…" in text
    assert str(tmp_path) not in text
    assert "good: Good one" in capsys.readouterr().out
    assert main(["bench", "suite", "--out", str(out), "--only", "good"]) == 0
    capsys.readouterr()
    assert main(["bench", "suite", "--list"]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"needy +X +2 +5 +needs --set prompts=…", shown)
    assert re.search(r"together +2 of 3 run here +4 +10", shown)  # minutes of those that run
    assert main(["bench", "suite"]) == 2
    assert main(["bench", "suite", "--only", "other", "--out", str(out)]) == 2


def test_commands_are_shown_without_folders_and_keys() -> None:
    one = experiment("", command="paceline bench --url {url} --prompts {prompts} --json {out}")
    found = suite.shown(one, {"prompts": "/home/me/p.jsonl"})
    assert found == "paceline bench --url URL --prompts p.jsonl --json OUT"


def test_values_are_checked_and_paths_become_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "p.jsonl").touch()
    (tmp_path / "python").symlink_to("p.jsonl")
    monkeypatch.chdir(tmp_path)
    assert values_of(["prompts=p.jsonl", "rate=5", "vllm=python"]) == {
        "prompts": str(tmp_path / "p.jsonl"), "rate": "5", "vllm": str(tmp_path / "python"),
    }  # fmt: skip
    for wrong in ("prompts", "=x", "out=x", "A=b"):
        with pytest.raises(SettingsError, match="NAME=VALUE"):
            values_of([wrong])


def test_experiments_run_in_the_order_of_the_list() -> None:
    names = [one.name for one in chosen(shipped(), ("drafters", "modes"))]
    assert names == ["modes", "drafters"]


def test_numbers_are_found_by_their_path() -> None:
    found = dict(numbers({"a": {"b": [1, True, "x"]}, "time": 5, "c": {"time": 2.5}}))
    assert found == {"a.b.0": 1, "c.time": 2.5}
    assert summary({"rows": [{"not": "ours"}], "base": "none", "x": 1}).endswith("| x | 1 |\n")


def test_a_server_that_does_not_come_up_is_told_with_its_log() -> None:
    with pytest.raises(StartError, match="--dtype"), local_server(["--dtype", "nonsense"]):
        pass
