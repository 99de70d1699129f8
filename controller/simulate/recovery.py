"""How fast a policy recovers when all requests change at once.

Two kinds of text take turns, and with each turn every request is a new one. Over all turns from one
kind to the other the tokens and times by the number of steps since the break are added up, because
those of a single break are too few to tell 2 % from chance. Recovered is what is within 2 % of the
best static choice of the phase over the next 64 steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from controller.simulate.load import Phase

BIN_STEPS = 16
"""Steps that are added up."""
WINDOW_BINS = 4
NEAR = 0.98

Bins = Sequence[tuple[int, float]]
"""(tokens, ms) of every BIN_STEPS steps since a phase began, the last of fewer."""
Profile = dict[str, list[tuple[int, float]]]
"""The same by kind of break, added up over the breaks of that kind."""


def added_up(phases: Sequence[Phase], bins: Sequence[Bins], name: Mapping[str, str]) -> Profile:
    """The bins after the breaks, by the names of the two kinds of text. A bin that not all phases
    of its kind had is left out. The first phase begins with no break."""
    turns: dict[str, list[Bins]] = {}
    for before, phase, mine in zip(phases, phases[1:], bins[1:], strict=False):
        turns.setdefault(turn(before, phase, name), []).append(mine)
    return {
        kind: [
            (sum(tokens for tokens, _ in column), round(sum(ms for _, ms in column), 3))
            for column in zip(*some, strict=False)
        ]
        for kind, some in turns.items()
    }


def turn(before: Phase, after: Phase, name: Mapping[str, str]) -> str:
    return f"{name.get(before.corpus, before.corpus)} to {name.get(after.corpus, after.corpus)}"


def best_after(
    phases: Sequence[Phase], best: Sequence[tuple[int, float]], name: Mapping[str, str]
) -> dict[str, float]:
    """Tokens per ms of the best static choice of each phase, by the kind of break before it. best:
    (tokens, ms) of each phase."""
    sums: dict[str, tuple[int, float]] = {}
    for before, phase, (tokens, ms) in zip(phases, phases[1:], best[1:], strict=False):
        kind = turn(before, phase, name)
        old = sums.get(kind, (0, 0.0))
        sums[kind] = (old[0] + tokens, old[1] + ms)
    return {kind: tokens / ms for kind, (tokens, ms) in sums.items()}


def steps_to_recover(bins: Bins, speed: float) -> int | None:
    """Steps after which a policy is near the speed (tokens per ms), None where it never is."""
    for begin in range(max(len(bins) - WINDOW_BINS + 1, 1)):
        window = bins[begin : begin + WINDOW_BINS]
        ms = sum(one for _, one in window)
        if ms and sum(one for one, _ in window) / ms >= NEAR * speed:
            return begin * BIN_STEPS
    return None
