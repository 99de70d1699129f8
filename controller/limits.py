"""What the operator's constraints, a TPOT target and a draft budget, did to the plans of steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

BY_TARGET, BY_BUDGET = "target_decides", "budget_decides"
"""Names of the shares of steps in which each of them decided."""
BEST = "the best goodput"
OFTEN = 0.5
"""A constraint that decides more steps than that shapes the plan."""


class Beyond(NamedTuple):
    """The plan of the best goodput, which a constraint did not admit. goodput: predicted tokens per
    second. amount: its TPOT in ms, or the tokens that it would draft."""

    goodput: float
    amount: float


class Limited(NamedTuple):
    """One step under the constraints, None for those that are not set. tpot_ms: predicted, of the
    slowest request. by_target, by_budget: what was not admitted, None where nothing was lost."""

    target_ms: float | None
    budget: int | None
    tpot_ms: float | None
    by_target: Beyond | None
    by_budget: Beyond | None


class LimitMeans:
    """Exponential means of steps under the constraints, at the rates that they come with; what was
    not admitted is averaged over the steps in which it was not."""

    def __init__(self) -> None:
        self._means: dict[str, float] = {}

    def update(self, limited: Limited, rate: float) -> None:
        """Take in a step; rate 1 starts afresh."""
        if rate >= 1.0:
            self._means = {}
        if limited.target_ms is not None and limited.tpot_ms is not None:
            self._means["tpot_target_ms"] = limited.target_ms
            self._move("tpot_ms", limited.tpot_ms, rate)
            self._move(BY_TARGET, float(limited.by_target is not None), rate)
            if limited.by_target is not None:
                self._move("untargeted_goodput", limited.by_target.goodput, rate)
                self._move("untargeted_tpot_ms", limited.by_target.amount, rate)
        if limited.budget is not None:
            self._means["draft_budget"] = limited.budget
            self._move(BY_BUDGET, float(limited.by_budget is not None), rate)
            if limited.by_budget is not None:
                self._move("unbudgeted_goodput", limited.by_budget.goodput, rate)
                self._move("unbudgeted_draft_tokens", limited.by_budget.amount, rate)

    def means(self) -> Mapping[str, float]:
        """By name; those of a constraint only where it is set."""
        return self._means

    def _move(self, name: str, value: float, rate: float) -> None:
        old = self._means.get(name, value)
        self._means[name] = old + rate * (value - old)


def deciding(means: Mapping[str, float], held: str | None = None) -> str | None:
    """The share, by name, of the constraint that decides most of the steps, None for none. held:
    the one that did so far, which is let go later."""
    share, name = max((means.get(name, 0.0), name) for name in (BY_TARGET, BY_BUDGET))
    return name if share > (OFTEN / 2.0 if name == held else OFTEN) else None


def because_of_target(means: Mapping[str, float], best: str = BEST) -> str:
    """The clause that says what the target decides, or that it no longer does. best: what the plan
    without it is called."""
    target, tpot = means.get("tpot_target_ms", 0.0), means.get("tpot_ms", 0.0)
    if means.get(BY_TARGET, 0.0) <= OFTEN:
        return f"the TPOT at {best} is {tpot:.1f} ms, within the target of {target:g} ms"
    kept = "the plan's is" if tpot <= target else "nothing meets it, and the shortest found is"
    return (
        f"{best} was {means['untargeted_goodput']:.0f} tokens/s with a TPOT of "
        f"{means['untargeted_tpot_ms']:.1f} ms, over the target of {target:g} ms; "
        f"{kept} {tpot:.1f} ms"
    )


def because_of_budget(means: Mapping[str, float], best: str = BEST) -> str:
    """The clause that says what the budget decides, or that it no longer does. best: what the plan
    without it is called."""
    budget = means.get("draft_budget", 0.0)
    if means.get(BY_BUDGET, 0.0) <= OFTEN:
        return f"{best} stays within the budget of {budget:.0f} draft tokens per step"
    return (
        f"{best} was {means['unbudgeted_goodput']:.0f} tokens/s with "
        f"{means['unbudgeted_draft_tokens']:.1f} draft tokens per step, over the budget of "
        f"{budget:.0f}"
    )
