"""Step outcomes recorded from a run give texts that replay like it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from controller.contract import Setting, StepOutcome
from controller.simulate.calibration import calibrate
from controller.simulate.load import Phase
from controller.simulate.policy import SERVES, build
from controller.simulate.recording import read_recording
from controller.simulate.run import Clock, Run, closed
from controller.simulate.texts import Library
from tests.controller.simulate.small import library, machine, run

PHASES = (Phase(4, "mixed", 600),)


def record(path: Path, setting: Setting) -> Run:
    """A run of the usual texts, written as a server would write it."""
    simulated, texts, clock = machine(), library(), Clock()
    points = calibrate(simulated.cost, 8, 0.0, np.random.default_rng(1))
    controller = build(SERVES, simulated, points, clock, setting)
    observe, plan = controller.observe, controller.plan
    contexts: dict[int, int] = {}

    def seen(batch, offers):  # type: ignore[no-untyped-def]
        contexts.update({view.id: view.context_len for view in batch.requests})
        return plan(batch, offers)

    with path.open("w") as out:
        out.write('{"recording": 1}\n')

        def heard(outcome: StepOutcome) -> None:
            rows = [
                {
                    "request": one.request, "context": contexts[one.request],
                    "drafter": one.drafter, "drafted": one.drafted, "accepted": one.accepted,
                    "committed": one.committed, "cut": one.cut,
                    "match": one.features.match_length, "source": one.features.source,
                    "shadows": [
                        {
                            "drafter": s.drafter, "accepted": s.accepted,
                            "match": s.features.match_length, "source": s.features.source,
                            "censored": s.censored,
                        }
                        for s in one.shadows
                    ],
                }
                for one in outcome.per_request
            ]  # fmt: skip
            out.write(json.dumps({"requests": rows}) + "\n")
            observe(outcome)

        controller.observe, controller.plan = heard, seen
        return closed(simulated, texts, PHASES, controller, clock, 0)


@pytest.mark.parametrize(("drafter", "length"), [("eagle", 3), ("ngram", 6)])
def test_a_replay_under_the_recorded_policy_is_as_fast_as_the_recording(
    tmp_path: Path, drafter: str, length: int
) -> None:
    setting = Setting("pinned", drafter, length, 20)
    original = record(tmp_path / "run.jsonl", setting)
    texts = Library({"mixed": read_recording(tmp_path / "run.jsonl", 1)}, ("ngram", "eagle"))
    replayed = run(PHASES, setting, texts=texts)
    assert replayed.throughput == pytest.approx(original.throughput, rel=0.05)


def test_another_drafter_is_judged_by_its_shadow_scores(tmp_path: Path) -> None:
    """Recorded under the model, replayed under the drafter that was only scored."""
    record(tmp_path / "run.jsonl", Setting("pinned", "eagle", 3, 20))
    texts = Library({"mixed": read_recording(tmp_path / "run.jsonl", 1)}, ("ngram", "eagle"))
    other = Setting("pinned", "ngram", 6, 20)
    true = run(PHASES, other).throughput
    assert run(PHASES, other, texts=texts).throughput == pytest.approx(true, rel=0.1)


def test_a_deeper_draft_than_recorded_goes_on_at_the_drafters_own_rates(tmp_path: Path) -> None:
    record(tmp_path / "run.jsonl", Setting("pinned", "eagle", 3, 20))
    texts = read_recording(tmp_path / "run.jsonl", 1)
    got = np.concatenate([text.accepted["eagle"] for text in texts])
    assert got.max() > 3
    deep = float((got > 3).sum() / (got >= 3).sum())
    assert deep == pytest.approx(float((got > 2).sum() / (got >= 2).sum()), abs=0.08)


def lines(path: Path, *records: object) -> Path:
    path.write_text("".join(json.dumps(one) + "\n" for one in records))
    return path


def step(**changes: object) -> dict[str, object]:
    one = {
        "request": "a", "context": 5, "drafter": "none", "drafted": 0, "accepted": 0,
        "committed": 1, **changes,
    }  # fmt: skip
    return {"requests": [one]}


def test_requests_are_put_together_from_their_steps(tmp_path: Path) -> None:
    wrong = {"drafter": "eagle", "drafted": 4, "accepted": 2, "committed": 3}
    shadow = {"drafter": "ngram", "accepted": 1, "match": 5, "source": "prompt"}
    path = lines(
        tmp_path / "run.jsonl", {"recording": 1}, step(), step(**wrong, shadows=[shadow]),
        step(request="b", context=9), step(ended=True), step(context=7),
    )  # fmt: skip
    first, *others = read_recording(path, 0)
    assert (first.prompt, first.length) == (5, 5)
    assert first.accepted["eagle"][1] == 2
    # Settled by the step's last token, place 3: it began at 2, and place 3 was inside the run.
    assert first.match["ngram"].tolist() == [0, 0, 5, 6, 0]
    assert first.accepted["ngram"].tolist() == [0, 0, 1, 0, 0]
    assert first.source["ngram"].tolist()[2] == 1
    assert sorted((text.prompt, text.length) for text in others) == [(7, 1), (9, 1)]


@pytest.mark.parametrize(
    "bad",
    [
        {"steps": []},
        step(accepted=3),
        step(drafted=30, accepted=1),
        step(committed=-1),
        step(context="long"),
        {"requests": [{}]},
    ],
)
def test_a_line_that_is_no_step_is_named(tmp_path: Path, bad: object) -> None:
    with pytest.raises(ValueError, match=r"run\.jsonl, line 3"):
        read_recording(lines(tmp_path / "run.jsonl", {"recording": 1}, step(), bad), 0)


def test_a_file_that_is_no_recording_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="first line"):
        read_recording(lines(tmp_path / "run.jsonl", step()), 0)
    with pytest.raises(ValueError, match="no request"):
        read_recording(lines(tmp_path / "run.jsonl", {"recording": 1}), 0)
