"""What one drafter does whatever its drafts' buckets: its rates by position, and its news."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from operator import mul

from controller.bucket_rates import FIRST_BY_MATCH, MODEL_RATE, PRIORS
from controller.change import ChangeTest
from controller.correction import Correction, shift
from controller.counts import POSITIONS, Counts, Table

DRAFTER_MEMORY = 1000
DRAFTER_WEIGHT = 12.0

DEEPER = 0.8
"""Prior of a_2 of model-free drafters; once they are right they stay right (about .6 to .9)."""

NEWS_SHARE, MOST_NEWS = 32, 15
"""A drafter's own rates are brought up to date when its news are 1/32 of what it knows, or 15
drafts: its buckets, which are always up to date, count more by then."""

MOST_WAITING = 256
"""News that nobody asks for are taken then: a policy may never look at acceptance."""

FIRST, OTHERS = slice(0, 1), slice(1, POSITIONS)
"""Positions that change together."""


News = tuple[int, int, float, float, float, Sequence[float]]
"""A credited draft: how many of its tokens were accepted, and how many positions verified; the
prior of a_1; the chances that were expected of positions 1 and 2, 0 where not verified; the chances
of those verified, where they are known. A plain tuple, since every draft makes one."""


class DrafterRates:
    """The odds of a drafter's first position against the priors, and its deeper rates by count.
    When the content changes, both forget what was before.

    counts: of all drafters, of which a row is this one's. news: drafts not counted here yet."""

    __slots__ = (
        "_changes",
        "_counts",
        "_deeper",
        "_first",
        "_patience",
        "_row",
        "_stale",
        "_tests",
        "news",
    )

    def __init__(self, counts: Counts) -> None:
        self._counts, self._row = counts, counts.add_row()
        self._first = Correction(DRAFTER_MEMORY, DRAFTER_WEIGHT)
        self._deeper = MODEL_RATE
        self._patience = 1
        self._stale = True
        self._tests = ChangeTest(), ChangeTest()
        self._changes: list[slice] = []
        self.news: list[News] = []

    @property
    def due(self) -> bool:
        """Whether its rates have to be written anew."""
        return self._stale or len(self.news) >= self._patience

    def matches(self) -> None:
        """It reports match lengths, so it copies text."""
        if self._deeper != DEEPER:
            self._deeper, self._stale = DEEPER, True

    def write(self, rates: Table) -> None:
        """Its rates with the news, [match buckets, POSITIONS]. An unobserved position reads the
        one before it."""
        self.take_news()
        at = self._row * POSITIONS
        hits = self._counts.accepted[at : at + POSITIONS]
        trials = self._counts.reached[at : at + POSITIONS]
        value, found = self._deeper, [0.0]
        for k in range(1, POSITIONS):
            if not trials[k]:
                found += [value] * (POSITIONS - k)
                break
            value = (hits[k] + DRAFTER_WEIGHT * value) / (trials[k] + DRAFTER_WEIGHT)
            found.append(value)
        self._patience = 1 + min(int(trials[0] / NEWS_SHARE), MOST_NEWS)
        odds = self._first.odds
        rates[:] = found
        rates[:, 0] = [shift(prior, odds) for prior in PRIORS]
        self._stale = False

    def take_news(self) -> None:
        """Count the drafts credited since the last time. Within one batch of news the order does
        not count."""
        if not self.news:
            return
        accepted, seen, priors, first, second, chances = zip(*self.news, strict=True)
        self.news, self._stale = [], True
        trials = len(seen) - seen.count(0)
        reached = trials - seen.count(1)
        if any(chances):
            hits, others = self._count_chances(accepted, seen, chances)
        else:
            self._counts.learn_many(self._row, accepted, seen)
            hits = len(accepted) - accepted.count(0)
            others = hits - accepted.count(1)
        if not trials:
            return
        if trials < len(seen):
            priors = [prior for prior, n in zip(priors, seen, strict=True) if n]
        self._first.learn_many(priors, hits)
        self._test(FIRST, trials, hits, sum(first), sum(priors) / trials)
        # Of the deeper positions the second one stands for all: those of a long copy are accepted
        # together, and a few long ones are no change of content.
        if reached:
            self._test(OTHERS, reached, others, sum(second))

    def _count_chances(
        self, accepted: Sequence[int], seen: Sequence[int], chances: Sequence[Sequence[float]]
    ) -> tuple[float, float]:
        """Count drafts of which some have chances. Returns how many were accepted at position 1 and
        at position 2."""
        first = second = 0.0
        for kept, verified, known in zip(accepted, seen, chances, strict=True):
            if known:
                self._counts.learn_chances(self._row, known)
                first += known[0]
                second += sum(known[1:2])
            else:
                self._counts.learn(self._row, kept, verified)
                first += kept > 0
                second += kept > 1
        return first, second

    def _test(
        self, positions: slice, trials: int, hits: float, expected: float, prior: float = 0.0
    ) -> None:
        """Whether the content has changed for these positions; then what was before is forgotten.
        trials, hits, expected: of the first of them; prior: the mean one of position 1."""
        test = self._tests[positions is OTHERS]
        changed = test.add(trials, hits, expected)
        if changed is None:
            return
        self._counts.cut([self._row], positions, changed.trials)
        at = self._row * POSITIONS + positions.start
        self._counts.reached[at], self._counts.accepted[at] = changed
        if positions is FIRST:
            self._first = Correction(DRAFTER_MEMORY, DRAFTER_WEIGHT)
            self._first.learn_many([prior] * round(changed.trials), changed.hits)
        self._changes.append(positions)

    def take_changes(self) -> list[slice]:
        """The positions that changed since the last call."""
        found, self._changes = self._changes, []
        return found

    @property
    def resets(self) -> int:
        """How often a change was noticed."""
        return sum(test.alarms for test in self._tests)

    def forget(self) -> None:
        """Nothing is known of it."""
        self._counts.clear(self._row)
        self._first = Correction(DRAFTER_MEMORY, DRAFTER_WEIGHT)
        self._tests = ChangeTest(), ChangeTest()
        self._changes.clear()
        self.news.clear()
        self._stale = True

    # --- views --------------------------------------------------------------------------------

    def typical(self, length: int, met: bool) -> list[float]:
        """S_1 .. S_length over all its recent drafts, whatever their features. met: it had drafts
        at all."""
        self.take_news()
        at, counts = self._row * POSITIONS, self._counts
        matches = self._deeper == DEEPER or not met
        value, rates = FIRST_BY_MATCH[1] if matches else MODEL_RATE, []
        for k in range(min(length, POSITIONS)):
            parent = DEEPER if k == 1 and matches else value
            hits = counts.accepted[at + k] + DRAFTER_WEIGHT * parent
            value = hits / (counts.reached[at + k] + DRAFTER_WEIGHT)
            rates.append(value)
        rates += rates[-1:] * (length - len(rates))
        return list(accumulate(rates, mul))

    @property
    def evidence(self) -> float:
        """Discounted number of its drafts."""
        self.take_news()
        return self._counts.reached[self._row * POSITIONS]

    def report(self) -> Sequence[dict[str, object]]:
        """By position that was reached: discounted reached and accepted, and the rate."""
        self.take_news()
        at = self._row * POSITIONS
        return [
            {
                "position": k + 1,
                "reached": round(reached, 2),
                "accepted": round(self._counts.accepted[at + k], 2),
                "rate": round(self._counts.accepted[at + k] / reached, 4),
            }
            for k, reached in enumerate(self._counts.reached[at : at + POSITIONS])
            if reached
        ]
