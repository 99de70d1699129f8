"""The simulated machine of a run: what steps and drafts cost, its noise, its limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from controller.simulate.drafters import SimulatedDrafter
from controller.simulate.step_cost import StepCost

Reals = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Machine:
    """cost: of a verify step. overhead_ms: of every step beside it. noise: relative standard
    deviation of a step's time. row_limit: rows of decoding requests in one step. chunk_rows: prompt
    rows that may share a step. drafters: in the order in which they are offered. chains: drafters
    without a model may continue a model's draft."""

    cost: StepCost
    drafters: Sequence[SimulatedDrafter]
    overhead_ms: float = 1.2
    decision_ms: tuple[float, float] = (0.0, 0.0)
    """What a step that looks for drafts takes beside it: by itself, and for each request."""
    noise: float = 0.01
    row_limit: int = 512
    chunk_rows: int = 2048
    max_batch: int = 256
    chains: bool = True
    slowdowns: Sequence[tuple[float, float]] = ()
    """(second, factor): from then on verify steps take so many times as long. The seconds rise."""

    def __post_init__(self) -> None:
        if any(one[0] >= after[0] for one, after in pairwise(self.slowdowns)):
            raise ValueError("machine.slowdowns: each must begin later than the one before it")

    def beside_ms(self, requests: int, looked: bool) -> float:
        """The time of a step beside its forward and its drafts."""
        fixed, each = self.decision_ms if looked else (0.0, 0.0)
        return self.overhead_ms + fixed + each * requests

    def factor(self, ms: float) -> float:
        """The slowdown in force at this time of the run."""
        found = 1.0
        for second, factor in self.slowdowns:
            if ms >= 1e3 * second:
                found = factor
        return found

    def factors(self, ms: Reals) -> Reals:
        """Those in force at these times, float64 [S]."""
        begins = [1e3 * second for second, _ in self.slowdowns]
        table = np.array([1.0, *(factor for _, factor in self.slowdowns)])
        return table[np.searchsorted(begins, ms, side="right")]
