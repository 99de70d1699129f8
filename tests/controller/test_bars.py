"""Bars in the controller's own plans: what they leave, when they stand, and what they bring."""

from __future__ import annotations

import itertools
import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.barring import Bars, bars_of
from controller.choices import Chain, Choices, Table
from controller.contract import RequestView, Setting
from controller.draft_cost import FREE, DraftPrice
from controller.margins import KNOWN, PLACES, Kept, MarginModel
from controller.planner import allocate, drafted_rows, expected, gains
from controller.promises import LEVEL, Promise, Promises
from tests.controller.mixed_engine import MODEL, SUFFIX, MixedWorld, chance
from tests.controller.test_margins import learn, outcome

ROW_MS = 2.5
"""Of a row of the only request; with more of them each costs a part of that."""


def margin(rng: random.Random) -> float:
    """Most tokens promise little, some much."""
    return rng.choice((0.2, 0.4, 6.0))


def world(size: int = 1, **given: object) -> MixedWorld:
    options: dict[str, object] = {
        "size": size, "model": lambda request: (0.5,), "margin": margin, "row_ms": ROW_MS / size,
        "depth_ms": 0.5, "start_ms": 0.1, "tails": (), "drafters": (MODEL,),
    }  # fmt: skip
    return MixedWorld(**(options | given))  # type: ignore[arg-type]


def row_costs(row_ms: float, count: int) -> Table:
    """ms of a step of 10 ms with 0 to count - 1 more rows."""
    return np.array([10.0 + row_ms * rows for rows in range(count)])


# --- what a bar leaves ---------------------------------------------------------------------------


def taught(
    depth: int, drafts: int = 2000, stop: float = 0.0
) -> tuple[MarginModel, list[list[float]]]:
    """A model of drafts whose tokens are accepted by `chance`, and what these promise. stop: they
    are made only as far as they promise as much."""
    model, rng, made = MarginModel(), random.Random(3), list[list[float]]()
    for _ in range(drafts):
        margins = [margin(rng) for _ in range(depth)]
        for place, value in enumerate(margins):
            model.add(value, place == 0, chance(value))
        survival = list(itertools.accumulate(map(chance, margins), lambda a, b: a * b))
        made.append(survival)
        model.drafted(margins[: sum(value >= stop for value in survival) + 1])
    return model, made


@pytest.mark.parametrize("stop", [0.0, 0.1])
@pytest.mark.parametrize("least", [0.1, 0.3, 0.6])
def test_what_a_bar_leaves_is_counted_from_the_drafts(least: float, stop: float) -> None:
    model, made = taught(4, stop=stop)
    kept = model.kept(least)
    for place in range(3):
        left = [one[place] for one in made if one[place] >= least]
        rows = len(left) / len(made)
        tokens = sum(left) / sum(one[place] for one in made)
        assert kept.rows[place] == pytest.approx(rows, abs=0.08)
        assert kept.tokens[place] == pytest.approx(tokens, abs=0.12)


def test_positions_beyond_all_drafts_lose_as_the_last_one() -> None:
    kept = taught(2)[0].kept(0.3)
    for share in kept:
        ratio = share[1] / share[0]
        assert share[2:4] == pytest.approx(share[1] * ratio ** np.arange(1, 3))
    assert len(kept.rows) == len(kept.tokens) == PLACES


def test_without_drafts_a_bar_is_thought_to_leave_all() -> None:
    kept = MarginModel().kept(0.5)
    assert kept.rows.tolist() == kept.tokens.tolist() == [1.0] * PLACES


@given(
    st.lists(st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=20), max_size=80),
    st.floats(0.001, 4.0),
)
def test_shares_are_shares_and_fall(drafts: list[list[float]], least: float) -> None:
    model = MarginModel()
    for values in drafts:
        model.drafted(values)
    for share in model.kept(least):
        assert ((share >= 0.0) & (share <= 1.0)).all()
        assert (np.diff(share) <= 1e-12).all()


