"""What each of two arms caused of a step that both share: rows, drafts, looking for drafts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from controller.contract import Allotment, Proposal, RequestOutcome, StepOutcome

Pair = tuple[float, float]
"""A value for arm A and for arm B."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What was asked of the drafters for a step. looked: which arm looked for drafts. requests: by
    drafter, how many requests of each arm it was to draft for, or to catch up with."""

    looked: tuple[bool, bool] = (True, True)
    requests: Mapping[str, Pair] = field(default_factory=dict)

    def after(
        self, looked: tuple[bool, bool], arms: tuple[list[Allotment], list[Allotment]]
    ) -> Asked:
        """The same of the next step. A drafter that nobody asks there keeps those that asked it
        last: it may take in text for their sake."""
        counts: dict[str, list[float]] = {}
        for arm, allotments in enumerate(arms):
            for one in allotments:
                if one.length:
                    counts.setdefault(one.drafter, [0.0, 0.0])[arm] += 1.0
        found = {name: (a, b) for name, (a, b) in counts.items()}
        return Asked(looked, {**self.requests, **found})

    def without(self, drafter: str) -> Asked:
        """The drafter is gone."""
        left = {name: pair for name, pair in self.requests.items() if name != drafter}
        return replace(self, requests=left)


NOBODY = Asked()


def part_of(
    outcome: StepOutcome, own: tuple[RequestOutcome, ...], arm: int, asked: Asked
) -> StepOutcome:
    """What a step was for one arm (0: A, 1: B), whose requests are `own`: its own rows, the
    others' like those of prefills; of what a drafter took the part of the requests that it was
    asked for, drafted or not, by requests where nobody asked it; of the overhead that of its rows.

    An arm that does not look for drafts pays nothing for looking. What was spent on looking for its
    requests is nobody's: without the other arm it would not have been."""
    rows = sum(1 + one.drafted for one in own)
    among, alone = len(own) / len(outcome.per_request), len(own) == len(outcome.per_request)
    proposals: list[Proposal] = []
    for one in outcome.proposals:
        users = asked.requests.get(one.drafter, (0.0, 0.0))
        share = users[arm] / sum(users) if any(users) and not alone else among
        if share:
            requests, catch_up = round(one.requests * share), round(one.catch_up * share)
            proposals.append(replace(one, requests=requests, ms=one.ms * share, catch_up=catch_up))
    drafting = sum(one.ms for one in outcome.proposals)
    looking = max(outcome.draft_ms - drafting, 0.0) * among if asked.looked[arm] else 0.0
    return replace(
        outcome,
        rows=rows,
        prefill_rows=outcome.prefill_rows + outcome.rows - rows,
        draft_ms=looking + sum(one.ms for one in proposals),
        overhead_ms=outcome.overhead_ms * rows / outcome.rows,
        per_request=own,
        proposals=tuple(proposals),
    )
