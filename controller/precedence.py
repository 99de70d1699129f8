"""Who decides for a request: operator limits > the request's wish > the pin > auto."""

from __future__ import annotations

from dataclasses import dataclass

from controller.contract import (
    MAX_DRAFT_BUDGET,
    MAX_TPOT_TARGET_MS,
    NONE,
    BatchView,
    Setting,
    Wish,
)
from controller.schedule import check_schedule


@dataclass(frozen=True, slots=True)
class Rule:
    """drafter None: any enabled drafter. length None: the controller picks D, 0 included.
    chosen_by: "operator", "request" or "controller"."""

    drafter: str | None
    length: int | None
    chosen_by: str


PLAIN_BY_OPERATOR = Rule(NONE, 0, "operator")
PLAIN_BY_REQUEST = Rule(NONE, 0, "request")
FREE = Rule(None, None, "controller")


def rule_for(wish: Wish, setting: Setting) -> Rule:
    """What may be allotted to a request with the wish, before the caps. `off` is an operator's
    limit, so no wish overrides it. A wished D without a drafter keeps the pinned drafter, if there
    is one."""
    if setting.mode == "off":
        return PLAIN_BY_OPERATOR
    if not wish.enabled or wish.drafter == NONE or wish.draft_length == 0:
        return PLAIN_BY_REQUEST
    pinned = setting.mode == "pinned"
    if wish.drafter is not None:
        return Rule(wish.drafter, wish.draft_length, "request")
    if wish.draft_length is not None:
        return Rule(setting.drafter if pinned else None, wish.draft_length, "request")
    if not pinned:
        return FREE
    if setting.drafter == NONE or setting.draft_length == 0:
        return PLAIN_BY_OPERATOR
    return Rule(setting.drafter, setting.draft_length, "operator")


def room_of(batch: BatchView, setting: Setting) -> int:
    """How many tokens may be drafted in the step: what the engine has room for, within the
    operator's budget, of which requests elsewhere have their share. Nobody's wish or pin goes
    beyond it."""
    room, n = max(batch.free_rows, 0), len(batch.requests)
    if setting.draft_budget is None:
        return room
    return min(room, setting.draft_budget * (n - len(batch.elsewhere)) // n)


def check_setting(setting: Setting, drafters: tuple[str, ...]) -> None:
    """ValueError naming the field when the setting makes no sense for these drafters."""
    if setting.mode not in ("auto", "pinned", "off"):
        raise ValueError(f"mode: {setting.mode!r} is not one of auto, pinned, off")
    if setting.mode == "pinned" and setting.drafter is None:
        raise ValueError("drafter: pinned mode needs a drafter")
    if setting.drafter is not None and setting.drafter not in (NONE, *drafters):
        allowed = ", ".join((NONE, *drafters))
        raise ValueError(f"drafter: {setting.drafter!r} is not one of {allowed}")
    if setting.max_draft_length < 0:
        raise ValueError("max_draft_length: must be 0 or more")
    if setting.draft_length is not None and not (
        0 <= setting.draft_length <= setting.max_draft_length
    ):
        raise ValueError(f"draft_length: must be 0 to {setting.max_draft_length}")
    check_schedule(setting)
    _check_constraints(setting)


def _check_constraints(setting: Setting) -> None:
    target, budget = setting.tpot_target_ms, setting.draft_budget
    if target is not None and not 0.0 < target <= MAX_TPOT_TARGET_MS:
        raise ValueError(f"tpot_target_ms: must be above 0 and at most {MAX_TPOT_TARGET_MS:.0f}")
    if budget is not None and not 0 < budget <= MAX_DRAFT_BUDGET:
        raise ValueError(f"draft_budget: must be 1 to {MAX_DRAFT_BUDGET}")
    for field, value in (("tpot_target_ms", target), ("draft_budget", budget)):
        if value is not None and setting.mode == "off":
            raise ValueError(f"{field}: has no effect in mode off; leave it out")