def test_bars_stand_at_levels_and_are_found_once() -> None:
    promises = Promises()
    assert promises.promised(0.2, [MODEL]) == {}
    for _ in range(2 * KNOWN):
        learn(promises, outcome((2.0, 2.0), verified=2, accepted=1))
    assert promises.promised(0.0, ["mtp"]) == {}
    assert promises.promised(0.2, ["other"]) == {}
    first = promises.promised(0.2, ["mtp"])["mtp", False]
    assert abs(math.log(first.bar.least / 0.2)) <= LEVEL / 2 + 1e-9
    assert promises.promised(0.2001, ["mtp"])["mtp", False] is first
    assert promises.promised(0.4, ["mtp"])["mtp", False].bar.least > 1.8 * first.bar.least
    promises.forget("mtp")
    assert promises.promised(0.2, ["mtp"]) == {}


# --- plans ---------------------------------------------------------------------------------------


def view(request: int, temperature: float = 0.0) -> RequestView:
    return RequestView(request, "default", 100, 1000, temperature, seeded=False)


def shares(rows: list[float], tokens: list[float]) -> Kept:
    def filled(values: list[float]) -> Table:
        return np.array(values + [0.0] * (PLACES - len(values)))

    return Kept(filled(rows), filled(tokens))


BAR = MarginModel().bar(0.3)
LEFT = shares([0.5, 0.25], [0.9, 0.8])


def test_each_kind_of_request_has_its_own_bar() -> None:
    promised = {(MODEL, True): Promise(BAR, LEFT)}
    bars = Bars(MODEL, promised, [view(1), view(2, 0.7)])
    assert bars.by_request == [None, BAR]
    found = bars.of(np.array([[0.8, 0.4], [0.8, 0.0]]), np.array([0, 1]))
    assert found.rows.tolist() == [[1.0, 1.0], [0.5, 0.0]]
    assert found.tokens.tolist() == [[0.8, 0.4], [0.8 * 0.9, 0.0]]
    assert set(bars_of([MODEL, "mtp"], promised, [view(1)])) == {MODEL}


def barred(survival: list[list[float]], rival: list[list[float]] | None = None) -> Choices:
    """Choices of the model under bars, two positions deep, and of a rival beside them."""
    both, count = survival + (rival or []), len(survival)
    who = np.array([0] * count + [1] * (len(both) - count))
    table, places = np.array(both), np.arange(len(both))
    promised = {(MODEL, False): Promise(BAR, LEFT)}
    bars = Bars(MODEL, promised, [view(i) for i in places.tolist()])
    chain = Chain(MODEL, 2, bars=bars.by_request)
    price = DraftPrice(0.0, 0.0, 0.2)
    longest = np.full(len(both), 2)
    left = bars.of(table * (who == 0)[:, None], places)
    return Choices(
        places, (MODEL, SUFFIX), who, table, longest, [price, FREE], chain=chain, barred=left
    )


def test_a_plan_with_bars_expects_what_they_leave() -> None:
    choices = barred([[0.6, 0.4]])
    costs = row_costs(2.0, 3)
    found = allocate(costs, 1.0, choices)
    assert found.barred
    assert found.lengths.tolist() == [2]
    assert found.tokens == pytest.approx(1.0 + 0.6 * 0.9 + 0.4 * 0.8)
    assert found.ms == pytest.approx(10.0 + 2.0 * 0.75 + 2 * 0.2)
    assert found.rows == 1
    again = expected(costs, 1.0, choices, found.lengths, barred=True)
    assert again == pytest.approx((found.tokens, found.ms))
    assert drafted_rows(choices, found.lengths, barred=True) == pytest.approx(0.75)
    assert drafted_rows(choices, found.lengths) == 2.0
    assert gains(choices, found.lengths).tolist() == pytest.approx([1.0])


def test_others_have_the_rows_that_bars_leave_free() -> None:
    choices = barred([[0.6, 0.4]], [[0.7, 0.1]])
    costs = row_costs(2.0, 5)
    found = allocate(costs, 2.0, choices)
    assert found.barred
    assert found.lengths.tolist() == [2, 1]
    assert found.tokens == pytest.approx(2.0 + 0.86 + 0.7)
    assert found.ms == pytest.approx(10.0 + 2.0 * 1.75 + 0.4)


def test_without_room_for_whole_drafts_there_are_no_bars() -> None:
    found = allocate(row_costs(0.1, 2), 1.0, barred([[0.6, 0.4]]))
    assert not found.barred
    assert found.lengths.tolist() == [1]


