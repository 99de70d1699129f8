"""Who decides for a request: operator limits > the request's wish > the pin > auto."""

from __future__ import annotations

from dataclasses import dataclass

from controller.contract import NONE, Setting, Wish
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
