"""What each static choice, one drafter at one D for everybody, is predicted to give in a step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from controller.choices import Choices
from controller.cost import CostModel
from controller.planner import uniform
from controller.regime import rate_error


class StaticStep(NamedTuple):
    """Expected tokens of a step, the same with one standard error less of accepted tokens, and its
    milliseconds."""

    tokens: float
    low: float
    ms: float


def static_steps(
    drafters: Iterable[str],
    offered: Choices,
    plain: StaticStep,
    context_tokens: int,
    room: int,
    lengths: Sequence[int],
    cost: CostModel,
    evidence: Callable[[str], float],
) -> Mapping[str, list[StaticStep]]:
    """By drafter and length, the step in which every request with an offer of the drafter drafts so
    many tokens, or as many as its offer allows, and all others decode plainly. plain: the step in
    which nobody drafts, as it is for a drafter without any offer. room: rows that may be drafted.
    evidence: drafts seen of a drafter; the fewer, the larger the error of what it is thought to
    accept."""
    found = {name: [plain] * len(lengths) for name in drafters}
    most, requests = min(room, len(offered) * lengths[-1]), int(plain.tokens)
    if most < 1:
        return found
    costs = cost.verify_curve(requests, most, context_tokens)
    costs += cost.overhead_ms(requests, True)
    for code in offered.present():
        name, mine = offered.names[code], offered.of(code)
        longest = int(np.maximum.reduce(mine.longest))
        reached = [min(length, longest) for length in lengths]
        first = float(np.add.reduce(mine.survival[:, 0])) / len(mine)
        sure = max(0.0, 1.0 - rate_error(first, evidence(name)))
        found[name] = [
            StaticStep(tokens, requests + sure * (tokens - requests), ms)
            for tokens, ms in uniform(costs, plain.tokens, mine, reached, room)
        ]
    return found
