"""Acceptance of drafts from what the server reports: joint curve, by position, drafter shares."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

MOST_POSITIONS = 256
"""Longer drafts than this are cut off in the tables; no drafter has one."""

Counts = dict[str, list[tuple[int, int]]]
"""By drafter and position: (reached and verified, accepted)."""


class Position(msgspec.Struct, frozen=True):
    """Conditional acceptance at one position: accepted, of the drafts accepted up to there."""

    position: int
    reached: int
    accepted: int
    rate: float


class Step(msgspec.Struct, frozen=True):
    """x_spec of one verify step: drafted tokens and how many of them were accepted. cut: the answer
    ended inside the draft, so what comes after the accepted tokens was not judged."""

    drafter: str
    drafted: int
    accepted: int
    cut: bool


def positions(steps: Iterable[Step]) -> Counts:
    """Counts by position (Kaplan-Meier): position k was reached when 1 .. k - 1 were accepted, and
    is not judged in a step that was cut before it."""
    found: Counts = {}
    for step in steps:
        accepted = min(step.accepted, step.drafted, MOST_POSITIONS)
        judged = accepted if step.cut else min(step.drafted, accepted + 1, MOST_POSITIONS)
        counts = found.setdefault(step.drafter, []) if judged else []
        counts += [(0, 0)] * (judged - len(counts))
        for k in range(judged):
            reached, kept = counts[k]
            counts[k] = (reached + 1, kept + (k < accepted))
    return found


def merged(many: Iterable[Counts]) -> Counts:
    found: Counts = {}
    for counts in many:
        for drafter, entries in counts.items():
            mine = found.setdefault(drafter, [])
            mine += [(0, 0)] * (len(entries) - len(mine))
            for k, (reached, accepted) in enumerate(entries):
                mine[k] = (mine[k][0] + reached, mine[k][1] + accepted)
    return found


def conditional(counts: Counts) -> dict[str, list[Position]]:
    """Conditional acceptance by drafter and position; positions never reached are left out."""
    return {
        drafter: [
            Position(k, reached, accepted, accepted / reached)
            for k, (reached, accepted) in enumerate(entries, 1)
            if reached
        ]
        for drafter, entries in counts.items()
    }


def joint(histograms: Iterable[Sequence[int]]) -> list[float]:
    """Share of verify steps that accepted at least k tokens, for k = 1, 2, … up to the last that
    is not 0. Plain steps count, so acceptance length = 1 + the sum of this list."""
    total: list[int] = []
    for histogram in histograms:
        total += [0] * (len(histogram) - len(total))
        for accepted, steps in enumerate(histogram):
            total[accepted] += steps
    steps = sum(total)
    at_least = [sum(total[k:]) for k in range(1, len(total))]
    return [count / steps for count in at_least if count]


def shares(many: Iterable[Mapping[str, int]]) -> dict[str, float]:
    """Share of verify steps by drafter (or chain); the largest first."""
    total: dict[str, int] = {}
    for steps in many:
        for drafter, count in steps.items():
            total[drafter] = total.get(drafter, 0) + count
    every = sum(total.values())
    ranked = sorted(total.items(), key=lambda item: -item[1])
    return {drafter: count / every for drafter, count in ranked if count}