def test_bars_that_leave_too_little_stand_nowhere() -> None:
    costs = row_costs(9.0, 5)
    found = allocate(costs, 2.0, barred([[0.6, 0.4]], [[0.1, 0.1]]))
    assert not found.barred
    assert found.lengths.tolist() == [0, 0]
    one = allocate(row_costs(4.0, 5), 2.0, barred([[0.1, 0.0]], [[0.9, 0.1]]))
    assert not one.barred
    assert one.lengths.tolist() == [0, 1]


@given(
    st.lists(st.lists(st.floats(0.0, 1.0), min_size=2, max_size=2), min_size=1, max_size=4),
    st.lists(st.lists(st.floats(0.01, 1.0), min_size=2, max_size=2), max_size=3),
    st.floats(0.01, 8.0),
    st.integers(0, 14),
)
def test_a_plan_with_bars_is_never_worse_than_one_without_the_model(
    survival: list[list[float]], rival: list[list[float]], row_ms: float, room: int
) -> None:
    choices = barred(
        [sorted(one, reverse=True) for one in survival],
        [sorted(one, reverse=True) for one in rival],
    )
    costs = row_costs(row_ms, min(room, 2 * len(choices)) + 1)
    found = allocate(costs, float(len(choices)), choices)
    others = np.flatnonzero(choices.who == 1)
    alone = choices.take(others)
    count = min(len(costs) - 1, 2 * len(others))
    rest = allocate(costs[: count + 1], float(len(choices)), Choices(
        alone.requests, alone.names, alone.who, alone.survival, alone.longest, alone.prices
    ))  # fmt: skip
    assert found.goodput >= rest.goodput * (1.0 - 1e-9)
    assert int(found.lengths.sum()) < len(costs) or not len(costs)


# --- in a running engine -------------------------------------------------------------------------


@pytest.mark.parametrize(("size", "more"), [(1, 1.008), (8, 1.015)])
def test_bars_bring_more_than_whole_drafts(size: int, more: float) -> None:
    with_bars = world(size).settle(1200).run(1500)
    whole = world(size, tells=False).settle(1200).run(1500)
    assert with_bars.goodput > more * whole.goodput
    drafts = [one for one in with_bars.allotments if one.drafter == MODEL]
    assert sum(one.bar is not None for one in drafts) > 0.9 * len(drafts)
    assert not any(one.bar for one in whole.allotments)


def test_what_is_predicted_of_plans_with_bars_comes_true() -> None:
    found = world(4).settle(1500).run(1500)
    current = found.controller.report()["recent"]
    assert isinstance(current, dict)
    tokens, ms = current["tokens"], current["ms"]
    assert tokens / ms == pytest.approx(found.goodput, rel=0.03)


def test_cheap_rows_need_no_bars() -> None:
    found = world(4, row_ms=0.01).settle(1000).run(300)
    assert found.mean_depth(MODEL) > 1.0
    assert not any(one.bar for one in found.allotments)


def test_a_length_that_was_asked_for_has_no_bar() -> None:
    found = world(2).settle(1200)
    found.controller.configure(Setting("pinned", MODEL, 3))
    found.run(50)
    assert {(one.length, one.bar) for one in found.allotments} == {(3, None)}


def test_a_head_under_a_bar_is_continued_only_when_it_came_whole() -> None:
    found = world(
        4, tails=(SUFFIX,), drafters=(MODEL, SUFFIX), tail=lambda request: (0.95,), depth_ms=1.0
    )
    found.settle(1500).run(500)
    chains = [one for one in found.allotments if one.tail and one.bar]
    assert len(chains) > 0.5 * len(found.allotments)
    assert found.goodput > 1.1 * world(4, depth_ms=1.0).settle(1500).run(500).goodput


def test_what_bars_keep_out_is_looked_at_now_and_then() -> None:
    """Else nobody would notice that all of it has become good."""
    found = world(2, margin=lambda rng: rng.choice((0.2, 6.0)))
    found.settle(1500)
    assert any(one.bar for one in found.allotments) or found.run(100).allotments
    report = found.controller.report()["probing"]
    assert isinstance(report, dict)
    assert report["interval_steps"].get(MODEL + ", whole", 0) > 0
    assert report["time_share"] <= 0.004
