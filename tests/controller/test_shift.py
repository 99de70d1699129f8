"""A machine that becomes slower or faster at once: the prices follow within seconds, whatever a
step takes; stalls and noise do not move them."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from statistics import fmean

import pytest

from controller.contract import CostPoint, Proposal, RequestOutcome, StepOutcome
from controller.cost import CostModel
from controller.shift import LAST, RUN, RUN_MS, Shift

TABLE = {4: 100.0, 8: 110.0, 16: 130.0, 32: 170.0}
CONTEXT = 256


def model() -> CostModel:
    return CostModel([CostPoint(4, rows, CONTEXT, ms) for rows, ms in TABLE.items()])


def step(
    slower: float, rows: int = 4, *, prefill: int = 0, beyond: float = 0.0, noise: float = 1.0
) -> StepOutcome:
    """A step of 4 requests on a machine that is so much slower: also drafting and the rest."""
    scale = slower * noise
    drafts = rows > 4
    proposal = Proposal("mtp", 4, rows // 4 - 1, 6.0 * scale * (rows // 4 - 1))
    return StepOutcome(
        1,
        4,
        rows,
        prefill,
        4 * CONTEXT,
        TABLE[rows] * scale + beyond,
        proposal.ms if drafts else 0.0,
        3.0 * scale,
        tuple(RequestOutcome(i, "none", 0, 0, 1) for i in range(4)),
        (proposal,) if drafts else (),
    )


def mixed(rng: random.Random) -> Iterator[int]:
    """Rows of steps that mostly draft, as a live plan's vary."""
    while True:
        yield rng.choice((4, 8, 8, 16, 16, 32))


def errors(cost: CostModel, slower: float) -> dict[str, float]:
    """Relative errors of what is predicted, by part."""
    found = {
        f"{rows} rows": cost.verify_ms(4, rows, 4 * CONTEXT) / (slower * ms)
        for rows, ms in TABLE.items()
    }
    found["drafting"] = cost.draft_price("mtp").ms(4, 3) / (slower * 18.0)
    found["overhead"] = cost.overhead_ms(4, True) / (slower * 3.0)
    return {part: abs(ratio - 1.0) for part, ratio in found.items()}


@pytest.mark.parametrize("noise", [0.0, 0.05, 0.15])
def test_a_load_that_multiplies_steps_by_five_is_followed_in_twenty_steps_and_back(
    noise: float,
) -> None:
    """100 ms become 500: twenty steps are ten seconds."""
    worst = 0.0
    for seed in range(10):
        rng, cost = random.Random(seed), model()
        rows = mixed(rng)
        for slower, steps in ((1.0, 200), (5.0, 20), (1.0, 20)):
            for _ in range(steps):
                cost.observe(step(slower, next(rows), noise=math.exp(rng.gauss(0.0, noise))))
            if slower > 1.0 or steps == 20:
                worst = max(worst, *errors(cost, slower).values())
    assert worst < (0.1 if noise < 0.1 else 0.2)


def test_plain_steps_alone_are_followed_and_so_are_rows_that_none_of_them_had() -> None:
    cost = model()
    for slower, steps in ((1.0, 100), (5.0, 20)):
        for _ in range(steps):
            cost.observe(step(slower))
    assert max(cost.verify_ms(4, rows, 4 * CONTEXT) / ms for rows, ms in TABLE.items()) < 5.5
    assert min(cost.verify_ms(4, rows, 4 * CONTEXT) / ms for rows, ms in TABLE.items()) > 4.5


def test_prefills_become_dearer_with_the_machine_before_any_was_seen_on_it() -> None:
    cost = model()
    for _ in range(100):
        cost.observe(step(1.0))
    for _ in range(20):
        cost.observe(step(1.0, prefill=100, beyond=200.0))
    for _ in range(20):
        cost.observe(step(5.0))
    assert cost.prefill_ms(4, 100, 4 * CONTEXT) == pytest.approx(1000.0, rel=0.1)


def test_a_change_at_once_raises_the_alarm_that_restarts_probing() -> None:
    cost = model()
    for _ in range(100):
        cost.observe(step(1.0))
    assert not cost.drifting
    for _ in range(RUN):
        cost.observe(step(5.0))
    assert cost.drifting


def test_rows_that_are_new_and_wrong_in_the_table_leave_the_others_alone() -> None:
    """All drafted rows by the same factor, as if the machine had become slower."""
    wrong = {4: 1.0, 8: 4.0, 16: 4.0, 32: 4.0}
    cost = CostModel([CostPoint(4, rows, CONTEXT, ms / wrong[rows]) for rows, ms in TABLE.items()])
    for _ in range(100):
        cost.observe(step(1.0))
    for i in range(RUN + 3):
        cost.observe(step(1.0, (8, 16, 32)[i % 3]))
    for rows, ms in TABLE.items():
        assert cost.verify_ms(4, rows, 4 * CONTEXT) == pytest.approx(ms, rel=0.2)
    assert cost.verify_ms(4, 4, 4 * CONTEXT) == pytest.approx(TABLE[4], rel=0.1)


