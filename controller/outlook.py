"""Outlook: what uniform lengths would give at a batch size and context, from the live models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from controller.acceptance import Acceptance
from controller.contract import NONE, Candidate, WhatIf
from controller.cost import CostModel
from controller.regime import candidate

LENGTHS = (1, 2, 3, 4, 6, 8, 12, 16)


@dataclass(frozen=True, slots=True)
class Prediction:
    """A step in which every request with a draft drafts the same length.

    tokens and ms: expected of a step of the whole batch, on average over steps with and without
    drafts. gained: accepted tokens among them. acceptance_length: tokens of a request that drafts.
    draft_ms and verify_ms: of a step with drafts."""

    tokens: float
    ms: float
    gained: float
    acceptance_length: float
    draft_ms: float
    verify_ms: float

    @property
    def goodput(self) -> float:
        """Tokens per ms."""
        return self.tokens / self.ms


class Outlook:
    """Predictions from the live models. offered(drafter): share of requests that have a draft."""

    def __init__(
        self, cost: CostModel, acceptance: Acceptance, offered: Callable[[str], float]
    ) -> None:
        self._cost = cost
        self._acceptance = acceptance
        self._offered = offered

    def plain(self, batch_size: int, context_len: int) -> Prediction:
        """Plain decoding."""
        n, cost = batch_size, self._cost
        verify_ms = cost.verify_ms(n, n, n * context_len)
        ms = verify_ms + cost.overhead_ms(n, False)
        return Prediction(n, ms, 0.0, 1.0, 0.0, verify_ms)

    def drafting(
        self, drafter: str, lengths: Sequence[int], batch_size: int, context_len: int
    ) -> list[Prediction]:
        """One for each of the lengths, all 1 or more."""
        n, cost = batch_size, self._cost
        plain = self.plain(n, context_len)
        drafting = n * self._offered(drafter)
        # Below one drafting request per step, some steps draft and the others are plain.
        count, share = max(drafting, 1.0), min(drafting, 1.0)
        price, overhead = cost.draft_price(drafter), cost.overhead_ms(n, True)
        survival = self._acceptance.typical(drafter, max(lengths, default=1))
        found: list[Prediction] = []
        for length in lengths:
            verify_ms = cost.verify_ms(n, n + round(count * length), n * context_len)
            draft_ms = price.ms(count, length)
            step_ms = verify_ms + overhead + draft_ms
            ms = plain.ms + share * (step_ms - plain.ms)
            accepted = sum(survival[:length])
            gained = drafting * accepted
            found.append(Prediction(n + gained, ms, gained, 1.0 + accepted, draft_ms, verify_ms))
        return found


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
    outlook = Outlook(cost, acceptance, offered)

    def shown(name: str, length: int, found: Prediction) -> Candidate:
        return candidate(
            name,
            length,
            found.tokens,
            found.ms,
            gained=found.gained,
            first=acceptance.typical(name, 1)[0] if length else 0.5,
            evidence=acceptance.evidence(name) if length else 1.0,
            spread=cost.spread,
        )

    lengths = [n for n in LENGTHS if n <= max_length]
    candidates = [shown(NONE, 0, outlook.plain(batch_size, context_len))]
    for name in drafters:
        predicted = outlook.drafting(name, lengths, batch_size, context_len)
        candidates += [shown(name, n, one) for n, one in zip(lengths, predicted, strict=True)]
    best = max(candidates, key=lambda c: c.goodput)
    return WhatIf(batch_size, context_len, tuple(candidates), best)
