"""What recorded drafts told of themselves, margins and chances, and what others would have told.

Where a replay drafts at a place that the live run did not draft at, margin and chance are those of
another token of the same drafter that was accepted as well, or was not, at the first place of its
draft or behind it. So the chance of being accepted, given the margin, stays what it was."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from controller.margins import MarginModel
from controller.simulate.recording import Start
from controller.simulate.texts import LONGEST, Numbers, Reals

UNTOLD = float("nan")
MARGIN, CHANCE = 0, 1
"""Columns of what a token told."""


class Confidence:
    """Of one drafter, over all requests. tells: whether it reports margins."""

    def __init__(self, starts: Iterable[Start]) -> None:
        told: dict[tuple[bool, bool, bool], list[tuple[float, float]]] = {}
        self._models = {False: MarginModel(), True: MarginModel()}
        self.tells = False
        for start in starts:
            self.tells = self.tells or bool(start.margins)
            for place in range(start.accepted + start.wrong):
                margin, chance = _at(start.margins, place), _at(start.chances, place)
                if margin != margin and chance != chance:
                    continue
                hit, first = place < start.accepted, place == 0
                told.setdefault((start.sampled, hit, first), []).append((margin, chance))
                if margin == margin:
                    learned = chance if chance == chance else float(hit)
                    self._models[start.sampled].add(margin, first, learned)
        self._told = {key: np.array(values, np.float32) for key, values in told.items()}

    def promise(self, start: Start, place: int) -> float | None:
        """The chance that a token there is accepted, by the margin that it had; None where none is
        known or too few were verified to go by it."""
        model = self._models[start.sampled]
        if place >= len(start.margins) or not model.known:
            return None
        return model.chance(start.margins[place], place == 0)

    def of_text(
        self,
        got: Numbers,
        starts: Sequence[Start],
        sampled: bool,
        chancy: bool,
        rng: np.random.Generator,
    ) -> tuple[Reals | None, Reals | None]:
        """Margins and chances, float32 [output tokens, LONGEST] each, of drafts at every place of a
        text, of which the first got[t] tokens are right; None where there are none.
        starts: what this text's own drafts told."""
        if not self._told or not (self.tells or chancy):
            return None, None
        depths = np.arange(LONGEST)
        hits = depths < got[:, None]
        found = np.empty((len(got), LONGEST, 2), np.float32)
        for hit in (False, True):
            for first in (False, True):
                where = (hits == hit) & ((depths == 0) == first)
                pool = self._pool(sampled, hit, first)
                found[where] = pool[rng.integers(len(pool), size=int(where.sum()))]
        for start in starts:
            if start.place < len(got):
                found[start.place, : len(start.margins), MARGIN] = start.margins
                found[start.place, : len(start.chances), CHANCE] = start.chances
        margins, chances = found[..., MARGIN], found[..., CHANCE]
        known = chancy and not np.isnan(chances).all()
        return (margins if self.tells else None), (chances if known else None)

    def _pool(self, sampled: bool, hit: bool, first: bool) -> Reals:
        """Tokens of the nearest kind that there are: what came of it counts before the place, and
        the place before how the request's tokens are drawn."""
        kinds = sorted(
            self._told,
            key=lambda kind: (kind[1] != hit, kind[2] != first, kind[0] != sampled),
        )
        return self._told[kinds[0]]


def _at(values: Sequence[float], place: int) -> float:
    return values[place] if place < len(values) else UNTOLD