def test_rows_that_change_by_another_factor_keep_a_part_of_the_difference() -> None:
    """Every step waits 400 ms longer, whatever its rows: five times as long, or thrice."""
    found: list[float] = []
    for seed in range(20):
        rng, cost = random.Random(seed), model()
        rows = mixed(rng)
        for more, steps in ((0.0, 200), (400.0, 20)):
            for _ in range(steps):
                cost.observe(step(1.0, next(rows), beyond=more))
        ratios = [cost.verify_ms(4, r, 4 * CONTEXT) / (ms + 400.0) for r, ms in TABLE.items()]
        found.append(max(abs(ratio - 1.0) for ratio in ratios))
    assert fmean(found) < 0.24
    assert max(found) < 0.42


@pytest.mark.parametrize("sigma", [0.0, 0.1])
def test_a_price_of_drafted_rows_that_changes_leaves_plain_steps_alone(sigma: float) -> None:
    rng, cost = random.Random(3), model()
    for more, steps in ((0.0, 100), (15.0, 8)):
        for i in range(steps):
            rows = (8, 16, 32)[i % 3]
            noise = math.exp(rng.gauss(0.0, sigma))
            cost.observe(step(1.0, rows, beyond=more * (rows - 4), noise=noise))
    assert cost.verify_ms(4, 16, 4 * CONTEXT) == pytest.approx(310.0, rel=0.05 + 1.5 * sigma)
    assert cost.verify_ms(4, 4, 4 * CONTEXT) == pytest.approx(100.0, rel=0.1)


def test_a_run_that_cannot_tell_the_machine_from_its_rows_is_divided() -> None:
    """Always the same drafted rows: their own price is right at once, of the others a part."""
    cost = model()
    for slower, steps in ((1.0, 100), (3.0, RUN)):
        for _ in range(steps):
            cost.observe(step(slower, 16))
    assert cost.verify_ms(4, 16, 4 * CONTEXT) == pytest.approx(390.0, rel=0.02)
    assert 1.3 * TABLE[4] < cost.verify_ms(4, 4, 4 * CONTEXT) < 1.8 * TABLE[4]


@pytest.mark.parametrize(("every", "stalled", "most"), [(20, 1, 0.05), (50, 3, 0.1), (64, 5, 0.15)])
def test_stalls_move_the_prices_by_a_few_percent_at_most(
    every: int, stalled: int, most: float
) -> None:
    """One in twenty, three or even five in a row: ten times as long."""
    cost = model()
    for _ in range(100):
        cost.observe(step(1.0))
    worst = 0.0
    for i in range(400):
        cost.observe(step(10.0 if i % every < stalled else 1.0))
        worst = max(worst, abs(cost.verify_ms(4, 4, 4 * CONTEXT) / TABLE[4] - 1.0))
    assert 0.0 < worst < most


@pytest.mark.parametrize("sigma", [0.1, 0.3, 0.4])
def test_heavy_noise_is_taken_for_no_change_and_leaves_no_bias(
    sigma: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    def course(run_ms: float) -> list[float]:
        monkeypatch.setattr("controller.shift.RUN_MS", run_ms)
        rng, cost, seen = random.Random(7), model(), []
        rows = mixed(rng)
        for _ in range(6000):
            cost.observe(step(1.0, next(rows), noise=math.exp(rng.gauss(0.0, sigma))))
            seen.append(math.log(cost.verify_ms(4, 8, 4 * CONTEXT) / TABLE[8]))
        return seen[1000:]

    found = course(RUN_MS)
    assert abs(sum(found) / len(found)) < 0.02
    assert found == course(math.inf)


def test_a_run_is_nearly_all_of_the_last_on_one_side_and_long_enough() -> None:
    def runs(errors: list[float], ms: float) -> list[list[int]]:
        shift: Shift[int] = Shift()
        return [found for i, e in enumerate(errors) if (found := shift.add(e, ms, i))]

    assert runs([1.0] * RUN, 100.0) == [list(range(RUN))]
    assert runs([1.0] * RUN, 10.0) == []
    assert runs([1.0] * (RUN - 1), 100.0) == []
    assert runs([1.0, -1.0] * LAST, 100.0) == []
    assert runs([0.2] * 3 * LAST, 100.0) == []
    assert runs([1.0, 1.0, 0.0, 1.0, 1.0, 0.0, 1.0, 1.0], 100.0) == [[0, 1, 3, 4, 6, 7]]
    assert runs([-1.0] * 2 * RUN, 100.0) == [list(range(RUN)), list(range(RUN, 2 * RUN))]
