"""Curves of buckets are kept while nothing changes them, and only then."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.bucket_rates import BucketRates


def made() -> tuple[BucketRates, list[int]]:
    """Two drafters with two rows each."""
    rates, rows = BucketRates(), list[int]()
    for _ in range(2):
        number = rates.add_drafter()
        rates.parents(number)[:] = 0.5
        rows += [rates.add_row(number, match) for match in (0, 3)]
    return rates, rows


def afresh(rates: BucketRates, row: int, length: int) -> list[float]:
    """As a reader finds it who has never read before."""
    for curves in rates._curves:
        curves.clear()
    return rates.curve(row, length)


CHANGES: dict[str, Callable[[BucketRates, int], object]] = {
    "a draft": lambda rates, row: rates.learn(row, 2, 3, ()),
    "chances": lambda rates, row: rates.learn(row, 0, 2, (0.9, 0.1)),
    "a cut": lambda rates, row: rates.cut([row], slice(0, 4)),
    "clearing": lambda rates, row: rates.clear(row),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_changes_a_row_changes_its_curve(change: str) -> None:
    rates, rows = made()
    for row in rows:
        for _ in range(20):
            rates.learn(row, 1, 2, ())
        rates.curve(row, 8)
        CHANGES[change](rates, row)
        assert rates.curve(row, 8) == afresh(rates, row, 8)


def test_what_a_drafter_does_changes_the_curves_of_its_rows() -> None:
    rates, rows = made()
    before = [rates.curve(row, 4) for row in rows]
    rates.parents(1)[:] = 0.9
    after = [rates.curve(row, 4) for row in rows]
    assert after[:2] == before[:2]
    assert after[2][0] > before[2][0]
    assert after[3][0] > before[3][0]


def test_a_longer_curve_begins_as_the_shorter_one() -> None:
    rates, rows = made()
    rates.learn(rows[1], 3, 4, ())
    short = rates.curve(rows[1], 3)
    assert rates.curve(rows[1], 10)[:3] == short
    assert len(rates.curve(rows[1], 10)) == 10
    assert rates.curve(rows[1], 2) == short[:2]


def test_who_reads_a_curve_may_write_to_it() -> None:
    rates, rows = made()
    wanted = rates.curve(rows[0], 5)
    for _ in range(2):
        rates.curve(rows[0], 5)[:] = [0.0] * 5
    assert rates.curve(rows[0], 5) == wanted


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5), st.integers(1, 6)), max_size=40))
def test_it_is_what_the_table_says(told: list[tuple[int, int, int]]) -> None:
    rates, rows = made()
    for place, accepted, length in told:
        rates.learn(rows[place], min(accepted, length), length, ())
        rates.curve(rows[place], length)
    rates.settle()
    for row in rows:
        odds = rates.odds[:6, row]
        assert rates.curve(row, 6) == pytest.approx((odds / (1.0 + odds)).tolist())
