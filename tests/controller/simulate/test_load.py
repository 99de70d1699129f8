"""Arrivals: Poisson, bursts, ramps and recorded ones."""

from __future__ import annotations

import numpy as np
import pytest

from controller.simulate import load
from controller.simulate.arrival_file import Came
from controller.simulate.load import bursts, poisson, ramp, recorded
from tests.controller.simulate.small import library


def times(rate: object, peak: float, seconds: float = 400.0) -> np.ndarray:
    found = poisson(rate, peak, seconds, np.random.default_rng(0))  # type: ignore[arg-type]
    return np.array(found) / 1e3


def test_a_poisson_process_has_its_rate_and_its_spread() -> None:
    found = times(lambda second: 5.0, 5.0)
    assert len(found) == pytest.approx(2000, rel=0.05)
    gaps = np.diff(found)
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.1)


def test_bursts_come_in_the_first_part_of_every_period() -> None:
    found = times(bursts(1.0, 20.0, every=10.0, share=0.2), 20.0)
    inside = (found % 10.0 < 2.0).sum()
    assert inside / 400 == pytest.approx(0.2 * 20.0, rel=0.1)
    assert (len(found) - inside) / 400 == pytest.approx(0.8, rel=0.15)


def test_a_ramp_rises_linearly() -> None:
    found = times(ramp(0.0, 10.0, 400.0), 10.0)
    assert (found < 200.0).mean() == pytest.approx(0.25, abs=0.03)


def test_more_requests_than_a_run_takes_are_an_error_not_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A ramp that just ended would never reach its peak."""
    monkeypatch.setattr(load, "MOST_ARRIVALS", 100)
    assert len(times(lambda second: 5.0, 5.0, 15.0)) < 100
    with pytest.raises(ValueError, match=r"more than 100 requests .* of 400 s; lower the rate"):
        times(ramp(0.0, 10.0, 400.0), 10.0)


def test_requests_of_a_file_get_texts_and_of_a_longer_text_the_end() -> None:
    texts = library()
    came = [Came(0.0, 4808, 10), Came(0.25, 0, 100_000), Came(1.0, 7, 0)]
    one, two, three = recorded(came, "mixed", texts, np.random.default_rng(0))
    assert (one.ms, one.prompt, one.output) == (0.0, 4808, 10)
    assert (two.ms, two.prompt) == (250.0, 1)
    assert two.output == texts.last[two.text] - texts.first[two.text]
    assert (three.prompt, three.output) == (7, 1)


def test_texts_that_there_are_not_are_named() -> None:
    with pytest.raises(ValueError, match="'other' is not one of mixed"):
        library().order("other", np.random.default_rng(0))
