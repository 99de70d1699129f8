"""A recording keeps what the controller was told: replayed under the same policy it hears it again.

And it knows what drafters would have got that did not run, also while nobody looked for drafts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch

from controller.contract import RECORDING_VERSION, Offer, RequestOutcome, Setting, StepOutcome
from controller.simulate.calibration import calibrate
from controller.simulate.drafters import head, lookup
from controller.simulate.load import replayed
from controller.simulate.machine import Machine
from controller.simulate.policy import SERVES, build
from controller.simulate.recorded_texts import recorded_texts
from controller.simulate.recording import read_recording
from controller.simulate.run import Clock, open_loop
from controller.simulate.step_cost import StepCost
from controller.simulate.texts import Library
from engine.config import EngineConfig
from engine.drafters.registry import DRAFTERS
from engine.drafts import Draft
from engine.draw import Draw
from engine.request import Request
from engine.wire import Recorded, StartRecording
from tests.engine.scripted import Harness, ScriptedDrafter
from tests.engine.toy import VOCABULARY, target_logits

TABLE = target_logits()
MACHINE = Machine(
    StepCost(base_ms=10.0, row_ms=1.0, kv_ms=0.0),
    (lookup("ngram"), head("mtp", 0.5, 10.0)),
    noise=0.0,
    chains=False,
    max_batch=8,
)
PINNED = Setting("pinned", "mtp", 3, 16)
LENGTH = 60


def logits(token: int, position: int) -> list[float]:
    return TABLE[token, position % 8].tolist()


class Telling(ScriptedDrafter):
    """A model that drafts at random, and says how sure it is of each token."""

    kind: Literal["model_free", "model"] = "model"

    def __init__(self, seed: int = 1) -> None:
        super().__init__(lambda tokens, length: [], "mtp")
        self._random = torch.Generator().manual_seed(seed)

    def offer(self, requests: Sequence[Request]) -> list[Offer | None]:
        return [Offer(request.id, self.name, 16) for request in requests]

    def propose(self, requests: Sequence[Request], lengths: Sequence[int]) -> list[Draft]:
        return [self._draft(length) for length in lengths]

    def _draft(self, length: int) -> Draft:
        rows = torch.randn(length, VOCABULARY, generator=self._random)
        two = rows.topk(2, dim=-1).values
        tokens = torch.multinomial(rows.softmax(-1), 1, generator=self._random).squeeze(1).tolist()
        return Draft(tokens, rows.softmax(-1), margins=(two[:, 0] - two[:, 1]).tolist())


def watch(controller: Any) -> list[StepOutcome]:
    """All outcomes that it will be told."""
    outcomes: list[StepOutcome] = []
    observe = controller.observe

    def seen(outcome: StepOutcome) -> None:
        outcomes.append(outcome)
        observe(outcome)

    controller.observe = seen
    return outcomes


def adaptive() -> tuple[Any, Clock]:
    clock = Clock()
    points = calibrate(MACHINE.cost, 8, 0.0, np.random.default_rng(0))
    return build(SERVES, MACHINE, points, clock, PINNED), clock


def by_request(outcomes: Sequence[StepOutcome]) -> dict[int, list[RequestOutcome]]:
    found: dict[int, list[RequestOutcome]] = {}
    for step in outcomes:
        for one in step.per_request:
            found.setdefault(one.request, []).append(one)
    return found


def written(harness: Harness, path: Path) -> Path:
    parts: list[Any] = [one for one in harness.events if isinstance(one, Recorded)]
    first = json.dumps({"recording": RECORDING_VERSION, "drafters": {"mtp": "model"}}) + "\n"
    path.write_bytes(first.encode() + b"".join(part.lines for part in parts))
    return path


@pytest.mark.parametrize(
    "draw", [Draw(), Draw(1.0), Draw(0.8, seed=4)], ids=["greedy", "drawn", "seeded"]
)
def test_a_replay_under_the_same_policy_tells_the_controller_what_the_live_run_told_it(
    draw: Draw, tmp_path: Path
) -> None:
    harness = Harness(VOCABULARY, logits, [Telling()])
    controller, _ = adaptive()
    harness.engine.controller = harness.engine.drafting.controller = controller
    live = watch(controller)
    events: list[Any] = harness.events
    harness.engine.recorder.start(StartRecording("x", 60.0, 10**7), events.append)
    for _ in range(4):
        harness.add([1, 2], LENGTH, draw)
    harness.drain()
    harness.engine.recorder.stop()
    recording = read_recording(written(harness, tmp_path / "run.jsonl"))

    again, clock = adaptive()
    replay = watch(again)
    texts = Library({"live": recorded_texts(recording, 0)}, ("ngram", "mtp"))
    open_loop(MACHINE, texts, replayed(recording, "live", texts), again, clock, 0)

    told, heard = by_request(live), by_request(replay)
    assert list(told) == list(heard) == [1, 2, 3, 4]
    for request, outcomes in told.items():
        # Near its end a request drafts no more than it may emit, which a simulated one may.
        whole = [one for one in outcomes if one.drafted == 3][:-1]
        assert len(whole) > 15
        for one, other in zip(whole, heard[request][: len(whole)], strict=True):
            names = ("drafter", "drafted", "accepted", "committed", "cut")
            assert [getattr(one, name) for name in names] == [
                getattr(other, name) for name in names
            ]
            assert other.chances == pytest.approx(one.chances, abs=1e-4)
            assert one.margins is not None
            assert other.margins is not None
            assert other.margins.values == pytest.approx(one.margins.values, abs=1e-4)
            assert other.margins.sampled == one.margins.sampled != draw.greedy
    chances = [len(one.chances) for some in told.values() for one in some]
    assert (sum(chances) > 100) == (not draw.greedy and draw.seed is None)


# --- shadows --------------------------------------------------------------------------------------


def scored(attentive: bool, record: bool) -> tuple[dict[int, list[RequestOutcome]], Harness]:
    """Plain decoding of texts that repeat themselves, beside a look-up that nobody asks."""
    ngram: Any = DRAFTERS["ngram"](EngineConfig(max_draft_length=5), frozenset(), VOCABULARY)
    harness = Harness(VOCABULARY, lambda token, place: [9.0 * (k == (token + 1) % 5)
                      for k in range(5)], [ngram])  # fmt: skip
    harness.controller.attentive = attentive
    events: list[Any] = harness.events
    if record:
        harness.engine.recorder.start(StartRecording("x", 60.0, 10**7), events.append)
    for length in (40, 25):
        harness.add([0, 1, 2], length)
    harness.drain()
    harness.engine.recorder.stop()
    return by_request(harness.controller.outcomes), harness


def test_drafters_are_scored_in_every_step_of_a_recording_although_nobody_looks() -> None:
    looking, _ = scored(attentive=True, record=True)
    resting, harness = scored(attentive=False, record=True)
    shadows = {r: [one.shadows for one in some] for r, some in resting.items()}
    assert shadows == {r: [one.shadows for one in some] for r, some in looking.items()}
    assert sum(len(one) for one in shadows[1]) > 4
    lines = b"".join(one.lines for one in harness.events if isinstance(one, Recorded))
    rows = [row for line in lines.splitlines() for row in json.loads(line).get("requests", ())]
    assert sum(len(row.get("shadows", ())) for row in rows) == sum(
        len(one) for some in shadows.values() for one in some
    )


def test_without_a_recording_a_resting_controller_costs_no_scores() -> None:
    resting, _ = scored(attentive=False, record=False)
    assert not any(one.shadows for some in resting.values() for one in some)


def test_scoring_ends_with_the_recording() -> None:
    _, harness = scored(attentive=False, record=True)
    before = len(harness.controller.outcomes)
    harness.add([0, 1, 2], 30)
    harness.drain()
    after = harness.controller.outcomes[before:]
    assert after
    assert not any(one.shadows for step in after for one in step.per_request)


# --- requests -------------------------------------------------------------------------------------


def test_a_request_that_ran_before_has_its_text_until_then_as_its_prompt(tmp_path: Path) -> None:
    harness = Harness(VOCABULARY, logits, [Telling()])
    early = harness.add([1, 2], 20)
    for _ in range(6):
        harness.engine.step()
    events: list[Any] = harness.events
    harness.engine.recorder.start(StartRecording("x", 60.0, 10**7), events.append)
    done = len(early.tokens)
    late = harness.add([3], 10)
    harness.drain()
    harness.engine.recorder.stop()
    recording = read_recording(written(harness, tmp_path / "run.jsonl"))
    found = {(one.prompt, one.length) for one in recording.requests}
    assert found == {(done - 1, 1 + len(early.tokens) - done), (1, len(late.tokens) - 1)}


def test_a_request_that_ended_unseen_is_none_of_the_recording() -> None:
    harness = Harness(VOCABULARY, logits, [])
    early = harness.add([1, 2], 20)
    events: list[Any] = harness.events
    harness.engine.recorder.start(StartRecording("x", 60.0, 10**7), events.append)
    harness.engine.cancel(early.name)
    harness.engine.recorder.stop()
    assert b"".join(one.lines for one in harness.events if isinstance(one, Recorded)) == b""


@pytest.mark.parametrize("margin", [float("inf"), float("nan"), -1.0])
def test_numbers_that_json_does_not_know_are_kept_within_bounds(
    margin: float, tmp_path: Path
) -> None:
    class Odd(Telling):
        def _draft(self, length: int) -> Draft:
            return Draft([0] * length, margins=(margin,) * length)

    harness = Harness(VOCABULARY, logits, [Odd()], lambda s, r, n: ("mtp", 2))
    events: list[Any] = harness.events
    harness.engine.recorder.start(StartRecording("x", 60.0, 10**7), events.append)
    harness.add([1], 10)
    harness.drain()
    harness.engine.recorder.stop()
    (one,) = read_recording(written(harness, tmp_path / "run.jsonl")).requests
    assert {value for start in one.starts["mtp"] for value in start.margins} == {
        1000.0 if margin > 0 else 0.0
    }
