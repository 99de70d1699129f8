"""Reason codes of the policies' decisions, beside those of the adaptive controller."""

from __future__ import annotations

RULE = "RULE"
TABLE = "TABLE"
TIER_UP = "TIER_UP"
TIER_DOWN = "TIER_DOWN"
TIER_TRIAL = "TIER_TRIAL"
GOODPUT = "GOODPUT"
ARM = "ARM"
GATE_CLOSED = "GATE_CLOSED"
GATE_OPEN = "GATE_OPEN"
BUDGET = "BUDGET"

POLICY_REASONS: dict[str, str] = {
    RULE: "The policy's rule is the same for every step; its drafter was loaded, disabled or used "
    "more.",
    TABLE: "The policy's table gives another D at this batch size.",
    TIER_UP: "The average of accepted tokens is high enough for the next tier of D.",
    TIER_DOWN: "The average of accepted tokens is too low for this tier of D.",
    TIER_TRIAL: "The policy tries the smallest D again after a while without drafts.",
    GOODPUT: "Another D has the highest goodput by one acceptance rate and the measured table.",
    ARM: "The bandit favours another drafter and D.",
    GATE_CLOSED: "Fewer drafted tokens are accepted than the policy's gate asks for.",
    GATE_OPEN: "The pause of the policy's gate is over; it drafts again.",
    BUDGET: "The budget of drafted rows that is worth its time has clearly become another one.",
}
