"""What-if: the goodput that uniform lengths would have at a batch size and context."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from controller.acceptance import Acceptance
from controller.contract import NONE, Candidate, WhatIf
from controller.cost import CostModel
from controller.regime import candidate

LENGTHS = (1, 2, 3, 4, 6, 8, 12, 16)


def what_if(
    batch_size: int,
    context_len: int,
    drafters: Sequence[str],
    max_length: int,
    cost: CostModel,
    acceptance: Acceptance,
    offered: Callable[[str], float],
) -> WhatIf:
    """Candidates from the live models. offered(drafter): share of requests that have a draft.
    ValueError below one request or at a negative context."""
    if batch_size < 1 or context_len < 0:
        raise ValueError("batch_size must be 1 or more and context_len 0 or more")

    def evaluate(name: str, length: int) -> Candidate:
        n, context = batch_size, batch_size * context_len
        ms = cost.verify_ms(n, n, context) + cost.overhead_ms(n, False)
        drafting = n * offered(name) if length else 0.0
        survival = acceptance.typical(name, length) if length else []
        if drafting:
            # Below one drafting request per step, some steps draft and the others are plain.
            count = max(drafting, 1.0)
            step_ms = cost.verify_ms(n, n + round(count * length), context)
            step_ms += cost.overhead_ms(n, True) + cost.draft_price(name).ms(count, length)
            ms += min(drafting, 1.0) * (step_ms - ms)
        gained = drafting * sum(survival)
        return candidate(
            name,
            length,
            n + gained,
            ms,
            gained=gained,
            first=survival[0] if survival else 0.5,
            evidence=acceptance.evidence(name) if length else 1.0,
            spread=cost.spread,
        )

    found = [evaluate(NONE, 0)]
    found += [evaluate(d, n) for d in drafters for n in LENGTHS if n <= max_length]
    return WhatIf(batch_size, context_len, tuple(found), max(found, key=lambda c: c.goodput))
