"""Margins and chances in the simulator: told as an engine tells them, and kept by recordings."""

from __future__ import annotations

import numpy as np
import pytest

from controller.contract import Allotment, Bar, Setting
from controller.simulate.confidence import Confidence
from controller.simulate.lanes import Lanes
from controller.simulate.live import Live, Shadows
from controller.simulate.load import Phase
from controller.simulate.policy import Choice
from controller.simulate.recorded_texts import recorded_texts
from controller.simulate.recording import Start, read_recording
from controller.simulate.run import Run
from controller.simulate.step_cost import StepCost
from controller.simulate.texts import LONGEST, Library, Numbers, Text
from tests.controller.simulate.small import machine, run
from tests.controller.simulate.test_recording import record

BARRED = Choice("margin_verify")
COSTLY = machine(cost=StepCost(base_ms=5.0, row_ms=0.6, kv_ms=1e-5))
"""A drafted row must promise something."""


def text(length: int, seed: int, sampled: bool = False) -> Text:
    """A model's drafts whose chance is a logistic in the margin; the look-up finds nothing."""
    rng = np.random.default_rng(seed)
    margins = rng.uniform(0.0, 6.0, (length, LONGEST)).astype(np.float32)
    chance = 1.0 / (1.0 + np.exp(2.0 - 1.2 * margins))
    wrong = rng.random((length, LONGEST)) >= chance
    accepted = np.where(wrong.any(axis=1), wrong.argmax(axis=1), LONGEST)
    accepted = np.minimum(accepted, np.arange(length, 0, -1))
    nowhere: Numbers = np.zeros(length, np.int64)
    chances = {"eagle": chance.astype(np.float32)} if sampled else {}
    return Text(
        50, length, {"eagle": accepted, "ngram": nowhere}, {"ngram": nowhere}, {"ngram": nowhere},
        {"eagle": margins}, chances, sampled,
    )  # fmt: skip


def library(count: int = 8, length: int = 400, sampled: bool = False) -> Library:
    texts = [text(length, seed, sampled) for seed in range(count)]
    return Library({"mixed": texts}, ("ngram", "eagle"))


# --- what the controller is told ------------------------------------------------------------------


def lanes(sampled: bool) -> tuple[Lanes, Live, Text]:
    texts = library(1, 60, sampled)
    shadows = Shadows(texts, ("ngram",))
    return Lanes(texts, shadows, ["eagle"]), Live(1, 1, 60, 50, 1), text(60, 0, sampled)


def test_margins_of_the_whole_draft_and_chances_of_what_was_verified() -> None:
    made, live, one = lanes(True)
    for at in range(1, 40):
        live.at = at
        lane = made.draft(live, Allotment(1, "eagle", 4))
        assert lane.margins is not None
        assert lane.margins.values == pytest.approx(one.margins["eagle"][at, :4].tolist())
        assert lane.margins.sampled
        verified = min(lane.accepted + 1, 4)
        assert lane.chances == pytest.approx(one.chances["eagle"][at, :verified].tolist())


def test_a_bar_ends_a_draft_as_in_an_engine() -> None:
    made, live, one = lanes(False)
    bar = Bar(0.5, -2.0, 1.2, 0.0, 12.0)
    lengths = set[int]()
    for at in range(1, 40):
        live.at = at
        lane = made.draft(live, Allotment(1, "eagle", 4, bar=bar))
        assert lane.drafted == bar.length(one.margins["eagle"][at, :4].tolist())
        assert lane.accepted == min(lane.drafted, int(one.accepted["eagle"][at]))
        assert lane.margins is not None
        assert len(lane.margins.values) == 4
        assert lane.asked
        assert lane.chances == ()
        lengths.add(lane.drafted)
    assert {0, 1, 2} <= lengths


@pytest.mark.parametrize("sampled", [True, False])
def test_the_temperature_is_that_of_the_text(sampled: bool) -> None:
    made, live, _ = lanes(sampled)
    assert made.temperature(live) == float(sampled)


