"""What time and rows are worth follows the batch at once, and the gain of recent plans smoothly."""

from __future__ import annotations

import pytest

from controller.contract import CostPoint
from controller.cost import CostModel
from controller.pricing import RATE, Pricing


def test_before_the_first_plan_time_is_worth_what_plain_decoding_makes_of_it() -> None:
    price = Pricing().at(requests=8, plain_ms=10.0, row_ms=0.5)
    assert price.per_ms == pytest.approx(0.8)
    assert price.per_row == pytest.approx(0.4)


def test_a_change_of_load_is_priced_in_at_once() -> None:
    pricing = Pricing()
    for _ in range(50):
        pricing.learn(1.5)
    assert pricing.at(1, 8.0, 0.02).per_ms == pytest.approx(1.5 / 8.0)
    assert pricing.at(64, 10.0, 0.02).per_ms == pytest.approx(1.5 * 64 / 10.0)


def test_the_first_plan_counts_in_full_and_later_ones_a_tenth() -> None:
    pricing = Pricing()
    pricing.learn(3.0)
    assert pricing.gain == pytest.approx(3.0)
    for _ in range(200):
        pricing.learn(2.0)
    pricing.learn(4.0)
    assert pricing.gain == pytest.approx(2.0 + RATE * 2.0, rel=1e-3)


def test_the_price_of_a_row_is_its_mean_over_the_next_rows_as_corrected() -> None:
    table = [CostPoint(4, rows, 128, 8.0 + 0.25 * rows) for rows in (4, 8, 16, 32)]
    plain, row = CostModel(table).row_ms(4, 16, 512)
    assert plain == pytest.approx(9.0)
    assert row == pytest.approx(0.25)
    falling = [CostPoint(4, rows, 128, ms) for rows, ms in ((4, 12.0), (32, 10.0))]
    assert CostModel(falling).row_ms(4, 16, 512)[1] == 0.0
