"""Training processes: killed with who started them, one for each output, quiet when stopped."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
import psutil
import pytest

from engine.errors import StartError
from engine.training import lock
from engine.training.job import Fit
from engine.training.lock import only_writer
from tests.conftest import ROOT, clean_environment
from tests.engine.test_fit import tiny_job

WAIT_S = 200.0
ENDLESS = 1 << 39


@pytest.fixture
def job(tmp_path: Path) -> Fit:
    """Trains a tiny head for ever, with a checkpoint after every tenth step."""
    return tiny_job(tmp_path, tokens=ENDLESS, checkpoint_steps=10)


def command(job: Fit, processes: int = 1) -> list[str]:
    """`paceline train fit` of the same."""
    options = [f"--{name}={value}" for name, value in job.options.items()]
    return [
        sys.executable, "-m", "app.cli", "train", "fit", "mtp", job.out, "--shards", job.shards,
        "--draft-ids", job.draft_ids, "--model", job.config.model,
        f"--checkpoint-steps={job.checkpoint_steps}", f"--processes={processes}", *options,
    ]  # fmt: skip


@contextmanager
def running(line: Sequence[str], log: Path) -> Generator[subprocess.Popen[bytes]]:
    """It runs in a session of its own, and nothing of it is left behind."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            line,
            cwd=ROOT,
            env=clean_environment(OMP_NUM_THREADS="1"),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    family: list[psutil.Process] = []
    try:
        yield process
    finally:
        if process.poll() is None:
            family = psutil.Process(process.pid).children(recursive=True)
            process.kill()
        process.wait()
        for one in psutil.wait_procs(family, 20)[1]:
            one.kill()


def until(condition: Callable[[], object], log: Path) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.1)


def until_it_trains(job: Fit, log: Path) -> None:
    until((Path(job.run) / "checkpoint.pt").exists, log)


def stop(process: subprocess.Popen[bytes], number: signal.Signals, code: int) -> None:
    """A signal ends the command, and everything that it started, with this exit code."""
    family = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(number)
    assert process.wait(60) == code
    assert not psutil.wait_procs(family, 60)[1]


def words(log: Path) -> list[str]:
    """What a command said but for its progress."""
    lines = log.read_text().splitlines()
    assert not [line for line in lines if "Traceback" in line]
    return [line for line in lines if not line.startswith("fit:")]


STOPPED = "paceline: Stopped. The same command goes on from what is kept."
SIGNALS = [(signal.SIGINT, 130), (signal.SIGTERM, 143)]


def test_one_writer_that_is_killed_with_its_stage_started_again_and_stopped(
    job: Fit, tmp_path: Path
) -> None:
    log, checkpoint = tmp_path / "log", Path(job.run) / "checkpoint.pt"
    with running(command(job), log) as process:
        until_it_trains(job, log)
        (stage,) = psutil.Process(process.pid).children(recursive=True)
        second = subprocess.run(
            command(job), cwd=ROOT, capture_output=True, text=True, env=clean_environment(),
            timeout=WAIT_S, check=False,
        )  # fmt: skip
        assert second.returncode == 1
        assert f"{job.run} is being written by process {stage.pid}. Wait for it" in second.stderr
        assert "Traceback" not in second.stderr
        assert process.poll() is None
        process.kill()
        process.wait()
        assert not psutil.wait_procs([stage], 60)[1]
    before = checkpoint.stat().st_mtime_ns
    with only_writer(Path(job.run)):
        pass
    assert json.loads((Path(job.run) / "job.json").read_bytes())["options"]["tokens"] == ENDLESS
    with running(command(job), log) as process:
        until(lambda: checkpoint.stat().st_mtime_ns > before, log)
        stop(process, *SIGNALS[0])
    assert words(log) == [STOPPED]
    steps = [json.loads(one)["step"] for one in (Path(job.run) / "curve.jsonl").open()]
    assert steps == list(range(10, 10 * len(steps) + 1, 10))  # went on where it was


def test_several_processes_that_are_killed_go_with_the_command(job: Fit, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with running(command(job, processes=2), log) as process:
        until_it_trains(job, log)
        family = psutil.Process(process.pid).children(recursive=True)
        assert len(family) == 3
        process.kill()
        process.wait()
        assert not psutil.wait_procs(family, 60)[1]
    with only_writer(Path(job.run)):
        pass
    assert json.loads((Path(job.run) / "job.json").read_bytes())["options"]["tokens"] == ENDLESS


def test_a_terminated_command_says_so_in_a_line(job: Fit, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with running(command(job), log) as process:
        until_it_trains(job, log)
        stop(process, *SIGNALS[1])
    assert words(log) == [STOPPED]


@pytest.mark.parametrize(("number", "code"), SIGNALS)
def test_several_processes_that_are_stopped_say_so(
    job: Fit, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    log = tmp_path / "log"
    with running(command(job, processes=2), log) as process:
        until_it_trains(job, log)
        stop(process, number, code)
    assert [line for line in words(log) if "Stopped." in line]


def test_a_stage_that_is_stopped_by_itself_is_told(job: Fit, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with running(command(job), log) as process:
        until_it_trains(job, log)
        (stage,) = psutil.Process(process.pid).children()
        stage.terminate()
        assert process.wait(60) == 1
    assert words(log) == [
        "paceline: stopped by SIGTERM. The same command goes on from what is kept."
    ]


def test_the_lock_of_a_holder_that_is_gone_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "WAIT_S", 0.2)
    out = tmp_path / "new" / "answers.npz"
    with only_writer(out):
        told = rf"process {os.getpid()}\. .*`kill {os.getpid()}`"
        with pytest.raises(StartError, match=told), only_writer(out):
            pytest.fail("two writers")
        with only_writer(tmp_path / "new" / "other.npz"):
            pass
    assert list((tmp_path / "new").iterdir()) == []
    (tmp_path / "new" / "answers.npz.lock").write_text("1 elsewhere\n")  # left by a killed one
    with only_writer(out):
        pass
    (tmp_path / "file").touch()
    with pytest.raises(StartError, match="cannot lock"), only_writer(tmp_path / "file" / "x"):
        pass


def test_a_stage_whose_listener_is_gone_ends_without_a_word(job: Fit, tmp_path: Path) -> None:
    """Its progress goes nowhere, and its input has not ended."""
    (tmp_path / "job.json").write_bytes(msgspec.json.encode(job))
    line = [sys.executable, "-m", "engine.training.fitting", str(tmp_path / "job.json")]
    with subprocess.Popen(
        line, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=clean_environment()
    ) as stage:
        assert stage.stdout is not None
        assert stage.stderr is not None
        stage.stdout.readline()
        stage.stdout.close()
        assert stage.stderr.read() == b""
        assert stage.wait(60) == 143
