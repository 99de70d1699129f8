"""What calibration tells while it measures, and when there is nothing to measure."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from engine import calibration
from engine.calibration import cost_points
from engine.kv import KvPool

SIDE = torch.zeros(4096, 1, 1)
POOL = KvPool((SIDE,), (SIDE,), 256, 16)
EXECUTOR: Any = SimpleNamespace(decoder=SimpleNamespace(shape=SimpleNamespace(context_length=2048)))


def calibrate(folder: Path, told: list[tuple[float, str]]) -> tuple[int, bool]:
    points, cached = cost_points(
        EXECUTOR, POOL, 2, 3, "key", folder, fresh=False, progress=lambda *now: told.append(now)
    )
    return len(points), cached


def test_every_measurement_is_told_and_so_is_a_table_that_was_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[float, str]] = []
    asked: list[int] = []  # how much was told before each step

    def measured(*_: object) -> float:
        asked.append(len(told))
        return 1.0

    monkeypatch.setattr(calibration, "_typical_ms", measured)
    count, cached = calibrate(tmp_path, told)
    assert not cached
    assert asked == list(range(2, count + 2))  # one before the first, which waits for memory
    fractions = [fraction for fraction, _ in told]
    assert fractions == sorted(fractions)
    assert (fractions[0], fractions[-1]) == (0.0, 1.0)
    assert all("Measur" in text for _, text in told)
    told.clear()
    assert calibrate(tmp_path, told) == (count, True)
    assert told == [(1.0, "Step costs are known from an earlier start")]


def test_the_fraction_goes_with_the_time_when_steps_are_slow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter(range(0, 10_000, 15))
    monkeypatch.setattr(calibration, "_typical_ms", lambda *_: 1.0)
    monkeypatch.setattr(calibration, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    told: list[tuple[float, str]] = []
    assert calibrate(tmp_path, told) == (2, False)  # after 15 and 30 of 40 seconds
    assert [fraction for fraction, _ in told] == [0.0, 15 / 40, 30 / 40, 1.0]
