"""The goodput that one uniform plan would have, from the live models, for a decision's record."""

from __future__ import annotations

from collections.abc import Callable

from controller.acceptance import Acceptance
from controller.contract import NONE, Candidate
from controller.cost import CostModel
from controller.outlook import Outlook
from controller.regime import candidate


def predict(
    drafter: str,
    length: float,
    requests: int,
    context_len: int,
    cost: CostModel,
    acceptance: Acceptance,
    offered: Callable[[str], float],
) -> Candidate:
    """Every request with a draft drafts `length` tokens (rounded for the prediction). offered: the
    share of requests that have one."""
    outlook = Outlook(cost, acceptance, offered)
    whole = 0 if drafter == NONE else round(length)
    if whole:
        found = outlook.drafting(drafter, [whole], requests, context_len)[0]
    else:
        found = outlook.plain(requests, context_len)
    return candidate(
        drafter,
        length,
        found.tokens,
        found.ms,
        gained=found.gained,
        first=acceptance.typical(drafter, 1)[0] if whole else 0.5,
        evidence=acceptance.evidence(drafter) if whole else 1.0,
        spread=cost.spread,
    )
