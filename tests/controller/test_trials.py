"""A probe is made on as many requests as make an observation the cheapest."""

from __future__ import annotations

import numpy as np
import pytest

from controller.choices import Choices, Lengths, Table, own_ms
from controller.contract import Allotment, BatchView
from controller.draft_cost import FREE, DraftPrice
from controller.exploring import DEEPER_LENGTH, ROWS, Explorer
from controller.lineup import Lineup
from controller.mixing import Pass, chained
from controller.planner import Allocation, allocate
from controller.probing import PROBE_LENGTH, SHORTEST, Probing
from controller.trials import trial
from tests.controller.mixed_engine import MODEL, SUFFIX
from tests.controller.simulated_engine import batch, request

COSTS = np.array([10.0 + 0.1 * m for m in range(200)])
NOTHING = np.zeros(0, np.intp)


def plan(rows: int = 0, tokens: float = 10.0) -> Allocation:
    return Allocation(NOTHING, rows, tokens, 10.0, 10.0, tokens)


def alike(count: int, rows: int = 4, gain: float = 0.0) -> tuple[Lengths, Table, Table]:
    return np.full(count, rows), np.full(count, gain), np.zeros(count)


def test_a_pass_that_all_share_is_tried_on_all() -> None:
    tried = trial(*alike(8), 3.0, COSTS, plan())
    assert tried is not None
    assert sorted(tried.picked.tolist()) == list(range(8))
    assert (tried.rows, tried.ms) == (32, 3.0)
    assert tried.cost == pytest.approx(3.0 + 32 * 0.1)


def test_what_costs_nothing_but_rows_is_tried_on_the_one_that_loses_least() -> None:
    rows, gain, own_ms = alike(8)
    gain[5] = 0.3
    tried = trial(rows, gain, own_ms, 0.0, COSTS, plan())
    assert tried is not None
    assert tried.picked.tolist() == [5]
    assert tried.cost == pytest.approx(4 * 0.1 - 0.3)


def test_who_would_lose_much_is_left_out_of_a_shared_pass() -> None:
    rows, gain, own_ms = alike(8)
    gain[3] = -5.0
    tried = trial(rows, gain, own_ms, 3.0, COSTS, plan())
    assert tried is not None
    assert sorted(tried.picked.tolist()) == [0, 1, 2, 4, 5, 6, 7]


def test_a_trial_stays_within_the_room_and_the_number_asked_for() -> None:
    few = trial(*alike(8), 3.0, COSTS[:21], plan(rows=10))
    assert few is not None
    assert len(few.picked) == 2
    one = trial(*alike(8), 3.0, COSTS, plan(), most=1)
    assert one is not None
    assert len(one.picked) == 1
    assert trial(*alike(8), 3.0, COSTS[:3], plan()) is None
    assert trial(*alike(0), 3.0, COSTS, plan()) is None


def test_an_expected_gain_is_no_cost() -> None:
    tried = trial(*alike(4, gain=9.0), 1.0, COSTS, plan())
    assert tried is not None
    assert tried.cost == 0.0


# --- of drafters ----------------------------------------------------------------------------


def offered(views: BatchView, model: float, suffix: float | None = None) -> Choices:
    """Drafts of a serial model for every request, and of a free drafter if it has a rate."""
    count = len(views.requests)
    rates = [model] if suffix is None else [model, suffix]
    names = (MODEL, SUFFIX)[: len(rates)]
    who = np.repeat(np.arange(len(rates)), count)
    survival = np.multiply.accumulate(np.repeat(np.array(rates)[who][:, None], 8, 1), axis=1)
    prices = [DraftPrice(0.0, 0.0, 1.0), FREE][: len(rates)]
    places = np.tile(np.arange(count), len(rates))
    return Choices(
        places, names, who, survival, np.full(len(who), 8), prices, own_ms(prices, who, None)
    )


def test_an_idle_model_is_probed_for_all_requests_at_once() -> None:
    views = batch(*[request(i) for i in range(6)])
    found, probing = offered(views, 0.05), Probing()
    probing.elapse(1e6)
    best = allocated(found, 6.0)
    assert best.rows == 0
    probe = [probing.select(found, COSTS, best) for _ in range(SHORTEST)][-1]
    assert probe is not None
    assert probe.idle
    assert probe.lengths.tolist() == [PROBE_LENGTH] * 6
    assert probing.report()["time_share"] == pytest.approx((4.0 + 24 * 0.1) / 1e6, rel=0.2)


@pytest.mark.parametrize("shallow", [0, 2])
def test_beyond_its_pass_a_model_is_probed_for_all_that_get_there(shallow: int) -> None:
    """Requests that do not go as deep as the pass keep their drafts."""
    views = batch(*[request(i) for i in range(5)])
    found = offered(views, 0.9)
    found.survival[:shallow, 1:] = 0.01
    lineup = _lineup(found, depth=3)
    best = allocated(lineup.free, 5.0)
    deep = [i for i, length in enumerate(best.lengths.tolist()) if length == 3]
    assert deep == list(range(shallow, 5))
    probing = Probing()
    probing.elapse(1e6)
    explorer = Explorer(probing)
    probe = [explorer.select(lineup, COSTS, best, list(range(5))) for _ in range(SHORTEST)][-1]
    assert probe is not None
    assert not probe.idle
    assert [swap.place for swap in probe.swaps] == deep
    assert {swap.allotment.length for swap in probe.swaps} == {3 + DEEPER_LENGTH}
    assert probe.lengths.tolist() == [*best.lengths[:shallow].tolist(), *[0] * len(deep)]
    assert probe.ms == pytest.approx(DEEPER_LENGTH)
    assert len(deep) * (3 + DEEPER_LENGTH) <= best.rows + ROWS * 5


def test_a_model_that_everybody_has_a_better_drafter_than_is_tried_on_all() -> None:
    views = batch(*[request(i) for i in range(4)])
    both = offered(views, 0.2, 0.9)
    lineup = _lineup(both, chosen=SUFFIX)
    best = allocated(lineup.free, 4.0)
    probing = Probing()
    probing.elapse(1e6)
    explorer = Explorer(probing)
    probe = [explorer.select(lineup, COSTS, best, list(range(4))) for _ in range(SHORTEST)][-1]
    assert probe is not None
    assert probe.idle
    assert [swap.allotment for swap in probe.swaps] == [
        Allotment(i, MODEL, PROBE_LENGTH) for i in range(4)
    ]
    assert not probe.lengths.any()
    gain = 4 * sum(0.2**k for k in range(1, PROBE_LENGTH + 1))
    assert probe.gain == pytest.approx(gain)


def allocated(found: Choices, tokens: float) -> Allocation:
    return allocate(COSTS[: int(found.longest.sum()) + 1], tokens, found)


def _lineup(offers: Choices, depth: int = 0, chosen: str = MODEL) -> Lineup:
    places = np.arange(len(offers))
    free = offers.take(offers.places(chosen))
    if depth:
        free = chained(free, Pass(MODEL, depth, None), np.zeros(len(free), np.intp))
    return Lineup(free, [], free, 0, 0, offers, lambda: places)
