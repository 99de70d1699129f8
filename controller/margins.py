"""How the margin of a model's draft tells whether it will be accepted: a logistic, refitted.

P(accepted) = 1 / (1 + exp(-(bias + slope * margin + deeper [behind the first token]))), by drafter
and by whether tokens are drawn at random. Fitted by Newton's method to the last observations, with
a few of a prior (ridge); as vLLM's adaptive verification does (#47808), which refits every 100
steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from controller.contract import Bar

Array = NDArray[np.float64]

MOST_MARGIN = 12.0
"""Larger margins count as this."""
PRIOR = (-0.5, 0.5, 0.0)
"""bias, slope and deeper before anything was observed."""
PRIOR_WEIGHT = 4.0
ALL, WITHOUT_SLOPE = np.array([0, 1, 2]), np.array([0, 2])
"""Parameters that a fit moves."""
MEMORY = 1024
"""Observations that a fit is made of, the last ones."""
KNOWN = 128
"""Observations before it is used."""
FIRST_FIT, MOST_NEWS = 32, 256
"""A fit is due when the news are a quarter of what it knows, at least and at most so many."""
DRAFTS, PLACES = 256, 16
"""Whole drafts whose margins say what a bar would leave, the last ones, and positions of each."""
LEAST_DRAFTS = 16
"""So many must have reached a position, else it is thought to lose as the one before."""
NEWTON_STEPS = 3
LONGEST_STEP = 2.0
"""Of each parameter in one step of Newton's method."""


class Kept(NamedTuple):
    """What a bar leaves of drafts. rows: the share of drafts that go on over position k; tokens:
    of the tokens that position k of whole drafts would bring, the share that is left. Both fall
    with k. Of one drafter float64 [PLACES], or one row for each of some drafts."""

    rows: Array
    tokens: Array


class MarginModel:
    """Of one drafter. observations: all so far. drafts: all so far, whole ones.
    version: rises with each fit."""

    def __init__(self) -> None:
        self._parameters = np.array(PRIOR)
        self._ring = np.zeros((MEMORY, 3))
        self._hits = np.zeros(MEMORY)
        self._news: list[tuple[float, float, float]] = []
        self._drafts = np.full((DRAFTS, PLACES), np.nan)
        self.observations = self.version = self.drafts = 0

    @property
    def known(self) -> bool:
        """Whether enough was observed to go by."""
        return self.observations >= KNOWN

    def add(self, margin: float, first: bool, hit: float) -> None:
        """A token at the first or at a deeper place was verified; hit: whether it was accepted, or
        the chance that it would be."""
        self._news.append((_held(margin), 0.0 if first else 1.0, hit))
        if len(self._news) >= min(max(FIRST_FIT, self.observations // 4), MOST_NEWS):
            self._fit()

    def drafted(self, margins: Sequence[float]) -> None:
        """The margins of a whole draft, verified or not."""
        row = self._drafts[self.drafts % DRAFTS]
        count = min(len(margins), PLACES)
        row[:count], row[count:] = margins[:count], np.nan
        self.drafts += 1

    def _fit(self) -> None:
        news = np.array(self._news)[-MEMORY:]
        places = np.arange(self.observations, self.observations + len(news)) % MEMORY
        self._ring[places, 0] = 1.0
        self._ring[places, 1:] = news[:, :2]
        self._hits[places] = news[:, 2]
        self.observations += len(news)
        self._news.clear()
        count = min(self.observations, MEMORY)
        seen, hits = self._ring[:count], self._hits[:count]
        found = _newton(seen, hits, self._parameters, ALL)
        if found[1] < 0.0:
            # Were a larger margin worse, it would say nothing that one can rely on.
            found = _newton(seen, hits, np.where(ALL == 1, 0.0, found), WITHOUT_SLOPE)
        self._parameters = found
        self.version += 1

    def bar(self, least: float) -> Bar:
        """Ends a draft where its tokens' chance falls below `least`."""
        bias, slope, deeper = self._parameters.tolist()
        return Bar(least, bias, slope, deeper, MOST_MARGIN)

    def kept(self, least: float) -> Kept:
        """What a bar of `least` would have left of the last drafts, by what their margins promise
        now."""
        bias, slope, deeper = self._parameters.tolist()
        margins = self._drafts[: min(self.drafts, DRAFTS)]
        power = np.clip(margins, 0.0, MOST_MARGIN) * slope + bias
        power[:, 1:] += deeper
        chances = 1.0 / (1.0 + np.exp(-power))
        return _kept(chances, least)

    def chance(self, margin: float, first: bool) -> float:
        """That a token of this margin is accepted, given those before it."""
        bias, slope, deeper = self._parameters.tolist()
        power = bias + slope * _held(margin) + (0.0 if first else deeper)
        return float(1.0 / (1.0 + np.exp(-power)))

    def report(self) -> dict[str, object]:
        bias, slope, deeper = self._parameters.tolist()
        return {
            "observations": self.observations,
            "bias": round(bias, 3),
            "slope": round(slope, 3),
            "deeper": round(deeper, 3),
        }


def _kept(chances: Array, least: float) -> Kept:
    """chances: [n, PLACES], of each token of n drafts, NaN behind their ends. What a draft would
    have promised behind its end is thought to fall by the usual chance of a token; how many go on
    over a position is seen from those that were made so far and passed the one before."""
    seen = ~np.isnan(chances)
    usual = float(np.mean(chances[seen])) if seen.any() else 0.0
    rows, tokens = np.zeros(PLACES), np.zeros(PLACES)
    survival, passes = np.ones(len(chances)), np.ones(len(chances), np.bool_)
    share = left = 1.0
    falls = (1.0, 1.0)  # of share and left, from the position before
    for place in range(PLACES):
        here = seen[:, place]
        survival = survival * np.where(here, chances[:, place], usual)
        tried = passes & here
        passes = tried & (survival >= least)
        there, passed = int(np.add.reduce(tried)), int(np.add.reduce(passes))
        if there < LEAST_DRAFTS:  # few drafts went there: on as at the position before
            on = np.arange(1, PLACES - place + 1)
            rows[place:], tokens[place:] = share * falls[0] ** on, left * falls[1] ** on
            break
        before, share = left, share * passed / there
        total = float(np.mean(survival))
        mean = float(np.mean(survival[passes])) if passed else 0.0
        left = min(left, share * mean / total) if total > 0.0 else 0.0
        falls = (passed / there, left / before if before > 0.0 else 0.0)
        rows[place], tokens[place] = share, left
    return Kept(rows, tokens)


def _held(margin: float) -> float:
    """The margin within its bounds; of one that is no number, 0."""
    if margin >= MOST_MARGIN:
        return MOST_MARGIN
    return margin if margin > 0.0 else 0.0


def _newton(seen: Array, hits: Array, start: Array, moved: NDArray[np.intp]) -> Array:
    """The parameters after a few steps of Newton's method from `start`, of which `moved` move.
    seen: [n, 3]; hits: [n]."""
    found, columns = start.copy(), seen[:, moved]
    for _ in range(NEWTON_STEPS):
        rate = 1.0 / (1.0 + np.exp(-(seen @ found)))
        uphill = columns.T @ (hits - rate) - PRIOR_WEIGHT * (found - PRIOR)[moved]
        bend = (columns * (rate * (1.0 - rate))[:, None]).T @ columns
        bend += PRIOR_WEIGHT * np.eye(len(moved))
        found[moved] += np.clip(np.linalg.solve(bend, uphill), -LONGEST_STEP, LONGEST_STEP)
    return found
