"""What a bench run drafts with: its drafters, how many tokens, and the controller that does so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from controller.contract import Setting, StepOutcome
from controller.controller import AdaptiveController
from controller.cost import CostModel
from engine.drafters.registry import DRAFTERS

FREE_MS = 1000.0
"""What a step costs at any number of rows where rows are free."""


@dataclass(frozen=True)
class Mode:
    """drafters: those that may draft; with several the controller chooses one per request and
    step, and what continues a model's draft. warm: the corpus is loaded first. length: tokens that
    a single drafter drafts; 0 for the longest draft of the engine. priced: rows and drafts cost
    what they cost here, and the controller drafts what pays."""

    name: str
    drafters: tuple[str, ...]
    warm: bool = False
    length: int = 0
    priced: bool = False


class FreeRows(CostModel):
    """Every step costs the same, whatever its rows, and a model's draft what its weights say: the
    controller then drafts for the most tokens per step."""

    def verify_ms(self, requests: int, rows: int, context_tokens: int) -> float:
        return FREE_MS

    def verify_curve(self, requests: int, extra: int, context_tokens: int) -> NDArray[np.float64]:
        return np.full(extra + 1, FREE_MS)

    def row_ms(self, requests: int, rows: int, context_tokens: int) -> tuple[float, float]:
        return FREE_MS, 0.0

    def overhead_ms(self, requests: int, drafting: bool) -> float:
        return 0.0

    def observe(self, outcome: StepOutcome, looked: bool = True) -> None:
        pass


class Watched(AdaptiveController):
    """A controller that shows a listener every outcome first."""

    listener: Callable[[StepOutcome], None] | None = None

    def observe(self, outcome: StepOutcome) -> None:
        if self.listener is not None:
            self.listener(outcome)
        super().observe(outcome)


def controller(mode: Mode, draft_length: int, cost: CostModel | None = None) -> Watched:
    """Of the drafters that need no model it lets only the mode's draft. cost: of priced modes."""
    made = Watched(
        tuple(DRAFTERS),
        cost if cost is not None and mode.priced else FreeRows(),
        Setting(mode="off", max_draft_length=draft_length),
        tails=tuple(DRAFTERS),
    )
    for name in DRAFTERS:
        made.set_enabled(name, name in mode.drafters)
    if set(mode.drafters) <= set(DRAFTERS):
        made.configure(setting(mode, draft_length))
    return made


def setting(mode: Mode, draft_length: int) -> Setting:
    """Off without drafters, a single one pinned to its length, else the controller's choice."""
    if not mode.drafters:
        return Setting(mode="off", max_draft_length=draft_length)
    if len(mode.drafters) == 1 and not mode.priced:
        length = min(mode.length or draft_length, draft_length)
        return Setting("pinned", mode.drafters[0], length, draft_length)
    return Setting(max_draft_length=draft_length)