# --- what a recording keeps -----------------------------------------------------------------------


def test_where_the_live_run_did_not_draft_margins_tell_as_much_as_where_it_did() -> None:
    """The logistic that made the texts is found again in margins that were filled in."""
    rng = np.random.default_rng(3)
    starts = list[Start]()
    for place in range(4000):
        margins = rng.uniform(0.0, 6.0, 3)
        right = rng.random(3) < 1.0 / (1.0 + np.exp(2.0 - 1.2 * margins))
        accepted = 3 if right.all() else int(right.argmin())
        told = tuple(margins.tolist())
        starts.append(Start(place, accepted, accepted < 3, margins=told))
    got = np.array([one.accepted for one in starts])
    filled, chances = Confidence(starts).of_text(got, [], False, False, rng)
    assert filled is not None
    assert chances is None
    for low in (0.5, 2.5, 4.5):
        here = (filled[:, 0] >= low) & (filled[:, 0] < low + 1.0)
        true = 1.0 / (1.0 + np.exp(2.0 - 1.2 * (low + 0.5)))
        assert float((got[here] > 0).mean()) == pytest.approx(true, abs=0.06)


def test_what_a_draft_told_itself_stays_with_it() -> None:
    starts = [
        Start(2, 1, True, chances=(0.9, 0.25), margins=(3.0, 1.0, 0.5), sampled=True),
        Start(5, 0, True, chances=(0.1,), margins=(0.5,), sampled=True),
    ]
    got = np.array([0, 0, 1, 0, 0, 0, 0])
    margins, chances = Confidence(starts).of_text(got, starts, True, True, np.random.default_rng(0))
    assert margins is not None
    assert chances is not None
    assert margins[2, :3].tolist() == [3.0, 1.0, 0.5]
    assert chances[2, :2].tolist() == pytest.approx([0.9, 0.25])
    assert margins[5, 0] == 0.5
    assert set(np.unique(margins[:, 0])) <= {3.0, 0.5}  # first places have those of first places


def test_a_text_that_is_not_drawn_has_no_chances_and_a_silent_drafter_no_margins() -> None:
    told = Confidence([Start(1, 1, True, chances=(0.9, 0.2), sampled=True)])
    rng = np.random.default_rng(0)
    assert told.of_text(np.array([0, 1]), [], False, False, rng) == (None, None)
    margins, chances = told.of_text(np.array([0, 1]), [], True, True, rng)
    assert margins is None
    assert chances is not None


@pytest.fixture(scope="module")
def barred(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Library]:
    """A run whose bars kept much out, and the texts of its recording."""
    path = tmp_path_factory.mktemp("barred") / "run.jsonl"
    original = record(
        path, Setting(), BARRED, texts=library(), phases=(Phase(4, "mixed", 3000),), on=COSTLY
    )
    texts = {"mixed": recorded_texts(read_recording(path), 1)}
    return original, Library(texts, ("ngram", "eagle"))


def test_a_recording_under_a_bar_is_replayed_without_one_at_the_true_rates(
    barred: tuple[Run, Library],
) -> None:
    """The bar kept out what promised little; the rates of what was verified alone are too good."""
    original, again = barred
    assert original.mean_length < 5.0, "the bar kept little out"
    asked, phases = Setting("pinned", "eagle", 5, 20), (Phase(4, "mixed", 800),)
    true = run(phases, asked, texts=library(40))
    replayed = run(phases, asked, texts=again)
    assert replayed.acceptance_length == pytest.approx(true.acceptance_length, rel=0.04)


def test_a_policy_with_bars_replays_as_it_was_recorded(barred: tuple[Run, Library]) -> None:
    original, again = barred
    phases = (Phase(4, "mixed", 3000),)
    replayed = run(phases, Setting(), choice=BARRED, on=COSTLY, texts=again)
    assert replayed.throughput == pytest.approx(original.throughput, rel=0.04)
    assert replayed.mean_length == pytest.approx(original.mean_length, rel=0.06)
