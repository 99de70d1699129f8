"""The learning curve of a run that was killed, when it goes on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from engine.training.fit_progress import State, mend


def line(step: int) -> str:
    return json.dumps({"step": step, "loss": 1.0})


def state(folder: Path, step: int) -> State:
    """Of a checkpoint at a step."""
    found = State(folder / "checkpoint.pt", {}, 0)
    found.step, found.line = step, line(step)
    return found


@pytest.mark.parametrize(
    "written",
    [
        [line(10), line(20)],
        [line(10), line(20), line(30)],
        [line(10), line(20), line(30), line(40)],
        [line(10), line(20), line(30)[:9]],
        [line(10), line(20), "null"],
    ],
    ids=["killed before its line", "whole", "from before a copy", "torn", "no line"],
)
def test_it_is_what_it_was_at_the_checkpoint(written: list[str], tmp_path: Path) -> None:
    curve = tmp_path / "curve.jsonl"
    curve.write_text("\n".join(written) + "\n")
    mend(curve, state(tmp_path, 30))
    assert curve.read_text() == f"{line(10)}\n{line(20)}\n{line(30)}\n"


def test_a_run_without_a_checkpoint_begins_its_own(tmp_path: Path) -> None:
    curve = tmp_path / "curve.jsonl"
    fresh = State(tmp_path / "checkpoint.pt", {}, 0)
    mend(curve, fresh)
    assert not curve.exists()
    curve.write_text("from another life\n")
    mend(curve, fresh)
    assert curve.read_text() == "from another life\n"
