"""Credits what a step showed: to each drafter of a chain its part, and to shadows their score."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from controller.acceptance import Acceptance
from controller.averages import Sample
from controller.contract import NONE, Allotment, Features, Part, RequestOutcome
from controller.guards import RequestGuard
from controller.mixing import FULL, TAIL, fill_key, tail_key
from controller.promises import Promises

MOST_LEARNED = 16
"""So many requests of a step teach the acceptance, in rotation: the memory of a bucket is 400
drafts, and more would only cost time."""


@dataclass(frozen=True, slots=True)
class Planned:
    """What crediting needs to know of a planned step. price: tokens that a drafted row costs.
    forced: requests whose length somebody else chose. tails: request -> tokens allotted to its
    tail. looked: drafts were looked for."""

    price: float
    forced: frozenset[int] = frozenset()
    tails: dict[int, int] = field(default_factory=dict)
    looked: bool = True


RESTED = Planned(0.0, looked=False)


def planned_of(
    sample: Sample,
    allotments: Sequence[Allotment],
    forced: frozenset[int],
    rows: float,
    base_ms: float,
    looked: bool,
) -> Planned:
    """What crediting a step will need. rows: that the controller's own choices are expected to
    have; base_ms: of the step without these."""
    price = 0.0
    if rows > 0.0:
        price = max(0.0, sample.ms - base_ms) / rows * sample.requests / base_ms
    tails = {one.request: one.tail_length for one in allotments if one.tail_length}
    return Planned(price, forced, tails, looked)


Verified = RequestOutcome | Part
"""What was verified of one drafter's tokens: drafted, accepted, chances."""


class Credit:
    """Teaches the acceptance model, the request guard and what margins promise."""

    def __init__(self, acceptance: Acceptance, guard: RequestGuard) -> None:
        self.promises = Promises()
        self._acceptance = acceptance
        self._guard = guard
        self._next = 0

    def step(self, outcomes: tuple[RequestOutcome, ...], planned: Planned | None) -> None:
        """Credit a step. planned: None for a step that was never planned here."""
        for result in outcomes:
            if planned is not None and result.drafted and result.request not in planned.forced:
                drafted, accepted = result.drafted, result.accepted
                self._guard.record(result.request, drafted, accepted, planned.price)
        count = len(outcomes)
        if count <= MOST_LEARNED:
            for result in outcomes:
                self._one(result, planned)
            return
        for place in range(self._next, self._next + MOST_LEARNED):
            self._one(outcomes[place % count], planned)
        self._next = (self._next + MOST_LEARNED) % count

    def _one(self, result: RequestOutcome, planned: Planned | None) -> None:
        kept_out = None
        if result.margins is not None:
            kept_out = self.promises.learn(result, result.margins)
        if result.parts:
            self._chain(result, result.parts, planned)
        elif kept_out is not None and result.margins is not None:
            self._cut_short(result, result.margins.drafter, kept_out)
        elif result.refused != NONE:
            self._refused(result, result.refused, result.features, result)
        elif result.drafted:
            self._acceptance.learn(
                result.request,
                result.drafter,
                result.features,
                result.drafted,
                result.accepted,
                result.cut,
                result.chances,
            )
        best = -1
        for score in result.shadows:
            # Beside a live draft of the same drafter only a score cut off by going live
            # counts: it covers text before the live draft.
            if result.drafted and score.drafter == result.drafter and not score.censored:
                continue
            best = max(best, score.accepted)
            self._acceptance.learn(
                result.request,
                score.drafter,
                score.features,
                score.drafted,
                score.accepted,
                score.censored,
            )
        if best >= 0:
            self._guard.shadow(result.request, best)

    def _refused(
        self, result: RequestOutcome, drafter: str, features: Features, verified: Verified
    ) -> None:
        """A draft that ended before a token that a mask ruled out, which counts as rejected."""
        chances = verified.chances
        if chances and verified.accepted == verified.drafted:
            chances = (*chances, 0.0)
        counts = verified.drafted + 1, verified.accepted
        self._acceptance.learn(result.request, drafter, features, *counts, result.cut, chances)

    def _cut_short(self, result: RequestOutcome, drafter: str, chance: float) -> None:
        """A model's draft that was accepted as far as it was verified, and ended before a token of
        this chance: that one was reached too, and counts as its chance."""
        verified = result.drafted
        chances = (*(result.chances or (1.0,) * verified), chance)
        self._acceptance.learn(
            result.request, drafter, result.features, verified + 1, verified, chances=chances
        )

    def _chain(
        self, result: RequestOutcome, parts: tuple[Part, ...], planned: Planned | None
    ) -> None:
        head, *tails = parts
        learn, request = self._acceptance.learn, result.request
        refused = result.refused
        if refused != NONE and refused not in [tail.drafter for tail in tails]:
            self._refused(result, refused, head.features, head)
            return  # what the tail would have added is not known
        counts = head.drafted, head.accepted
        learn(request, head.drafter, head.features, *counts, result.cut, head.chances)
        asked = planned.tails.get(request, 0) if planned is not None else 0
        for tail in tails:
            if asked:
                filled = min(tail.drafted + (refused == tail.drafter), asked)
                learn(request, fill_key(tail.drafter), FULL, asked, filled)
            if head.accepted != head.drafted:
                continue
            key = tail_key(tail.drafter)
            if refused == tail.drafter:
                self._refused(result, key, TAIL, tail)
            else:
                counts = tail.drafted, tail.accepted
                learn(request, key, TAIL, *counts, result.cut, tail.chances)
