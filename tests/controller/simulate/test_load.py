"""Arrivals: Poisson, bursts, ramps and recorded ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from controller.simulate.load import bursts, poisson, ramp, recorded
from tests.controller.simulate.small import library

HEAD = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


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


def test_recorded_arrivals_keep_their_gaps_and_prompts(tmp_path: Path) -> None:
    path = tmp_path / "arrivals.csv"
    path.write_text(
        HEAD + "2023-11-16 18:17:03.9799600,4808,10\n2023-11-16 18:17:04.4799600,110,100000\n"
        "2023-11-16 18:20:00.0000000,110,27\n"
    )
    texts = library()
    one, two = recorded(path, "mixed", texts, np.random.default_rng(0), seconds=60.0, speed=2.0)
    assert (one.ms, one.prompt, one.output) == (0.0, 4808, 10)
    assert two.ms == pytest.approx(250.0)
    assert two.output == texts.last[two.text] - texts.first[two.text]


@pytest.mark.parametrize("line", ["yesterday,1,2", "2023-11-16 18:17:03,x,2", "2023-11-16"])
def test_a_line_that_is_no_arrival_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "arrivals.csv"
    path.write_text(HEAD + "2023-11-16 18:17:03.97,1,2\n" + line + "\n")
    with pytest.raises(ValueError, match=r"arrivals\.csv, line 3"):
        recorded(path, "mixed", library(), np.random.default_rng(0))


def test_texts_that_there_are_not_are_named() -> None:
    with pytest.raises(ValueError, match="'other' is not one of mixed"):
        library().order("other", np.random.default_rng(0))
