"""Step outcomes recorded from a run give texts that replay like it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from controller.contract import BatchView, Offer, Plan, Setting, StepOutcome
from controller.simulate.calibration import calibrate
from controller.simulate.load import Phase, replayed
from controller.simulate.machine import Machine
from controller.simulate.policy import SERVES, Choice, build
from controller.simulate.recorded_texts import recorded_texts
from controller.simulate.recording import read_recording
from controller.simulate.run import Clock, Run, closed
from controller.simulate.texts import Library
from engine.recorder import Recorder
from engine.wire import StartRecording
from tests.controller.simulate.small import library, machine, run

PHASES = (Phase(4, "mixed", 600),)


def record(
    path: Path,
    setting: Setting,
    choice: Choice = SERVES,
    *,
    texts: Library | None = None,
    phases: Sequence[Phase] = PHASES,
    on: Machine | None = None,
) -> Run:
    """A run, of the usual texts unless there are others, written by what writes it in a server."""
    simulated, texts, clock = on or machine(), texts or library(), Clock()
    points = calibrate(simulated.cost, 8, 0.0, np.random.default_rng(1))
    controller = build(choice, simulated, points, clock, setting)
    observe, plan = controller.observe, controller.plan
    contexts: dict[int, int] = {}

    with path.open("wb") as out:
        out.write(b'{"recording": 2, "drafters": {"ngram": "model_free", "eagle": "model"}}\n')
        recorder = Recorder(clock)
        recorder.start(
            StartRecording("x", 3600.0, 2**28), lambda recorded: void(out.write(recorded.lines))
        )

        def seen(batch: BatchView, offers: Sequence[Offer]) -> Plan:
            contexts.update({view.id: view.context_len for view in batch.requests})
            return plan(batch, offers)

        def heard(outcome: StepOutcome) -> None:
            requests: list[Any] = [
                SimpleNamespace(id=one.request, tokens=range(contexts[one.request] + one.committed))
                for one in outcome.per_request
            ]
            recorder.step(outcome, requests)
            observe(outcome)

        controller.observe, controller.plan = heard, seen
        found = closed(simulated, texts, phases, controller, clock, 0)
        recorder.stop()
    return found


def void(_value: object) -> None:
    """Of a call, when nothing is wanted."""


def replay(path: Path) -> Library:
    return Library({"mixed": recorded_texts(read_recording(path), 1)}, ("ngram", "eagle"))


@pytest.mark.parametrize(("drafter", "length"), [("eagle", 3), ("ngram", 6)])
def test_a_replay_under_the_recorded_policy_is_as_fast_as_the_recording(
    tmp_path: Path, drafter: str, length: int
) -> None:
    setting = Setting("pinned", drafter, length, 20)
    original = record(tmp_path / "run.jsonl", setting)
    texts = replay(tmp_path / "run.jsonl")
    replayed = run(PHASES, setting, texts=texts)
    assert replayed.throughput == pytest.approx(original.throughput, rel=0.05)


def test_another_drafter_is_judged_by_its_shadow_scores(tmp_path: Path) -> None:
    """Recorded under the model, replayed under the drafter that was only scored."""
    record(tmp_path / "run.jsonl", Setting("pinned", "eagle", 3, 20))
    texts = replay(tmp_path / "run.jsonl")
    other = Setting("pinned", "ngram", 6, 20)
    true = run(PHASES, other).throughput
    assert run(PHASES, other, texts=texts).throughput == pytest.approx(true, rel=0.1)


def test_a_deeper_draft_than_recorded_goes_on_at_the_drafters_own_rates(tmp_path: Path) -> None:
    record(tmp_path / "run.jsonl", Setting("pinned", "eagle", 3, 20))
    texts = recorded_texts(read_recording(tmp_path / "run.jsonl"), 1)
    got = np.concatenate([text.accepted["eagle"] for text in texts])
    assert got.max() > 3
    deep = float((got > 3).sum() / (got >= 3).sum())
    assert deep == pytest.approx(float((got > 2).sum() / (got >= 2).sum()), abs=0.08)


def lines(path: Path, *records: object) -> Path:
    path.write_text("".join(json.dumps(one) + "\n" for one in records))
    return path


HEAD = {"recording": 2}


def came(request: str, s: float = 0.0, prompt: int = 4) -> dict[str, Any]:
    return {"s": s, "arrived": {"request": request, "prompt": prompt}}


def step(**changes: object) -> dict[str, object]:
    one = {
        "request": "a", "context": 5, "drafter": "none", "drafted": 0, "accepted": 0,
        "committed": 1, **changes,
    }  # fmt: skip
    return {"verify_ms": 5.0, "requests": [one]}


def test_requests_are_put_together_from_their_steps(tmp_path: Path) -> None:
    wrong = {"drafter": "eagle", "drafted": 4, "accepted": 2, "committed": 3}
    shadow = {"drafter": "ngram", "drafted": 8, "accepted": 1, "match": 5, "source": "prompt"}
    path = lines(
        tmp_path / "run.jsonl",
        HEAD,
        came("a"),
        step(),
        step(**wrong, shadows=[shadow]),
        came("b", prompt=8),
        step(request="b", context=9),
        step(),
        {"finished": {"request": "a", "output": 6}},
        came("a", prompt=6),
        step(context=7),
    )
    first, *others = recorded_texts(read_recording(path), 0)
    assert (first.prompt, first.length) == (4, 6)
    assert first.accepted["eagle"][2] == 2
    # Settled by the step's last token, place 4: it began at 3, and place 4 was inside the run.
    assert first.match["ngram"].tolist() == [0, 0, 0, 5, 6, 0]
    assert first.accepted["ngram"].tolist() == [0, 0, 0, 1, 0, 0]
    assert first.source["ngram"].tolist()[3] == 1
    assert sorted((text.prompt, text.length) for text in others) == [(6, 2), (8, 2)]


def starts(tmp_path: Path, *records: object) -> dict[str, list[tuple[int, int, bool]]]:
    """(place, accepted, wrong) by drafter of the one request."""
    (one,) = read_recording(lines(tmp_path / "run.jsonl", HEAD, came("a"), *records)).requests
    return {
        name: [(s.place, s.accepted, s.wrong) for s in some] for name, some in one.starts.items()
    }


def test_a_score_that_was_accepted_in_full_is_no_rejection_and_ends_a_token_earlier(
    tmp_path: Path,
) -> None:
    shadow = {"drafter": "ngram", "drafted": 3, "accepted": 3, "match": 3}
    found = starts(tmp_path, step(committed=4, drafted=3, accepted=3, drafter="eagle", shadows=[
        shadow]))  # fmt: skip
    assert found["ngram"] == [(2, 3, False)]


def test_a_shadow_that_its_own_turn_interrupted_ended_before_the_step(tmp_path: Path) -> None:
    shadow = {"drafter": "ngram", "drafted": 8, "accepted": 2, "match": 3, "censored": True}
    live = {"drafter": "ngram", "drafted": 4, "accepted": 1, "committed": 2, "match": 4}
    found = starts(tmp_path, step(), step(), step(**live, shadows=[shadow]))
    assert found["ngram"] == [(3, 1, True), (1, 2, False)]


def test_the_parts_of_a_chain_have_their_own_credit(tmp_path: Path) -> None:
    def chain(head: int, tail: int) -> dict[str, Any]:
        parts = [
            {"drafter": "eagle", "drafted": 2, "accepted": head},
            {"drafter": "ngram", "drafted": 3, "accepted": tail},
        ]
        got = {"drafted": 5, "accepted": head + tail, "committed": head + tail + 1}
        return step(drafter="eagle", parts=parts, **got)

    path = lines(tmp_path / "run.jsonl", HEAD, came("a"), chain(2, 1), chain(1, 0))
    recording = read_recording(path)
    (one,) = recording.requests
    assert [(s.place, s.accepted, s.wrong) for s in one.starts["eagle"]] == [
        (1, 2, False), (5, 1, True),
    ]  # fmt: skip
    assert [(s.place, s.accepted, s.wrong) for s in one.tails["ngram"]] == [(3, 1, True)]
    (text,) = recorded_texts(recording, 0)
    assert text.accepted["ngram"][3] == 1
    assert text.match["ngram"][3] == 1


def test_requests_that_arrive_are_replayed_when_they_came(tmp_path: Path) -> None:
    path = lines(
        tmp_path / "run.jsonl", HEAD, came("a", 0.5, 4), came("b", 1.0, 20),
        came("c", 1.5, 9), came("d", 2.0, 9), step(), step(request="b", context=21, committed=3,
        drafter="eagle", drafted=4, accepted=2),
        {"s": 2.0, "finished": {"request": "c", "output": 1}},
        {"s": 3.0, "finished": {"request": "d", "output": 0}},
    )  # fmt: skip
    recording = read_recording(path)
    texts = Library({"live": recorded_texts(recording, 0)}, ("eagle",))
    found = replayed(recording, "live", texts)
    assert [(one.ms, one.prompt, one.output) for one in found] == [
        (500.0, 4, 2), (1000.0, 20, 4), (1500.0, 9, 1),
    ]  # fmt: skip
    assert len(replayed(recording, "live", texts, seconds=0.5, speed=2.0)) == 2
    other = Library({"live": recorded_texts(recording, 0)[:2]}, ("eagle",))
    with pytest.raises(ValueError, match="not those of the recording"):
        replayed(recording, "live", other)


def nested(depth: int) -> list[Any]:
    found: list[Any] = []
    for _ in range(depth):
        found = [found]
    return found


@pytest.mark.parametrize(
    "bad",
    [
        [],
        step(accepted=3),
        step(context=0),
        {"s": -1, "arrived": {"request": 1, "prompt": 2}},
        {"finished": {}},
        step(committed=-1),
        step(context="long"),
        {"verify_ms": 5.0, "requests": [{}]},
        {"verify_ms": 5.0, "requests": 3},
        {"verify_ms": "fast", "requests": []},
        {"verify_ms": 10**400, "requests": []},
        {"arrived": {"request": "b", "prompt": 1_000_001}},
        {"arrived": {"request": "b", "prompt": True}},
        {"arrived": {"request": "b", "prompt": nested(400)}},
    ],
)
def test_a_line_that_is_no_step_is_named(tmp_path: Path, bad: object) -> None:
    with pytest.raises(ValueError, match=r"run\.jsonl, line 3"):
        read_recording(lines(tmp_path / "run.jsonl", HEAD, came("a"), bad))


def test_a_file_that_is_no_recording_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="first line"):
        read_recording(lines(tmp_path / "run.jsonl", step()))
    with pytest.raises(ValueError, match="no request"):
        read_recording(lines(tmp_path / "run.jsonl", HEAD))


@pytest.mark.parametrize("name", ["", "x" * 65, "two\nlines", "\ud800"])
def test_a_drafter_whose_name_cannot_be_shown_is_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / "run.jsonl"
    with pytest.raises(ValueError, match=r"run\.jsonl, drafters: .* no drafter's name"):
        read_recording(lines(path, {**HEAD, "drafters": {name: "model"}}, came("a"), step()))
    drafted = step(drafter=name, drafted=2, accepted=1, committed=2)
    with pytest.raises(ValueError, match=r"run\.jsonl, drafters: .* no drafter's name"):
        read_recording(lines(path, HEAD, came("a"), drafted))
    drafters = {f"d{number}": "model" for number in range(64)}
    head = {**HEAD, "drafters": drafters}
    assert len(read_recording(lines(path, head, came("a"), step())).kinds) == 64
    lines(path, head, came("a"), step(drafter="other", drafted=1, accepted=0))
    with pytest.raises(ValueError, match="more than 64"):
        read_recording(path)
