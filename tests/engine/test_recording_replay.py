"""A real run recorded, and replayed in the simulator under its own policy and under others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from controller.contract import CostPoint, Setting
from controller.simulate.calibration import calibrate
from controller.simulate.drafters import lookup
from controller.simulate.load import Phase
from controller.simulate.machine import Machine
from controller.simulate.policy import SERVES, build
from controller.simulate.recorded_texts import recorded_texts
from controller.simulate.recording import Recording, read_recording
from controller.simulate.run import Clock, Run, closed
from controller.simulate.step_cost import StepCost
from controller.simulate.texts import Library
from engine.build import Target, adaptive, open_engine
from engine.config import EngineConfig
from engine.wire import Message, Recorded, Sampling, StartRecording, Submit

POINTS = [CostPoint(requests, rows, 256, 10.0 + rows) for requests in (1, 4) for rows in (4, 8, 40)]
MACHINE = Machine(
    StepCost(base_ms=10.0, row_ms=1.0, kv_ms=0.0),
    (lookup("ngram"), lookup("suffix")),
    overhead_ms=0.5,
    noise=0.0,
    chains=False,
    max_batch=4,
)
PROMPTS = (
    "Repeat this line three times: the quick brown fox jumps over the lazy dog.",
    "Write a Python class Point with x and y and methods for add, subtract and multiply.",
    "List the numbers from one to thirty, each on a line of its own.",
    "Why is the sky blue?",
)
PINNED = Setting("pinned", "ngram", 5, 16)


@pytest.fixture(scope="module")
def recording(
    target: Target, config: EngineConfig, tmp_path_factory: pytest.TempPathFactory
) -> Recording:
    """Four requests of 80 tokens under n-gram look-up with D = 5."""
    events: list[Any] = []
    controller = adaptive(config, POINTS)
    controller.configure(PINNED)
    engine, intake = open_engine(config, target, controller, events.append)
    engine.recorder.start(StartRecording("x", 600.0, 2**20), events.append)
    for number, prompt in enumerate(PROMPTS):
        sampling = Sampling(temperature=0.0, max_tokens=80, ignore_eos=True)
        engine.submit(
            intake.request(Submit(str(number), sampling, messages=(Message("user", prompt),)))
        )
    while engine.step():
        pass
    engine.recorder.stop()
    path: Path = tmp_path_factory.mktemp("recording") / "run.jsonl"
    with path.open("wb") as file:
        file.write(b'{"recording": 2, "drafters": {"ngram": "model_free"}}\n')
        file.writelines(part.lines for part in events if isinstance(part, Recorded))
    return read_recording(path)


def replay(recording: Recording, setting: Setting) -> Run:
    texts = Library({"live": recorded_texts(recording, 0)}, ("ngram", "suffix"))
    points = calibrate(MACHINE.cost, 4, 0.0, np.random.default_rng(0))
    clock = Clock()
    controller = build(SERVES, MACHINE, points, clock, setting)
    return closed(MACHINE, texts, (Phase(4, "live", 78),), controller, clock, 0)


def live_length(recording: Recording) -> float:
    """Tokens per request and step of the live run."""
    decoded = sum(one.length - 1 for one in recording.requests)
    return decoded / sum(one.steps for one in recording.requests)


def test_every_request_is_recorded_whole(recording: Recording) -> None:
    assert [one.length for one in recording.requests] == [80] * 4
    assert all(one.prompt > 20 for one in recording.requests)
    assert {"ngram", "suffix"} <= {name for one in recording.requests for name in one.starts}


def test_a_replay_under_its_own_policy_commits_as_much_per_step(recording: Recording) -> None:
    real = live_length(recording)
    assert real > 1.2
    assert replay(recording, PINNED).acceptance_length == pytest.approx(real, rel=0.06)


def test_other_policies_are_judged_by_what_was_scored(recording: Recording) -> None:
    plain = replay(recording, Setting("off"))
    assert plain.acceptance_length == 1.0
    other = replay(recording, Setting("pinned", "suffix", 5, 16))
    assert other.drafting.get("suffix", 0) > 0
    assert other.acceptance_length > 1.1
    assert replay(recording, Setting(max_draft_length=16)).throughput > 0.95 * plain.throughput
