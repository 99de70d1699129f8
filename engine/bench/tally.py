"""What a bench run adds up: tokens per step, acceptance by position, and what drafting took."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from controller.contract import RequestOutcome, StepOutcome
from engine.request import Request


class Positions:
    """Conditional acceptance by position: of the drafts in which all before it were accepted, the
    share in which it was (Kaplan-Meier: what the text's end cut off counts neither way)."""

    def __init__(self) -> None:
        self.reached: list[int] = []
        self.accepted: list[int] = []

    def add(self, drafted: int, accepted: int, cut: bool) -> None:
        """One verified draft."""
        seen = min(accepted + (not cut), drafted)
        while len(self.reached) < seen:
            self.reached.append(0)
            self.accepted.append(0)
        for place in range(seen):
            self.reached[place] += 1
            self.accepted[place] += place < accepted

    def numbers(self) -> list[dict[str, Any]]:
        return [
            {"position": k, "reached": reached, "rate": round(accepted / reached, 4)}
            for k, (reached, accepted) in enumerate(
                zip(self.reached, self.accepted, strict=True), 1
            )
        ]


@dataclass
class Tally:
    """Of requests: verify steps, tokens they committed, drafted and accepted tokens, prompts; and
    by drafter, the positions of its drafts, of a chain its own part. The token that a prefill gives
    is no step's and not counted."""

    prompts: int = 0
    steps: int = 0
    tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    positions: defaultdict[str, Positions] = field(default_factory=lambda: defaultdict(Positions))

    def add(self, request: Request) -> None:
        """A request that ended."""
        self.prompts += 1
        self.steps += request.steps
        self.tokens += max(0, request.produced - 1)
        self.drafted += request.drafted
        self.accepted += request.accepted

    def verified(self, outcome: RequestOutcome) -> None:
        """What one of its steps got."""
        if not outcome.parts:
            if outcome.drafted:
                found = self.positions[outcome.drafter]
                found.add(outcome.drafted, outcome.accepted, outcome.cut)
            return
        for part in outcome.parts:
            if part.drafted:
                name = part.drafter if part is outcome.parts[0] else f"{part.drafter} (tail)"
                self.positions[name].add(part.drafted, part.accepted, outcome.cut)
            if part.accepted < part.drafted:
                return

    def numbers(self) -> dict[str, Any]:
        steps, drafted = max(1, self.steps), max(1, self.drafted)
        return {
            "prompts": self.prompts,
            "steps": self.steps,
            "tokens": self.tokens,
            "tokens_per_step": round(self.tokens / steps, 4),
            "drafted_per_step": round(self.drafted / steps, 4),
            "acceptance_rate": round(self.accepted / drafted, 4),
            "positions": {name: found.numbers() for name, found in self.positions.items()},
        }


@dataclass
class Result:
    """Of one run of one mode. drafting_s: CPU seconds of the drafters without a model; steps_s: of
    whole steps in the loop's own thread. step_ms: times of target steps without a prefill.
    token_ms: by model, what its calls took for each drafted position, where it had only to draft.
    Both are kept for steps at full concurrency only."""

    whole: Tally = field(default_factory=Tally)
    by_category: dict[str, Tally] = field(default_factory=dict)
    drafting_s: float = 0.0
    steps_s: float = 0.0
    step_ms: list[float] = field(default_factory=list)
    token_ms: dict[str, list[float]] = field(default_factory=dict)

    def step(self, outcome: StepOutcome, categories: dict[int, str], concurrency: int) -> None:
        """Take in a step; categories: of its requests by id."""
        for one in outcome.per_request:
            self.whole.verified(one)
            self.category(categories[one.request]).verified(one)
        if outcome.prefill_rows or outcome.requests < concurrency:
            return
        self.step_ms.append(outcome.verify_ms)
        for proposal in outcome.proposals:
            if proposal.depth and not proposal.catch_up and proposal.requests == outcome.requests:
                found = self.token_ms.setdefault(proposal.drafter, [])
                found.append(proposal.ms / proposal.depth)

    def category(self, name: str) -> Tally:
        return self.by_category.setdefault(name, Tally())

    def numbers(self) -> dict[str, Any]:
        shown = self.whole.numbers() | {
            "drafting_cpu_s": round(self.drafting_s, 4),
            "steps_cpu_s": round(self.steps_s, 3),
            "categories": {name: tally.numbers() for name, tally in self.by_category.items()},
        }
        if self.step_ms:
            shown["step_ms"] = round(median(self.step_ms), 4)
        shown["token_ms"] = {name: round(median(ms), 4) for name, ms in self.token_ms.items() if ms}
        return shown
